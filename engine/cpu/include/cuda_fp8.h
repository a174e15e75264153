// Floats of eight bits.
#pragma once
#include "optiml_tiny_float.h"

typedef unsigned char __nv_fp8_storage_t;
typedef unsigned short __nv_fp8x2_storage_t;
typedef unsigned int __nv_fp8x4_storage_t;
typedef enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 } __nv_fp8_interpretation_t;

OPTIML_TINY_FLOAT(__nv_fp8_e4m3, __nv_fp8x2_e4m3, __nv_fp8x4_e4m3, ::optiml::E4M3, 8, uint8_t, uint16_t, uint32_t)
OPTIML_TINY_FLOAT(__nv_fp8_e5m2, __nv_fp8x2_e5m2, __nv_fp8x4_e5m2, ::optiml::E5M2, 8, uint8_t, uint16_t, uint32_t)

namespace optiml {
OPTIML_INLINE const TinyFormat &format_of(__nv_fp8_interpretation_t i) { return i == __NV_E5M2 ? E5M2 : E4M3; }
}  // namespace optiml

OPTIML_INLINE __nv_fp8_storage_t __nv_cvt_double_to_fp8(double x, __nv_saturation_t s, __nv_fp8_interpretation_t i) {
    return static_cast<__nv_fp8_storage_t>(::optiml::to_tiny(::optiml::format_of(i), x, s == __NV_SATFINITE));
}
OPTIML_INLINE __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, __nv_saturation_t s, __nv_fp8_interpretation_t i) {
    return __nv_cvt_double_to_fp8(x, s, i);
}
OPTIML_INLINE __nv_fp8_storage_t __nv_cvt_halfraw_to_fp8(__half x, __nv_saturation_t s, __nv_fp8_interpretation_t i) {
    return __nv_cvt_double_to_fp8(float(x), s, i);
}
OPTIML_INLINE __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_fp8(__nv_bfloat16 x, __nv_saturation_t s, __nv_fp8_interpretation_t i) {
    return __nv_cvt_double_to_fp8(float(x), s, i);
}
OPTIML_INLINE __nv_fp8x2_storage_t __nv_cvt_double2_to_fp8x2(double2 x, __nv_saturation_t s, __nv_fp8_interpretation_t i) {
    return static_cast<__nv_fp8x2_storage_t>(__nv_cvt_double_to_fp8(x.x, s, i) | __nv_cvt_double_to_fp8(x.y, s, i) << 8);
}
OPTIML_INLINE __nv_fp8x2_storage_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t s, __nv_fp8_interpretation_t i) {
    return __nv_cvt_double2_to_fp8x2(make_double2(x.x, x.y), s, i);
}
OPTIML_INLINE __nv_fp8x2_storage_t __nv_cvt_halfraw2_to_fp8x2(__half2 x, __nv_saturation_t s, __nv_fp8_interpretation_t i) {
    return __nv_cvt_float2_to_fp8x2(__half22float2(x), s, i);
}
OPTIML_INLINE __nv_fp8x2_storage_t __nv_cvt_bfloat16raw2_to_fp8x2(__nv_bfloat162 x, __nv_saturation_t s, __nv_fp8_interpretation_t i) {
    return __nv_cvt_float2_to_fp8x2(__bfloat1622float2(x), s, i);
}
OPTIML_INLINE __half __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, __nv_fp8_interpretation_t i) {
    return __half(::optiml::from_tiny(::optiml::format_of(i), x));
}
OPTIML_INLINE __half2 __nv_cvt_fp8x2_to_halfraw2(__nv_fp8x2_storage_t x, __nv_fp8_interpretation_t i) {
    return {__nv_cvt_fp8_to_halfraw(static_cast<uint8_t>(x), i), __nv_cvt_fp8_to_halfraw(static_cast<uint8_t>(x >> 8), i)};
}

// Powers of two from 2^-127; the sign is dropped.
OPTIML_INLINE __nv_fp8_storage_t __nv_cvt_double_to_e8m0(double x, __nv_saturation_t s, cudaRoundMode mode) {
    if (x != x) return 0xff;
    double magnitude = __builtin_fabs(x);
    if (magnitude <= 0x1p-127) return 0;
    if (magnitude >= 0x1p128) return s == __NV_SATFINITE ? 0xfe : 0xff;
    int exponent = __builtin_ilogb(magnitude);
    int code = exponent + 127 + (mode == cudaRoundPosInf && magnitude > __builtin_ldexp(1.0, exponent));
    return static_cast<__nv_fp8_storage_t>(code < 0xff ? code : s == __NV_SATFINITE ? 0xfe : 0xff);
}
OPTIML_INLINE __nv_fp8_storage_t __nv_cvt_float_to_e8m0(float x, __nv_saturation_t s, cudaRoundMode mode) {
    return __nv_cvt_double_to_e8m0(x, s, mode);
}
OPTIML_INLINE __nv_fp8_storage_t __nv_cvt_bfloat16raw_to_e8m0(__nv_bfloat16 x, __nv_saturation_t s, cudaRoundMode mode) {
    return __nv_cvt_double_to_e8m0(float(x), s, mode);
}
OPTIML_INLINE __nv_fp8x2_storage_t __nv_cvt_float2_to_e8m0x2(float2 x, __nv_saturation_t s, cudaRoundMode mode) {
    return static_cast<__nv_fp8x2_storage_t>(__nv_cvt_float_to_e8m0(x.x, s, mode) | __nv_cvt_float_to_e8m0(x.y, s, mode) << 8);
}
struct __nv_fp8_e8m0 {
    __nv_fp8_storage_t __x;
    __nv_fp8_e8m0() = default;
    template <class T_, class = std::enable_if_t<std::is_arithmetic_v<T_>>>
    OPTIML_INLINE explicit __nv_fp8_e8m0(T_ x) : __x(__nv_cvt_double_to_e8m0(static_cast<double>(x), __NV_SATFINITE, cudaRoundPosInf)) {}
    OPTIML_INLINE explicit __nv_fp8_e8m0(__half x) : __nv_fp8_e8m0(float(x)) {}
    OPTIML_INLINE explicit __nv_fp8_e8m0(__nv_bfloat16 x) : __nv_fp8_e8m0(float(x)) {}
    OPTIML_INLINE explicit operator float() const { return __x == 0xff ? __builtin_nanf("") : __builtin_ldexpf(1.0f, __x - 127); }
    OPTIML_INLINE explicit operator double() const { return float(*this); }
    OPTIML_INLINE explicit operator __half() const { return __half(float(*this)); }
    OPTIML_INLINE explicit operator __nv_bfloat16() const { return __nv_bfloat16(float(*this)); }
};
OPTIML_INLINE __nv_bfloat16 __nv_cvt_e8m0_to_bf16raw(__nv_fp8_storage_t x) {
    __nv_fp8_e8m0 e;
    e.__x = x;
    return __nv_bfloat16(e);
}
