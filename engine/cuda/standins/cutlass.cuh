// Stands in for what kernels without tensor cores take from CUTLASS: number types, arrays of them, loads of fixed width.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#define CUTLASS_HOST_DEVICE __forceinline__ __host__ __device__
#define CUTLASS_DEVICE __forceinline__ __device__
#define CUTLASS_PRAGMA_UNROLL _Pragma("unroll")
#define CUTLASS_PRAGMA_NO_UNROLL _Pragma("unroll 1")

namespace cutlass {
using half_t = __half;
using bfloat16_t = __nv_bfloat16;
enum class FloatRoundStyle { round_indeterminate, round_toward_zero, round_to_nearest, round_to_nearest_satfinite, round_toward_infinity, round_toward_neg_infinity };

template <typename T> struct sizeof_bits { static constexpr int value = int(sizeof(T) * 8); };

template <int Bits, bool Signed = true> struct integer_subbyte {
    using xint_t = typename std::conditional<Signed, int, unsigned>::type;
    static constexpr uint8_t bits_mask_ = uint8_t(0xff >> (8 - Bits));
    uint8_t storage;
    integer_subbyte() = default;
    CUTLASS_HOST_DEVICE integer_subbyte(int value) : storage(uint8_t(value) & bits_mask_) {}
    CUTLASS_HOST_DEVICE integer_subbyte(unsigned value) : storage(uint8_t(value) & bits_mask_) {}
    CUTLASS_HOST_DEVICE operator xint_t() const {
        if (Signed && ((storage >> (Bits - 1)) & 1)) { return xint_t(storage) | ~xint_t(bits_mask_); }
        return xint_t(storage);
    }
    CUTLASS_HOST_DEVICE bool operator==(integer_subbyte const& other) const { return storage == other.storage; }
    CUTLASS_HOST_DEVICE bool operator!=(integer_subbyte const& other) const { return storage != other.storage; }
};
using uint1b_t = integer_subbyte<1, false>;
using int2b_t = integer_subbyte<2, true>;
using uint2b_t = integer_subbyte<2, false>;
using int4b_t = integer_subbyte<4, true>;
using uint4b_t = integer_subbyte<4, false>;
template <int Bits, bool Signed> struct sizeof_bits<integer_subbyte<Bits, Signed>> { static constexpr int value = Bits; };

template <typename T, int N, bool RegisterSized = (sizeof_bits<T>::value >= 32)> struct Array {
    using Element = T;
    using value_type = T;
    using reference = T&;
    using const_reference = T const&;
    static constexpr int kElements = N;
    T storage[N];
    CUTLASS_HOST_DEVICE static constexpr int size() { return N; }
    CUTLASS_HOST_DEVICE void clear() { fill(T(0)); }
    CUTLASS_HOST_DEVICE void fill(T const& value) { for (int i = 0; i < N; ++i) { storage[i] = value; } }
    CUTLASS_HOST_DEVICE T& operator[](int i) { return storage[i]; }
    CUTLASS_HOST_DEVICE T const& operator[](int i) const { return storage[i]; }
    CUTLASS_HOST_DEVICE T* data() { return storage; }
    CUTLASS_HOST_DEVICE T const* data() const { return storage; }
};
// Of types below 32 bits: elements are reached through references that are objects.
template <typename T, int N> struct Array<T, N, false> {
    using Element = T;
    using value_type = T;
    static constexpr int kElements = N;
    struct reference {
        T* at;
        CUTLASS_HOST_DEVICE reference(T* at_) : at(at_) {}
        reference(reference const&) = default;
        CUTLASS_HOST_DEVICE reference& operator=(T const& value) { *at = value; return *this; }
        CUTLASS_HOST_DEVICE reference& operator=(reference const& other) { *at = *other.at; return *this; }
        CUTLASS_HOST_DEVICE T get() const { return *at; }
        CUTLASS_HOST_DEVICE operator T() const { return *at; }
        CUTLASS_HOST_DEVICE explicit operator int() const { return int(*at); }
        CUTLASS_HOST_DEVICE explicit operator float() const { return float(*at); }
    };
    struct const_reference {
        T const* at;
        CUTLASS_HOST_DEVICE const_reference(T const* at_) : at(at_) {}
        CUTLASS_HOST_DEVICE T get() const { return *at; }
        CUTLASS_HOST_DEVICE operator T() const { return *at; }
        CUTLASS_HOST_DEVICE explicit operator int() const { return int(*at); }
        CUTLASS_HOST_DEVICE explicit operator float() const { return float(*at); }
    };
    T storage[N];
    CUTLASS_HOST_DEVICE static constexpr int size() { return N; }
    CUTLASS_HOST_DEVICE void clear() { fill(T(0)); }
    CUTLASS_HOST_DEVICE void fill(T const& value) { for (int i = 0; i < N; ++i) { storage[i] = value; } }
    CUTLASS_HOST_DEVICE reference operator[](int i) { return reference(storage + i); }
    CUTLASS_HOST_DEVICE const_reference operator[](int i) const { return const_reference(storage + i); }
    CUTLASS_HOST_DEVICE T* data() { return storage; }
    CUTLASS_HOST_DEVICE T const* data() const { return storage; }
    CUTLASS_HOST_DEVICE T* raw_data() { return storage; }
    CUTLASS_HOST_DEVICE T const* raw_data() const { return storage; }
};
template <typename T, int N, int Alignment = sizeof_bits<T>::value * N / 8> struct alignas(Alignment) AlignedArray : public Array<T, N> {};

template <typename T, typename S, FloatRoundStyle Round = FloatRoundStyle::round_to_nearest> struct NumericConverter {
    CUTLASS_HOST_DEVICE static T convert(S const& s) { return T(float(s)); }
    CUTLASS_HOST_DEVICE T operator()(S const& s) const { return convert(s); }
};
template <typename T, typename S, int N, FloatRoundStyle Round = FloatRoundStyle::round_to_nearest> struct NumericArrayConverter {
    CUTLASS_HOST_DEVICE static Array<T, N> convert(Array<S, N> const& s) {
        Array<T, N> result;
        for (int i = 0; i < N; ++i) { result.storage[i] = T(float(s.storage[i])); }
        return result;
    }
    CUTLASS_HOST_DEVICE Array<T, N> operator()(Array<S, N> const& s) const { return convert(s); }
};

template <typename A, typename B> CUTLASS_HOST_DEVICE constexpr A ceil_div(A a, B b) { return A((a + b - 1) / b); }
template <typename A, typename B> CUTLASS_HOST_DEVICE constexpr A round_up(A a, B b) { return A((a + b - 1) / b * b); }
template <typename T> CUTLASS_HOST_DEVICE T abs(T const& value) { return value < T(0) ? T(-value) : value; }

namespace platform {
template <typename T> struct numeric_limits;
template <> struct numeric_limits<float> { CUTLASS_HOST_DEVICE static float infinity() { return __int_as_float(0x7f800000); } CUTLASS_HOST_DEVICE static float max() { return 3.402823466e+38f; } CUTLASS_HOST_DEVICE static float lowest() { return -3.402823466e+38f; } };
template <> struct numeric_limits<__half> { CUTLASS_HOST_DEVICE static __half infinity() { return __half(__int_as_float(0x7f800000)); } CUTLASS_HOST_DEVICE static __half max() { return __half(65504.0f); } CUTLASS_HOST_DEVICE static __half lowest() { return __half(-65504.0f); } };
template <> struct numeric_limits<__nv_bfloat16> { CUTLASS_HOST_DEVICE static __nv_bfloat16 infinity() { return __nv_bfloat16(__int_as_float(0x7f800000)); } CUTLASS_HOST_DEVICE static __nv_bfloat16 max() { return __nv_bfloat16(__int_as_float(0x7f7f0000)); } CUTLASS_HOST_DEVICE static __nv_bfloat16 lowest() { return __nv_bfloat16(__int_as_float(int(0xff7f0000))); } };
}  // namespace platform

namespace layout {
template <int Interleave> struct ColumnMajorInterleaved { static constexpr int kInterleave = Interleave; };
}  // namespace layout

namespace arch {
template <int Bytes> struct optiml_bytes;
template <> struct optiml_bytes<16> { using type = uint4; };
template <> struct optiml_bytes<8> { using type = uint2; };
template <> struct optiml_bytes<4> { using type = unsigned int; };
template <> struct optiml_bytes<2> { using type = unsigned short; };
template <> struct optiml_bytes<1> { using type = unsigned char; };
template <typename AccessType, int Bytes> struct global_load {
    CUTLASS_DEVICE global_load(AccessType& to, void const* from, bool guard) {
        using unit = typename optiml_bytes<(Bytes > 16 ? 16 : Bytes)>::type;
        if (guard) {
            for (int i = 0; i < Bytes / int(sizeof(unit)); ++i) {
                unit const word = static_cast<unit const*>(from)[i];
                memcpy(reinterpret_cast<char*>(&to) + i * sizeof(unit), &word, sizeof(unit));
            }
        }
    }
};
template <typename AccessType, int Bytes> struct global_store {
    CUTLASS_DEVICE global_store(AccessType const& from, void* to, bool guard) {
        using unit = typename optiml_bytes<(Bytes > 16 ? 16 : Bytes)>::type;
        if (guard) {
            for (int i = 0; i < Bytes / int(sizeof(unit)); ++i) {
                unit word;
                memcpy(&word, reinterpret_cast<char const*>(&from) + i * sizeof(unit), sizeof(unit));
                static_cast<unit*>(to)[i] = word;
            }
        }
    }
};
}  // namespace arch
}  // namespace cutlass
