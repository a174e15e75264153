// Stands in for OpenCV's device headers: matrices with a step in bytes, and what kernels use beside them.
#pragma once
typedef unsigned char uchar;
typedef signed char schar;
typedef unsigned short ushort;
typedef unsigned int uint;
#ifndef CV_PI_F
#define CV_PI_F 3.14159265f
#endif
#ifndef CV_PI
#define CV_PI 3.1415926535897932384626433832795
#endif

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

// Vectors of one to four elements, by their type and by their elements'.
template <typename E, int N> struct TypeVec;
template <> struct TypeVec<uchar, 1> { typedef uchar vec_type; };
template <> struct TypeVec<uchar, 2> { typedef uchar2 vec_type; };
template <> struct TypeVec<uchar, 3> { typedef uchar3 vec_type; };
template <> struct TypeVec<uchar, 4> { typedef uchar4 vec_type; };
template <> struct TypeVec<schar, 1> { typedef schar vec_type; };
template <> struct TypeVec<schar, 2> { typedef char2 vec_type; };
template <> struct TypeVec<schar, 3> { typedef char3 vec_type; };
template <> struct TypeVec<schar, 4> { typedef char4 vec_type; };
template <> struct TypeVec<char, 1> { typedef char vec_type; };
template <> struct TypeVec<char, 2> { typedef char2 vec_type; };
template <> struct TypeVec<char, 3> { typedef char3 vec_type; };
template <> struct TypeVec<char, 4> { typedef char4 vec_type; };
template <> struct TypeVec<short, 1> { typedef short vec_type; };
template <> struct TypeVec<short, 2> { typedef short2 vec_type; };
template <> struct TypeVec<short, 3> { typedef short3 vec_type; };
template <> struct TypeVec<short, 4> { typedef short4 vec_type; };
template <> struct TypeVec<ushort, 1> { typedef ushort vec_type; };
template <> struct TypeVec<ushort, 2> { typedef ushort2 vec_type; };
template <> struct TypeVec<ushort, 3> { typedef ushort3 vec_type; };
template <> struct TypeVec<ushort, 4> { typedef ushort4 vec_type; };
template <> struct TypeVec<int, 1> { typedef int vec_type; };
template <> struct TypeVec<int, 2> { typedef int2 vec_type; };
template <> struct TypeVec<int, 3> { typedef int3 vec_type; };
template <> struct TypeVec<int, 4> { typedef int4 vec_type; };
template <> struct TypeVec<uint, 1> { typedef uint vec_type; };
template <> struct TypeVec<uint, 2> { typedef uint2 vec_type; };
template <> struct TypeVec<uint, 3> { typedef uint3 vec_type; };
template <> struct TypeVec<uint, 4> { typedef uint4 vec_type; };
template <> struct TypeVec<float, 1> { typedef float vec_type; };
template <> struct TypeVec<float, 2> { typedef float2 vec_type; };
template <> struct TypeVec<float, 3> { typedef float3 vec_type; };
template <> struct TypeVec<float, 4> { typedef float4 vec_type; };
template <> struct TypeVec<double, 1> { typedef double vec_type; };
template <> struct TypeVec<double, 2> { typedef double2 vec_type; };
template <> struct TypeVec<double, 3> { typedef double3 vec_type; };
template <> struct TypeVec<double, 4> { typedef double4 vec_type; };
template <typename E> struct optiml_vec1 {
    typedef E elem_type;
    enum { cn = 1 };
    static __device__ __forceinline__ E get(const E& v, int) { return v; }
    static __device__ __forceinline__ E all(E v) { return v; }
    static __device__ __forceinline__ E make(E v) { return v; }
    static __device__ __forceinline__ E make(const E* v) { return *v; }
};
template <typename E, typename V> struct optiml_vec2 {
    typedef E elem_type;
    enum { cn = 2 };
    static __device__ __forceinline__ E get(const V& v, int i) { return i == 0 ? v.x : v.y; }
    static __device__ __forceinline__ V make(E x, E y) { V v; v.x = x; v.y = y; return v; }
    static __device__ __forceinline__ V make(const E* v) { return make(v[0], v[1]); }
    static __device__ __forceinline__ V all(E v) { return make(v, v); }
};
template <typename E, typename V> struct optiml_vec3 {
    typedef E elem_type;
    enum { cn = 3 };
    static __device__ __forceinline__ E get(const V& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : v.z; }
    static __device__ __forceinline__ V make(E x, E y, E z) { V v; v.x = x; v.y = y; v.z = z; return v; }
    static __device__ __forceinline__ V make(const E* v) { return make(v[0], v[1], v[2]); }
    static __device__ __forceinline__ V all(E v) { return make(v, v, v); }
};
template <typename E, typename V> struct optiml_vec4 {
    typedef E elem_type;
    enum { cn = 4 };
    static __device__ __forceinline__ E get(const V& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }
    static __device__ __forceinline__ V make(E x, E y, E z, E w) { V v; v.x = x; v.y = y; v.z = z; v.w = w; return v; }
    static __device__ __forceinline__ V make(const E* v) { return make(v[0], v[1], v[2], v[3]); }
    static __device__ __forceinline__ V all(E v) { return make(v, v, v, v); }
};
template <typename T> struct VecTraits;
template <> struct VecTraits<uchar> : optiml_vec1<uchar> {};
template <> struct VecTraits<uchar2> : optiml_vec2<uchar, uchar2> {};
template <> struct VecTraits<uchar3> : optiml_vec3<uchar, uchar3> {};
template <> struct VecTraits<uchar4> : optiml_vec4<uchar, uchar4> {};
template <> struct VecTraits<schar> : optiml_vec1<schar> {};
template <> struct VecTraits<char> : optiml_vec1<char> {};
template <> struct VecTraits<char2> : optiml_vec2<char, char2> {};
template <> struct VecTraits<char3> : optiml_vec3<char, char3> {};
template <> struct VecTraits<char4> : optiml_vec4<char, char4> {};
template <> struct VecTraits<short> : optiml_vec1<short> {};
template <> struct VecTraits<short2> : optiml_vec2<short, short2> {};
template <> struct VecTraits<short3> : optiml_vec3<short, short3> {};
template <> struct VecTraits<short4> : optiml_vec4<short, short4> {};
template <> struct VecTraits<ushort> : optiml_vec1<ushort> {};
template <> struct VecTraits<ushort2> : optiml_vec2<ushort, ushort2> {};
template <> struct VecTraits<ushort3> : optiml_vec3<ushort, ushort3> {};
template <> struct VecTraits<ushort4> : optiml_vec4<ushort, ushort4> {};
template <> struct VecTraits<int> : optiml_vec1<int> {};
template <> struct VecTraits<int2> : optiml_vec2<int, int2> {};
template <> struct VecTraits<int3> : optiml_vec3<int, int3> {};
template <> struct VecTraits<int4> : optiml_vec4<int, int4> {};
template <> struct VecTraits<uint> : optiml_vec1<uint> {};
template <> struct VecTraits<uint2> : optiml_vec2<uint, uint2> {};
template <> struct VecTraits<uint3> : optiml_vec3<uint, uint3> {};
template <> struct VecTraits<uint4> : optiml_vec4<uint, uint4> {};
template <> struct VecTraits<float> : optiml_vec1<float> {};
template <> struct VecTraits<float2> : optiml_vec2<float, float2> {};
template <> struct VecTraits<float3> : optiml_vec3<float, float3> {};
template <> struct VecTraits<float4> : optiml_vec4<float, float4> {};
template <> struct VecTraits<double> : optiml_vec1<double> {};
template <> struct VecTraits<double2> : optiml_vec2<double, double2> {};
template <> struct VecTraits<double3> : optiml_vec3<double, double3> {};
template <> struct VecTraits<double4> : optiml_vec4<double, double4> {};

