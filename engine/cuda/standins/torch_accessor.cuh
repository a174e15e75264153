// Stands in for PyTorch's tensor accessors: a pointer, the sizes and the strides of a tensor, in elements.
#pragma once
namespace torch {
template <typename T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };
template <typename T> struct DefaultPtrTraits { typedef T* PtrType; };
namespace headeronly {
template <typename T, size_t N, typename index_t> class optiml_accessor {
public:
    __host__ __device__ optiml_accessor(T* data, const index_t* sizes, const index_t* strides) : data_(data), sizes_(sizes), strides_(strides) {}
    __device__ optiml_accessor<T, N - 1, index_t> operator[](index_t i) const { return optiml_accessor<T, N - 1, index_t>(data_ + strides_[0] * i, sizes_ + 1, strides_ + 1); }
    __device__ index_t size(int i) const { return sizes_[i]; }
    __device__ index_t stride(int i) const { return strides_[i]; }
    __device__ T* data() const { return data_; }
    T* data_;
    const index_t* sizes_;
    const index_t* strides_;
};
template <typename T, typename index_t> class optiml_accessor<T, 1, index_t> {
public:
    __host__ __device__ optiml_accessor(T* data, const index_t* sizes, const index_t* strides) : data_(data), sizes_(sizes), strides_(strides) {}
    __device__ T& operator[](index_t i) const { return data_[strides_[0] * i]; }
    __device__ index_t size(int i) const { return sizes_[i]; }
    __device__ index_t stride(int i) const { return strides_[i]; }
    __device__ T* data() const { return data_; }
    T* data_;
    const index_t* sizes_;
    const index_t* strides_;
};
template <typename T, size_t N> struct optiml_element { template <typename index_t> static __device__ optiml_accessor<T, N - 1, index_t> at(T* data, const index_t* sizes, const index_t* strides, index_t i) { return optiml_accessor<T, N - 1, index_t>(data + strides[0] * i, sizes + 1, strides + 1); } };
template <typename T> struct optiml_element<T, 1> { template <typename index_t> static __device__ T& at(T* data, const index_t*, const index_t* strides, index_t i) { return data[strides[0] * i]; } };

template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits, typename index_t = long> struct HeaderOnlyGenericPackedTensorAccessor {
    T* data_;
    index_t sizes_[N];
    index_t strides_[N];
    __device__ decltype(auto) operator[](index_t i) const { return optiml_element<T, N>::at(data_, sizes_, strides_, i); }
    __device__ index_t size(int i) const { return sizes_[i]; }
    __device__ index_t stride(int i) const { return strides_[i]; }
    __device__ T* data() const { return data_; }
};
template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits, typename index_t = long> using GenericPackedTensorAccessor = HeaderOnlyGenericPackedTensorAccessor<T, N, PtrTraits, index_t>;
template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits> using PackedTensorAccessor32 = HeaderOnlyGenericPackedTensorAccessor<T, N, PtrTraits, int>;
template <typename T, size_t N, template <typename U> class PtrTraits = DefaultPtrTraits> using PackedTensorAccessor64 = HeaderOnlyGenericPackedTensorAccessor<T, N, PtrTraits, long>;
}  // namespace headeronly
using headeronly::GenericPackedTensorAccessor;
using headeronly::PackedTensorAccessor32;
using headeronly::PackedTensorAccessor64;
}  // namespace torch
namespace at {
using torch::DefaultPtrTraits;
using torch::RestrictPtrTraits;
using torch::GenericPackedTensorAccessor;
using torch::PackedTensorAccessor32;
using torch::PackedTensorAccessor64;
}  // namespace at
