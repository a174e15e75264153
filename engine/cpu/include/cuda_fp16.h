// half and half2.
#pragma once
#include "optiml_small_float.h"

namespace optiml {
OPTIML_INLINE float from_half(uint16_t raw) {
#ifdef __F16C__
    return __builtin_ia32_vcvtph2ps((short __attribute__((vector_size(16)))){static_cast<short>(raw)})[0];
#else
    uint32_t sign = static_cast<uint32_t>(raw & 0x8000) << 16, exponent = raw >> 10 & 0x1f, fraction = raw & 0x3ff;
    if (exponent == 0x1f) return bits<float>(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return bits<float>(sign | (exponent + 112) << 23 | fraction << 13);
    float small = static_cast<float>(fraction) * 0x1p-24f;
    return sign ? -small : small;
#endif
}

OPTIML_INLINE uint16_t to_half(float x) {
#ifdef __F16C__
    return static_cast<uint16_t>(__builtin_ia32_vcvtps2ph((float __attribute__((vector_size(16)))){x}, 0)[0]);
#else
    auto u = bits<uint32_t>(x);
    auto sign = static_cast<uint16_t>(u >> 16 & 0x8000);
    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00);
    if (u >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00);  // rounds to infinity
    if (u >= 0x38800000u) {
        u += 0xfff + (u >> 13 & 1) - 0x38000000u;
        return static_cast<uint16_t>(sign | u >> 13);
    }
    // Below the smallest normal number: adding 0.5 leaves the rounded digits at the end of the fraction.
    float shifted = bits<float>(u) + 0.5f;
    return static_cast<uint16_t>(sign | (bits<uint32_t>(shifted) - 0x3f000000u));
#endif
}
}  // namespace optiml

OPTIML_SMALL_FLOAT(__half, __half2, ::optiml::to_half, ::optiml::from_half)
using half = __half;
using half2 = __half2;
using nv_half = __half;
using nv_half2 = __half2;

OPTIML_INLINE float __half2float(__half x) { return x; }
OPTIML_INLINE double __half2double(__half x) { return float(x); }
OPTIML_INLINE __half __float2half(float x) { return __half(x); }
OPTIML_INLINE __half __double2half(double x) { return __half(x); }
OPTIML_INLINE __half __float2half_rn(float x) { return __half(x); }
OPTIML_INLINE __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
OPTIML_INLINE __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
OPTIML_INLINE __half2 __float22half2_rn(float2 v) { return {__half(v.x), __half(v.y)}; }
OPTIML_INLINE float2 __half22float2(__half2 v) { return {float(v.x), float(v.y)}; }
OPTIML_INLINE __half2 __half2half2(__half x) { return {x, x}; }
OPTIML_INLINE __half __low2half(__half2 v) { return v.x; }
OPTIML_INLINE __half __high2half(__half2 v) { return v.y; }
OPTIML_INLINE __half2 __low2half2(__half2 v) { return {v.x, v.x}; }
OPTIML_INLINE __half2 __high2half2(__half2 v) { return {v.y, v.y}; }
OPTIML_INLINE __half2 __lows2half2(__half2 a, __half2 b) { return {a.x, b.x}; }
OPTIML_INLINE __half2 __highs2half2(__half2 a, __half2 b) { return {a.y, b.y}; }
OPTIML_INLINE __half2 __halves2half2(__half x, __half y) { return {x, y}; }
OPTIML_INLINE __half2 make_half2(__half x, __half y) { return {x, y}; }
OPTIML_INLINE int __half2int_rn(__half x) { return __float2int_rn(x); }
OPTIML_INLINE int __half2int_rz(__half x) { return __float2int_rz(x); }
OPTIML_INLINE int __half2int_rd(__half x) { return __float2int_rd(x); }
OPTIML_INLINE int __half2int_ru(__half x) { return __float2int_ru(x); }
OPTIML_INLINE unsigned __half2uint_rn(__half x) { return __float2uint_rn(x); }
OPTIML_INLINE unsigned __half2uint_rz(__half x) { return __float2uint_rz(x); }
OPTIML_INLINE __half __int2half_rn(int x) { return __half(x); }
OPTIML_INLINE __half __uint2half_rn(unsigned x) { return __half(x); }
OPTIML_INLINE unsigned short __half_as_ushort(__half x) { return x.raw; }
OPTIML_INLINE short __half_as_short(__half x) { return static_cast<short>(x.raw); }
OPTIML_INLINE __half __ushort_as_half(unsigned short x) { return __half::of(x); }
OPTIML_INLINE __half __short_as_half(short x) { return __half::of(static_cast<uint16_t>(x)); }
OPTIML_INLINE __half __float2half_rz(float x) {
    __half h(x);
    bool away = __builtin_fabsf(float(h)) > __builtin_fabsf(x);
    return away ? __half::of(static_cast<uint16_t>(h.raw - 1)) : h;
}
#define CUDART_INF_FP16 __ushort_as_half(0x7c00)
#define CUDART_NAN_FP16 __ushort_as_half(0x7fff)
#define CUDART_ZERO_FP16 __ushort_as_half(0)
#define CUDART_ONE_FP16 __ushort_as_half(0x3c00)
#define CUDART_MAX_NORMAL_FP16 __ushort_as_half(0x7bff)