// Function objects, and what the threads of a block or of a warp do together.
template <typename T> struct plus { __device__ __forceinline__ T operator()(T a, T b) const { return a + b; } };
template <typename T> struct minimum { __device__ __forceinline__ T operator()(T a, T b) const { return b < a ? b : a; } };
template <typename T> struct maximum { __device__ __forceinline__ T operator()(T a, T b) const { return a < b ? b : a; } };
template <typename T> struct less { __device__ __forceinline__ bool operator()(T a, T b) const { return a < b; } };
template <typename T> struct greater { __device__ __forceinline__ bool operator()(T a, T b) const { return a > b; } };
template <typename T> struct abs_func { __device__ __forceinline__ T operator()(T a) const { return a < T(0) ? -a : a; } };
template <typename T> struct identity { __device__ __forceinline__ T operator()(T a) const { return a; } };
template <typename A, typename R> struct unary_function { typedef A argument_type; typedef R result_type; };
template <typename A, typename B, typename R> struct binary_function { typedef A first_argument_type; typedef B second_argument_type; typedef R result_type; };

// Arithmetic of vectors, element by element, with one another and with numbers; what is smaller than an int becomes one, as in C.
template <typename A, typename B, int N> struct optiml_result {
    typedef typename VecTraits<A>::elem_type one_type;  // a name each: the grammar that marks conditions knows no typename in a sum
    typedef typename VecTraits<B>::elem_type other_type;
    typedef decltype(one_type() + other_type()) elem_type;
    typedef typename TypeVec<elem_type, N>::vec_type type;
    template <class F> static __device__ __forceinline__ type of(const A& a, const B& b) {
        elem_type made[N];
        for (int i = 0; i < N; ++i) made[i] = F::of(elem_type(VecTraits<A>::get(a, i)), elem_type(VecTraits<B>::get(b, i)));
        return VecTraits<type>::make(made);
    }
};
template <typename A, typename B, int N, int M> struct optiml_both {};
template <typename A, typename B, int N> struct optiml_both<A, B, N, N> : optiml_result<A, B, N> {};
template <typename A, typename B, int N> struct optiml_both<A, B, N, 1> : optiml_result<A, B, N> {};
template <typename A, typename B, int N> struct optiml_both<A, B, 1, N> : optiml_result<A, B, N> {};
template <typename A, typename B> struct optiml_both<A, B, 1, 1> {};
struct optiml_add { template <typename E> static __device__ __forceinline__ E of(E a, E b) { return a + b; } };
struct optiml_sub { template <typename E> static __device__ __forceinline__ E of(E a, E b) { return a - b; } };
struct optiml_mul { template <typename E> static __device__ __forceinline__ E of(E a, E b) { return a * b; } };
struct optiml_div { template <typename E> static __device__ __forceinline__ E of(E a, E b) { return a / b; } };
template <typename A, typename B, int N = VecTraits<A>::cn, int M = VecTraits<B>::cn> __device__ __forceinline__ typename optiml_both<A, B, N, M>::type operator+(const A& a, const B& b) {
    return optiml_both<A, B, N, M>::template of<optiml_add>(a, b);
}
template <typename A, typename B, int N = VecTraits<A>::cn, int M = VecTraits<B>::cn> __device__ __forceinline__ typename optiml_both<A, B, N, M>::type operator-(const A& a, const B& b) {
    return optiml_both<A, B, N, M>::template of<optiml_sub>(a, b);
}
template <typename A, typename B, int N = VecTraits<A>::cn, int M = VecTraits<B>::cn> __device__ __forceinline__ typename optiml_both<A, B, N, M>::type operator*(const A& a, const B& b) {
    return optiml_both<A, B, N, M>::template of<optiml_mul>(a, b);
}
template <typename A, typename B, int N = VecTraits<A>::cn, int M = VecTraits<B>::cn> __device__ __forceinline__ typename optiml_both<A, B, N, M>::type operator/(const A& a, const B& b) {
    return optiml_both<A, B, N, M>::template of<optiml_div>(a, b);
}

