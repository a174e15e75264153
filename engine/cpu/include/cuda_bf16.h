// bfloat16 and its pair.
#pragma once
#include "optiml_small_float.h"

namespace optiml {
OPTIML_INLINE float from_bfloat16(uint16_t raw) { return bits<float>(static_cast<uint32_t>(raw) << 16); }

OPTIML_INLINE uint16_t to_bfloat16(float x) {
    auto u = bits<uint32_t>(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return static_cast<uint16_t>((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
}  // namespace optiml

OPTIML_SMALL_FLOAT(__nv_bfloat16, __nv_bfloat162, ::optiml::to_bfloat16, ::optiml::from_bfloat16)
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

OPTIML_INLINE float __bfloat162float(__nv_bfloat16 x) { return x; }
OPTIML_INLINE double __bfloat162double(__nv_bfloat16 x) { return float(x); }
OPTIML_INLINE __nv_bfloat16 __float2bfloat16(float x) { return __nv_bfloat16(x); }
OPTIML_INLINE __nv_bfloat16 __double2bfloat16(double x) { return __nv_bfloat16(x); }
OPTIML_INLINE __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
OPTIML_INLINE __nv_bfloat162 __float2bfloat162_rn(float x) { return {__nv_bfloat16(x), __nv_bfloat16(x)}; }
OPTIML_INLINE __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {__nv_bfloat16(x), __nv_bfloat16(y)}; }
OPTIML_INLINE __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {__nv_bfloat16(v.x), __nv_bfloat16(v.y)}; }
OPTIML_INLINE float2 __bfloat1622float2(__nv_bfloat162 v) { return {float(v.x), float(v.y)}; }
OPTIML_INLINE __nv_bfloat162 __bfloat162bfloat162(__nv_bfloat16 x) { return {x, x}; }
OPTIML_INLINE __nv_bfloat16 __low2bfloat16(__nv_bfloat162 v) { return v.x; }
OPTIML_INLINE __nv_bfloat16 __high2bfloat16(__nv_bfloat162 v) { return v.y; }
OPTIML_INLINE __nv_bfloat162 __low2bfloat162(__nv_bfloat162 v) { return {v.x, v.x}; }
OPTIML_INLINE __nv_bfloat162 __high2bfloat162(__nv_bfloat162 v) { return {v.y, v.y}; }
OPTIML_INLINE __nv_bfloat162 __lows2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.x, b.x}; }
OPTIML_INLINE __nv_bfloat162 __highs2bfloat162(__nv_bfloat162 a, __nv_bfloat162 b) { return {a.y, b.y}; }
OPTIML_INLINE __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
OPTIML_INLINE __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
OPTIML_INLINE int __bfloat162int_rn(__nv_bfloat16 x) { return __float2int_rn(x); }
OPTIML_INLINE int __bfloat162int_rz(__nv_bfloat16 x) { return __float2int_rz(x); }
OPTIML_INLINE int __bfloat162int_rd(__nv_bfloat16 x) { return __float2int_rd(x); }
OPTIML_INLINE int __bfloat162int_ru(__nv_bfloat16 x) { return __float2int_ru(x); }
OPTIML_INLINE unsigned __bfloat162uint_rn(__nv_bfloat16 x) { return __float2uint_rn(x); }
OPTIML_INLINE unsigned __bfloat162uint_rz(__nv_bfloat16 x) { return __float2uint_rz(x); }
OPTIML_INLINE __nv_bfloat16 __int2bfloat16_rn(int x) { return __nv_bfloat16(x); }
OPTIML_INLINE __nv_bfloat16 __uint2bfloat16_rn(unsigned x) { return __nv_bfloat16(x); }
OPTIML_INLINE unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.raw; }
OPTIML_INLINE short __bfloat16_as_short(__nv_bfloat16 x) { return static_cast<short>(x.raw); }
OPTIML_INLINE __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return __nv_bfloat16::of(x); }
OPTIML_INLINE __nv_bfloat16 __short_as_bfloat16(short x) { return __nv_bfloat16::of(static_cast<uint16_t>(x)); }
#define CUDART_INF_BF16 __ushort_as_bfloat16(0x7f80)
#define CUDART_ZERO_BF16 __ushort_as_bfloat16(0)
#define CUDART_ONE_BF16 __ushort_as_bfloat16(0x3f80)
