// Stands in for OpenCV's device headers: matrices with a step in bytes, and what kernels use beside them.
#pragma once
typedef unsigned char uchar;
typedef signed char schar;
typedef unsigned short ushort;
typedef unsigned int uint;

namespace cv {
namespace cuda {
template <typename T> struct DevPtr {
    typedef T elem_type;
    typedef int index_type;
    enum { elem_size = sizeof(elem_type) };
    T* data;
    __host__ __device__ __forceinline__ DevPtr() : data(0) {}
    __host__ __device__ __forceinline__ DevPtr(T* data_) : data(data_) {}
    __host__ __device__ __forceinline__ operator T*() { return data; }
    __host__ __device__ __forceinline__ operator const T*() const { return data; }
};

template <typename T> struct PtrSz : public DevPtr<T> {
    size_t size;
    __host__ __device__ __forceinline__ PtrSz() : size(0) {}
    __host__ __device__ __forceinline__ PtrSz(T* data_, size_t size_) : DevPtr<T>(data_), size(size_) {}
};

template <typename T> struct PtrStep : public DevPtr<T> {
    size_t step;
    __host__ __device__ __forceinline__ PtrStep() : step(0) {}
    __host__ __device__ __forceinline__ PtrStep(T* data_, size_t step_) : DevPtr<T>(data_), step(step_) {}
    __host__ __device__ __forceinline__ T* ptr(int y = 0) { return (T*)((char*)(DevPtr<T>::data) + y * step); }
    __host__ __device__ __forceinline__ const T* ptr(int y = 0) const { return (const T*)((const char*)(DevPtr<T>::data) + y * step); }
    __host__ __device__ __forceinline__ T& operator()(int y, int x) { return ptr(y)[x]; }
    __host__ __device__ __forceinline__ const T& operator()(int y, int x) const { return ptr(y)[x]; }
};

template <typename T> struct PtrStepSz : public PtrStep<T> {
    int cols;
    int rows;
    __host__ __device__ __forceinline__ PtrStepSz() : cols(0), rows(0) {}
    __host__ __device__ __forceinline__ PtrStepSz(int rows_, int cols_, T* data_, size_t step_) : PtrStep<T>(data_, step_), cols(cols_), rows(rows_) {}
    template <typename U> __host__ __device__ explicit PtrStepSz(const PtrStepSz<U>& d) : PtrStep<T>((T*)d.data, d.step), cols(d.cols), rows(d.rows) {}
};

typedef PtrStepSz<unsigned char> PtrStepSzb;
typedef PtrStepSz<unsigned short> PtrStepSzus;
typedef PtrStepSz<float> PtrStepSzf;
typedef PtrStepSz<int> PtrStepSzi;
typedef PtrStep<unsigned char> PtrStepb;
typedef PtrStep<unsigned short> PtrStepus;
typedef PtrStep<float> PtrStepf;
typedef PtrStep<int> PtrStepi;

namespace device {
template <typename T> struct numeric_limits;
template <> struct numeric_limits<bool> { static __device__ __forceinline__ bool min() { return false; } static __device__ __forceinline__ bool max() { return true; } };
template <> struct numeric_limits<signed char> { static __device__ __forceinline__ signed char min() { return -128; } static __device__ __forceinline__ signed char max() { return 127; } };
template <> struct numeric_limits<unsigned char> { static __device__ __forceinline__ unsigned char min() { return 0; } static __device__ __forceinline__ unsigned char max() { return 255; } };
template <> struct numeric_limits<short> { static __device__ __forceinline__ short min() { return -32768; } static __device__ __forceinline__ short max() { return 32767; } };
template <> struct numeric_limits<unsigned short> { static __device__ __forceinline__ unsigned short min() { return 0; } static __device__ __forceinline__ unsigned short max() { return 65535; } };
template <> struct numeric_limits<int> { static __device__ __forceinline__ int min() { return -2147483647 - 1; } static __device__ __forceinline__ int max() { return 2147483647; } };
template <> struct numeric_limits<unsigned int> { static __device__ __forceinline__ unsigned int min() { return 0; } static __device__ __forceinline__ unsigned int max() { return 4294967295u; } };
template <> struct numeric_limits<float> { static __device__ __forceinline__ float min() { return 1.175494351e-38f; } static __device__ __forceinline__ float max() { return 3.402823466e+38f; } static __device__ __forceinline__ float epsilon() { return 1.192092896e-07f; } };
template <> struct numeric_limits<double> { static __device__ __forceinline__ double min() { return 2.2250738585072014e-308; } static __device__ __forceinline__ double max() { return 1.7976931348623157e+308; } static __device__ __forceinline__ double epsilon() { return 2.2204460492503131e-16; } };

// A value of another type, rounded to nearest and clamped to its range.
template <typename D, typename S> struct optiml_saturated {
    static __device__ __forceinline__ D of(S v) {
        double r = (double)v;
        r = r < (double)numeric_limits<D>::min() ? (double)numeric_limits<D>::min() : r;
        r = r > (double)numeric_limits<D>::max() ? (double)numeric_limits<D>::max() : r;
        return (D)(long long)rint(r);
    }
};
template <typename S> struct optiml_saturated<float, S> { static __device__ __forceinline__ float of(S v) { return (float)v; } };
template <typename S> struct optiml_saturated<double, S> { static __device__ __forceinline__ double of(S v) { return (double)v; } };
template <typename T> struct optiml_saturated<T, T> { static __device__ __forceinline__ T of(T v) { return v; } };
template <> struct optiml_saturated<float, float> { static __device__ __forceinline__ float of(float v) { return v; } };
template <> struct optiml_saturated<double, double> { static __device__ __forceinline__ double of(double v) { return v; } };
template <typename D, typename S> __device__ __forceinline__ D saturate_cast(S v) { return optiml_saturated<D, S>::of(v); }

__host__ __device__ __forceinline__ int divUp(int total, int grain) { return (total + grain - 1) / grain; }
template <typename T> __device__ __forceinline__ void swap(T& a, T& b) { const T temp = a; a = b; b = temp; }
}  // namespace device
using device::divUp;
}  // namespace cuda

namespace cudev {
using namespace ::cv::cuda;
using namespace ::cv::cuda::device;
template <typename T> struct GlobPtr {
    typedef T value_type;
    typedef int index_type;
    T* data;
    size_t step;
    __device__ __forceinline__ T* row(int y) { return (T*)((char*)data + y * step); }
    __device__ __forceinline__ const T* row(int y) const { return (const T*)((const char*)data + y * step); }
    __device__ __forceinline__ T& operator()(int y, int x) { return row(y)[x]; }
    __device__ __forceinline__ const T& operator()(int y, int x) const { return row(y)[x]; }
};
template <typename T> struct GlobPtrSz : public GlobPtr<T> {
    int rows;
    int cols;
};
}  // namespace cudev
}  // namespace cv