// Pixels beyond the border of an image.
struct optiml_replicate {
    static __device__ __forceinline__ int low(int i, int) { return i < 0 ? 0 : i; }
    static __device__ __forceinline__ int high(int i, int last) { return i > last ? last : i; }
};
struct optiml_reflect101 {
    static __device__ __forceinline__ int low(int i, int last) { return ::abs(i) % (last + 1); }
    static __device__ __forceinline__ int high(int i, int last) { return ::abs(last - ::abs(last - i)) % (last + 1); }
};
struct optiml_reflect {
    static __device__ __forceinline__ int low(int i, int last) { return (::abs(i) - (i < 0)) % (last + 1); }
    static __device__ __forceinline__ int high(int i, int last) { return last - ::abs(last - i) + (i > last); }
};
struct optiml_wrap {
    static __device__ __forceinline__ int low(int i, int last) { return i >= 0 ? i : i - (i - last) / (last + 1) * (last + 1); }
    static __device__ __forceinline__ int high(int i, int last) { return i <= last ? i : i % (last + 1); }
};
template <typename D, class Side> struct optiml_border {
    typedef D result_type;
    int last_row;
    int last_col;
    __host__ __device__ __forceinline__ optiml_border(int height, int width) : last_row(height - 1), last_col(width - 1) {}
    template <typename U> __host__ __device__ __forceinline__ optiml_border(int height, int width, U) : last_row(height - 1), last_col(width - 1) {}
    __device__ __forceinline__ int idx_row_low(int y) const { return Side::low(y, last_row); }
    __device__ __forceinline__ int idx_row_high(int y) const { return Side::high(y, last_row); }
    __device__ __forceinline__ int idx_row(int y) const { return idx_row_low(idx_row_high(y)); }
    __device__ __forceinline__ int idx_col_low(int x) const { return Side::low(x, last_col); }
    __device__ __forceinline__ int idx_col_high(int x) const { return Side::high(x, last_col); }
    __device__ __forceinline__ int idx_col(int x) const { return idx_col_low(idx_col_high(x)); }
    template <typename T> __device__ __forceinline__ D at(int y, int x, const T* data, size_t step) const { return saturate_cast<D>(((const T*)((const char*)data + idx_row(y) * step))[idx_col(x)]); }
    template <typename P> __device__ __forceinline__ D at(int y, int x, const P& src) const { return saturate_cast<D>(src(idx_row(y), idx_col(x))); }
};
template <typename D> struct BrdReplicate : optiml_border<D, optiml_replicate> { using optiml_border<D, optiml_replicate>::optiml_border; };
template <typename D> struct BrdReflect101 : optiml_border<D, optiml_reflect101> { using optiml_border<D, optiml_reflect101>::optiml_border; };
template <typename D> struct BrdReflect : optiml_border<D, optiml_reflect> { using optiml_border<D, optiml_reflect>::optiml_border; };
template <typename D> struct BrdWrap : optiml_border<D, optiml_wrap> { using optiml_border<D, optiml_wrap>::optiml_border; };
template <typename D> struct BrdConstant {
    typedef D result_type;
    int height;
    int width;
    D val;
    __host__ __device__ __forceinline__ BrdConstant(int height_, int width_, const D& val_ = D()) : height(height_), width(width_), val(val_) {}
    template <typename T> __device__ __forceinline__ D at(int y, int x, const T* data, size_t step) const { return x >= 0 && x < width && y >= 0 && y < height ? saturate_cast<D>(((const T*)((const char*)data + y * step))[x]) : val; }
    template <typename P> __device__ __forceinline__ D at(int y, int x, const P& src) const { return x >= 0 && x < width && y >= 0 && y < height ? saturate_cast<D>(src(y, x)) : val; }
};
template <typename P, typename B> struct BorderReader {
    typedef typename B::result_type elem_type;
    typedef int index_type;
    P ptr;
    B b;
    __host__ __device__ __forceinline__ BorderReader(const P& ptr_, const B& b_) : ptr(ptr_), b(b_) {}
    __device__ __forceinline__ elem_type operator()(int y, int x) const { return b.at(y, x, ptr); }
};

