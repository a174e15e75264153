// Conversions of floats of four and eight bits: one sign bit, EXPONENT bits with a bias, FRACTION bits.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

#ifndef __DEVICE_TYPES_H__  // a program has it of the runtime's header
enum cudaRoundMode { cudaRoundNearest, cudaRoundZero, cudaRoundPosInf, cudaRoundMinInf };
#endif
typedef enum __nv_saturation_t { __NV_NOSAT, __NV_SATFINITE } __nv_saturation_t;

namespace optiml {
// What the bits without the sign stand for: up to `last` they are finite; `infinity` is 0 where there is none.
struct TinyFormat {
    int fraction, bias;
    unsigned last, infinity, nan, sign;
};
constexpr TinyFormat E4M3{3, 7, 0x7e, 0, 0x7f, 0x80}, E5M2{2, 15, 0x7b, 0x7c, 0x7f, 0x80}, E2M1{1, 1, 7, 0, 0, 8};

OPTIML_INLINE float from_tiny(const TinyFormat &f, unsigned bits) {
    unsigned magnitude = bits & (f.sign - 1), exponent = magnitude >> f.fraction;
    float sign = bits & f.sign ? -1.0f : 1.0f;
    if (magnitude > f.last) return f.infinity && magnitude == f.infinity ? sign * __builtin_inff() : __builtin_nanf("");
    float fraction = static_cast<float>((magnitude & ((1u << f.fraction) - 1)) + (exponent ? 1u << f.fraction : 0));
    return sign * __builtin_ldexpf(fraction, static_cast<int>(exponent ? exponent : 1) - f.bias - f.fraction);
}

// Rounded to nearest, ties to even.
OPTIML_INLINE unsigned to_tiny(const TinyFormat &f, double x, bool saturate) {
    if (x != x) return f.nan ? f.nan : f.last;  // the format without NaN takes its largest number for it
    unsigned sign = __builtin_signbit(x) ? f.sign : 0;
    double magnitude = __builtin_fabs(x), largest = from_tiny(f, f.last);
    unsigned beyond = saturate || !f.nan ? f.last : f.infinity ? f.infinity : f.nan;
    if (magnitude > 2 * largest) return sign | beyond;
    int exponent = 1 - f.bias;
    if (magnitude > 0 && __builtin_ilogb(magnitude) > exponent) exponent = __builtin_ilogb(magnitude);
    double count = __builtin_nearbyint(__builtin_ldexp(magnitude, f.fraction - exponent));
    unsigned bits = (static_cast<unsigned>(exponent - 1 + f.bias) << f.fraction) + static_cast<unsigned>(count);
    return sign | (bits > f.last ? beyond : bits);
}

template <class I_> OPTIML_INLINE I_ clamped(float x) {
    if (x != x) return 0;
    double low = static_cast<double>(std::numeric_limits<I_>::min()), high = static_cast<double>(std::numeric_limits<I_>::max());
    return x <= low ? std::numeric_limits<I_>::min() : x >= high ? std::numeric_limits<I_>::max() : static_cast<I_>(x);
}
}  // namespace optiml

// NAME, NAME2, NAME4: one number, two and four of them in one word; STEP: bits of one.
#define OPTIML_TINY_FLOAT(NAME, NAME2, NAME4, FORMAT, STEP, WORD, WORD2, WORD4)                                         \
    struct NAME {                                                                                                       \
        WORD __x;                                                                                                       \
        NAME() = default;                                                                                               \
        template <class T_, class = std::enable_if_t<std::is_arithmetic_v<T_>>>                                         \
        OPTIML_INLINE explicit NAME(T_ x) : __x(static_cast<WORD>(::optiml::to_tiny(FORMAT, static_cast<double>(x), true))) {} \
        OPTIML_INLINE explicit NAME(__half x) : NAME(float(x)) {}                                                       \
        OPTIML_INLINE explicit NAME(__nv_bfloat16 x) : NAME(float(x)) {}                                                \
        OPTIML_INLINE explicit operator float() const { return ::optiml::from_tiny(FORMAT, __x); }                      \
        OPTIML_INLINE explicit operator double() const { return float(*this); }                                         \
        OPTIML_INLINE explicit operator __half() const { return __half(float(*this)); }                                 \
        OPTIML_INLINE explicit operator __nv_bfloat16() const { return __nv_bfloat16(float(*this)); }                   \
        OPTIML_INLINE explicit operator bool() const { return float(*this) != 0.0f; }                                   \
        template <class I_, class = std::enable_if_t<std::is_integral_v<I_> && !std::is_same_v<I_, bool>>>              \
        OPTIML_INLINE explicit operator I_() const { return ::optiml::clamped<I_>(float(*this)); }                      \
    };                                                                                                                  \
    struct NAME2 {                                                                                                      \
        WORD2 __x;                                                                                                      \
        NAME2() = default;                                                                                              \
        OPTIML_INLINE explicit NAME2(float2 v) : __x(static_cast<WORD2>(NAME(v.x).__x | NAME(v.y).__x << STEP)) {}      \
        OPTIML_INLINE explicit NAME2(double2 v) : __x(static_cast<WORD2>(NAME(v.x).__x | NAME(v.y).__x << STEP)) {}     \
        OPTIML_INLINE explicit NAME2(__half2 v) : NAME2(__half22float2(v)) {}                                           \
        OPTIML_INLINE explicit NAME2(__nv_bfloat162 v) : NAME2(__bfloat1622float2(v)) {}                                \
        OPTIML_INLINE explicit operator float2() const {                                                                \
            return make_float2(::optiml::from_tiny(FORMAT, __x & ((1u << STEP) - 1)), ::optiml::from_tiny(FORMAT, __x >> STEP)); \
        }                                                                                                               \
        OPTIML_INLINE explicit operator __half2() const { return __float22half2_rn(float2(*this)); }                    \
        OPTIML_INLINE explicit operator __nv_bfloat162() const { return __float22bfloat162_rn(float2(*this)); }         \
    };                                                                                                                  \
    struct NAME4 {                                                                                                      \
        WORD4 __x;                                                                                                      \
        NAME4() = default;                                                                                              \
        OPTIML_INLINE NAME4(NAME2 low, NAME2 high)                                                                      \
            : __x(static_cast<WORD4>(low.__x | static_cast<WORD4>(static_cast<unsigned>(high.__x) << 2 * STEP))) {}     \
        OPTIML_INLINE explicit NAME4(float4 v) : NAME4(NAME2(make_float2(v.x, v.y)), NAME2(make_float2(v.z, v.w))) {}   \
        OPTIML_INLINE explicit NAME4(__half2 low, __half2 high) : NAME4(NAME2(low), NAME2(high)) {}                     \
        OPTIML_INLINE explicit NAME4(__nv_bfloat162 low, __nv_bfloat162 high) : NAME4(NAME2(low), NAME2(high)) {}       \
        OPTIML_INLINE explicit operator float4() const {                                                                \
            NAME2 low, high;                                                                                            \
            low.__x = static_cast<WORD2>(__x & ((1u << 2 * STEP) - 1));                                                 \
            high.__x = static_cast<WORD2>(__x >> 2 * STEP);                                                             \
            float2 a(low), b(high);                                                                                     \
            return make_float4(a.x, a.y, b.x, b.y);                                                                     \
        }                                                                                                               \
    };
