// Floats of four bits; one alone lies in the lower half of a byte.
#pragma once
#include "cuda_fp8.h"

typedef unsigned char __nv_fp4_storage_t, __nv_fp4x2_storage_t;
typedef unsigned short __nv_fp4x4_storage_t;
typedef enum __nv_fp4_interpretation_t { __NV_E2M1 } __nv_fp4_interpretation_t;

OPTIML_TINY_FLOAT(__nv_fp4_e2m1, __nv_fp4x2_e2m1, __nv_fp4x4_e2m1, ::optiml::E2M1, 4, uint8_t, uint8_t, uint16_t)

// Numbers of this format are rounded to nearest: CUDA takes no other way.
OPTIML_INLINE __nv_fp4_storage_t __nv_cvt_float_to_fp4(float x, __nv_fp4_interpretation_t, cudaRoundMode) { return __nv_fp4_e2m1(x).__x; }
OPTIML_INLINE __nv_fp4x2_storage_t __nv_cvt_float2_to_fp4x2(float2 x, __nv_fp4_interpretation_t, cudaRoundMode) {
    return __nv_fp4x2_e2m1(x).__x;
}
OPTIML_INLINE __nv_fp4x2_storage_t __nv_cvt_halfraw2_to_fp4x2(__half2 x, __nv_fp4_interpretation_t, cudaRoundMode) {
    return __nv_fp4x2_e2m1(x).__x;
}
OPTIML_INLINE __nv_fp4x2_storage_t __nv_cvt_bfloat16raw2_to_fp4x2(__nv_bfloat162 x, __nv_fp4_interpretation_t, cudaRoundMode) {
    return __nv_fp4x2_e2m1(x).__x;
}
OPTIML_INLINE __half __nv_cvt_fp4_to_halfraw(__nv_fp4_storage_t x, __nv_fp4_interpretation_t) {
    return __half(::optiml::from_tiny(::optiml::E2M1, x & 15u));
}
OPTIML_INLINE __half2 __nv_cvt_fp4x2_to_halfraw2(__nv_fp4x2_storage_t x, __nv_fp4_interpretation_t) {
    return {__half(::optiml::from_tiny(::optiml::E2M1, x & 15u)), __half(::optiml::from_tiny(::optiml::E2M1, x >> 4))};
}