// Which pixels count.
struct WithOutMask {
    __device__ __forceinline__ void next() const {}
    __device__ __forceinline__ void setMask(int) const {}
    __device__ __forceinline__ bool operator()(int, int) const { return true; }
    __device__ __forceinline__ bool operator()(int, int, int) const { return true; }
};
struct SingleMask {
    PtrStepb mask;
    explicit __host__ __device__ __forceinline__ SingleMask(PtrStepb mask_) : mask(mask_) {}
    __device__ __forceinline__ bool operator()(int y, int x) const { return mask.ptr(y)[x] != 0; }
};

// Atomics and votes by their names for old devices.
struct Emulation {
    static __device__ __forceinline__ int syncthreadsOr(int pred) { return __syncthreads_or(pred); }
    struct smem {
        template <typename T> static __device__ __forceinline__ T atomicInc(T* address, T val) { return ::atomicInc(address, val); }
        template <typename T> static __device__ __forceinline__ T atomicAdd(T* address, T val) { return ::atomicAdd(address, val); }
        template <typename T> static __device__ __forceinline__ T atomicMin(T* address, T val) { return ::atomicMin(address, val); }
    };
    struct glob {
        template <typename T> static __device__ __forceinline__ T atomicAdd(T* address, T val) { return ::atomicAdd(address, val); }
    };
};
template <typename T> __device__ __forceinline__ T shfl(T val, int lane, int width = 32) { return __shfl_sync(0xffffffffu, val, lane, width); }
template <typename T> __device__ __forceinline__ T shfl_down(T val, unsigned int delta, int width = 32) { return __shfl_down_sync(0xffffffffu, val, delta, width); }
template <typename T> __device__ __forceinline__ T shfl_up(T val, unsigned int delta, int width = 32) { return __shfl_up_sync(0xffffffffu, val, delta, width); }
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
enum { LOG_WARP_SIZE = 5, WARP_SIZE = 32, WARP_SIZE_MASK = 31 };
struct Warp {
    static __device__ __forceinline__ uint laneId() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32; }
    static __device__ __forceinline__ uint warpId() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) / 32; }
};
// The result is in the first thread's `val` and in `smem[0]`.
template <int N, typename T, class Op> __device__ __forceinline__ void blockReduce(volatile T* smem, T& val, uint tid, const Op& op) {
    smem[tid] = val;
    __syncthreads();
    for (uint left = N; left > 1; left = (left + 1) / 2) {
        uint half = (left + 1) / 2;
        if (tid + half < left) smem[tid] = val = op(val, smem[tid + half]);
        __syncthreads();
    }
}
template <int N, typename T> __device__ __forceinline__ T blockScanInclusive(T data, volatile T* smem, uint tid) {
    smem[tid] = data;
    __syncthreads();
    for (uint by = 1; by < N; by *= 2) {
        T before = tid >= by ? smem[tid - by] : T(0);
        __syncthreads();
        smem[tid] = data = data + before;
        __syncthreads();
    }
    return data;
}
template <int N, typename T> __device__ __forceinline__ T blockScanExclusive(T data, volatile T* smem, uint tid) {
    return blockScanInclusive<N>(data, smem, tid) - data;
}
template <typename T, int N> struct MakeVec { typedef typename TypeVec<T, N>::vec_type type; };
}  // namespace cudev
}  // namespace cv
