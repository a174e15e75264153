// What half and bfloat16 share. Arithmetic is done in float and rounded once: exact for + - * / and square roots, since
// float has more than twice the digits; fused multiply-adds go through double.
#pragma once
#include "optiml_cuda.h"

// S: scalar type; S2: pair; NARROW(double or float) -> bits, rounded to nearest even; WIDE(bits) -> float.
#define OPTIML_SMALL_FLOAT(S_, S2, NARROW, WIDE)                                                                       \
    struct S_##_raw {                                                                                                  \
        unsigned short x;                                                                                              \
    };                                                                                                                 \
    struct S2##_raw {                                                                                                  \
        unsigned short x, y;                                                                                           \
    };                                                                                                                 \
    struct S_ {                                                                                                        \
        uint16_t raw;                                                                                                 \
        S_() = default;                                                                                                \
        OPTIML_INLINE S_(float x) : raw(NARROW(x)) {}                                                                  \
        OPTIML_INLINE S_(double x) : raw(NARROW(static_cast<float>(x))) {}                                             \
        template <class I_, class = std::enable_if_t<std::is_integral_v<I_>>>                                           \
        OPTIML_INLINE S_(I_ x) : raw(NARROW(static_cast<float>(x))) {}                                                  \
        OPTIML_INLINE S_(S_##_raw bits) : raw(bits.x) {}                                                               \
        OPTIML_INLINE operator S_##_raw() const { return {raw}; }                                                      \
        OPTIML_INLINE operator float() const { return WIDE(raw); }                                                    \
        OPTIML_INLINE S_ &operator+=(S_ o);                                                                             \
        OPTIML_INLINE S_ &operator-=(S_ o);                                                                             \
        OPTIML_INLINE S_ &operator*=(S_ o);                                                                             \
        OPTIML_INLINE S_ &operator/=(S_ o);                                                                             \
        static OPTIML_INLINE S_ of(uint16_t raw) {                                                                     \
            S_ s;                                                                                                      \
            s.raw = raw;                                                                                              \
            return s;                                                                                                 \
        }                                                                                                             \
    };                                                                                                                \
    struct __attribute__((aligned(4))) S2 {                                                                           \
        S_ x, y;                                                                                                       \
        S2() = default;                                                                                               \
        OPTIML_INLINE S2(S_ x, S_ y) : x(x), y(y) {}                                                                    \
        OPTIML_INLINE S2(S2##_raw bits) : x(S_::of(bits.x)), y(S_::of(bits.y)) {}                                      \
        OPTIML_INLINE operator S2##_raw() const { return {x.raw, y.raw}; }                                             \
        OPTIML_INLINE S2 &operator+=(S2 o);                                                                           \
        OPTIML_INLINE S2 &operator-=(S2 o);                                                                           \
        OPTIML_INLINE S2 &operator*=(S2 o);                                                                           \
        OPTIML_INLINE S2 &operator/=(S2 o);                                                                           \
    };                                                                                                                \
    OPTIML_SMALL_OPERATOR(S_, S2, +, __hadd)                                                                           \
    OPTIML_SMALL_OPERATOR(S_, S2, -, __hsub)                                                                           \
    OPTIML_SMALL_OPERATOR(S_, S2, *, __hmul)                                                                           \
    OPTIML_SMALL_OPERATOR(S_, S2, /, __hdiv)                                                                           \
    OPTIML_INLINE S_ __hadd_rn(S_ a, S_ b) { return __hadd(a, b); }                                                      \
    OPTIML_INLINE S_ __hsub_rn(S_ a, S_ b) { return __hsub(a, b); }                                                      \
    OPTIML_INLINE S_ __hmul_rn(S_ a, S_ b) { return __hmul(a, b); }                                                      \
    OPTIML_INLINE S2 __h2div(S2 a, S2 b) { return {__hdiv(a.x, b.x), __hdiv(a.y, b.y)}; }                             \
    OPTIML_INLINE S_ operator-(S_ a) { return S_::of(static_cast<uint16_t>(a.raw ^ 0x8000)); }                           \
    OPTIML_INLINE S_ operator+(S_ a) { return a; }                                                                      \
    OPTIML_INLINE S2 operator-(S2 a) { return {-a.x, -a.y}; }                                                         \
    OPTIML_INLINE S_ __hneg(S_ a) { return -a; }                                                                        \
    OPTIML_INLINE S2 __hneg2(S2 a) { return -a; }                                                                     \
    OPTIML_INLINE S_ __habs(S_ a) { return S_::of(static_cast<uint16_t>(a.raw & 0x7fff)); }                              \
    OPTIML_INLINE S2 __habs2(S2 a) { return {__habs(a.x), __habs(a.y)}; }                                             \
    OPTIML_SMALL_COMPARE(S_, S2, ==, __heq, __hbeq2)                                                                            \
    OPTIML_SMALL_COMPARE(S_, S2, !=, __hne, __hbne2)                                                                            \
    OPTIML_SMALL_COMPARE(S_, S2, <, __hlt, __hblt2)                                                                             \
    OPTIML_SMALL_COMPARE(S_, S2, <=, __hle, __hble2)                                                                            \
    OPTIML_SMALL_COMPARE(S_, S2, >, __hgt, __hbgt2)                                                                             \
    OPTIML_SMALL_COMPARE(S_, S2, >=, __hge, __hbge2)                                                                            \
    OPTIML_INLINE bool __hisnan(S_ a) { return float(a) != float(a); }                                                 \
    OPTIML_INLINE int __hisinf(S_ a) { return __builtin_isinf_sign(float(a)); }                                        \
    OPTIML_INLINE S_ __hfma(S_ a, S_ b, S_ c) {                                                                           \
        return S_(static_cast<float>(static_cast<double>(float(a)) * float(b) + float(c)));                            \
    }                                                                                                                 \
    OPTIML_INLINE S2 __hfma2(S2 a, S2 b, S2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }             \
    OPTIML_INLINE S_ __hfma_relu(S_ a, S_ b, S_ c) {                                                                      \
        S_ r = __hfma(a, b, c);                                                                                        \
        return float(r) > 0.0f ? r : S_(0.0f);                                                                         \
    }                                                                                                                 \
    OPTIML_INLINE S_ __hfma_sat(S_ a, S_ b, S_ c) { return S_(optiml::saturate(__hfma(a, b, c))); }                        \
    OPTIML_INLINE S_ __hmax(S_ a, S_ b) { return S_(__builtin_fmaxf(a, b)); }                                             \
    OPTIML_INLINE S_ __hmin(S_ a, S_ b) { return S_(__builtin_fminf(a, b)); }                                             \
    OPTIML_INLINE S2 __hmax2(S2 a, S2 b) { return {__hmax(a.x, b.x), __hmax(a.y, b.y)}; }                             \
    OPTIML_INLINE S2 __hmin2(S2 a, S2 b) { return {__hmin(a.x, b.x), __hmin(a.y, b.y)}; }                             \
    OPTIML_SMALL_FUNCTION(S_, S2, hexp, h2exp, __builtin_expf)                                                         \
    OPTIML_SMALL_FUNCTION(S_, S2, hexp2, h2exp2, __builtin_exp2f)                                                      \
    OPTIML_SMALL_FUNCTION(S_, S2, hexp10, h2exp10, optiml::exp10_float)                                                \
    OPTIML_SMALL_FUNCTION(S_, S2, hlog, h2log, __builtin_logf)                                                         \
    OPTIML_SMALL_FUNCTION(S_, S2, hlog2, h2log2, __builtin_log2f)                                                      \
    OPTIML_SMALL_FUNCTION(S_, S2, hlog10, h2log10, __builtin_log10f)                                                   \
    OPTIML_SMALL_FUNCTION(S_, S2, hsqrt, h2sqrt, __builtin_sqrtf)                                                      \
    OPTIML_SMALL_FUNCTION(S_, S2, hrsqrt, h2rsqrt, optiml::reciprocal_root)                                            \
    OPTIML_SMALL_FUNCTION(S_, S2, hrcp, h2rcp, 1.0f /)                                                                 \
    OPTIML_SMALL_FUNCTION(S_, S2, hsin, h2sin, __builtin_sinf)                                                         \
    OPTIML_SMALL_FUNCTION(S_, S2, hcos, h2cos, __builtin_cosf)                                                         \
    OPTIML_SMALL_FUNCTION(S_, S2, htanh, h2tanh, __builtin_tanhf)                                                      \
    OPTIML_SMALL_FUNCTION(S_, S2, htanh_approx, h2tanh_approx, __builtin_tanhf)                                        \
    OPTIML_SMALL_FUNCTION(S_, S2, hfloor, h2floor, __builtin_floorf)                                                   \
    OPTIML_SMALL_FUNCTION(S_, S2, hceil, h2ceil, __builtin_ceilf)                                                      \
    OPTIML_SMALL_FUNCTION(S_, S2, htrunc, h2trunc, __builtin_truncf)                                                   \
    OPTIML_SMALL_FUNCTION(S_, S2, hrint, h2rint, __builtin_rintf)                                                      \
    OPTIML_INLINE S2 __lowhigh2highlow(S2 a) { return {a.y, a.x}; }                                                   \
    OPTIML_INLINE float __low2float(S2 a) { return a.x; }                                                             \
    OPTIML_INLINE float __high2float(S2 a) { return a.y; }

#define OPTIML_SMALL_OPERATOR(S_, S2, OP, NAME)                                                        \
    OPTIML_INLINE S_ NAME(S_ a, S_ b) { return S_(float(a) OP float(b)); }                                \
    OPTIML_INLINE S_ operator OP(S_ a, S_ b) { return NAME(a, b); }                                      \
    OPTIML_INLINE S_ &S_::operator OP##=(S_ o) { return *this = NAME(*this, o); }                        \
    OPTIML_INLINE S2 NAME##2(S2 a, S2 b) { return {NAME(a.x, b.x), NAME(a.y, b.y)}; }                 \
    OPTIML_INLINE S2 NAME##2_rn(S2 a, S2 b) { return NAME##2(a, b); }                                 \
    OPTIML_INLINE S2 operator OP(S2 a, S2 b) { return NAME##2(a, b); }                                \
    OPTIML_INLINE S2 &S2::operator OP##=(S2 o) { return *this = NAME##2(*this, o); }
#define OPTIML_SMALL_COMPARE(S_, S2, OP, NAME, PAIR)                                                         \
    OPTIML_INLINE bool NAME(S_ a, S_ b) { return float(a) OP float(b); }                                \
    OPTIML_INLINE bool operator OP(S_ a, S_ b) { return float(a) OP float(b); }                         \
    OPTIML_INLINE S2 NAME##2(S2 a, S2 b) {                                                            \
        return {S_(NAME(a.x, b.x) ? 1.0f : 0.0f), S_(NAME(a.y, b.y) ? 1.0f : 0.0f)};                    \
    }                                                                                                 \
    OPTIML_INLINE bool PAIR(S2 a, S2 b) { return NAME(a.x, b.x) && NAME(a.y, b.y); }
#define OPTIML_SMALL_FUNCTION(S_, S2, NAME, NAME2, F_)                  \
    OPTIML_INLINE S_ NAME(S_ a) { return S_(F_(float(a))); }              \
    OPTIML_INLINE S2 NAME2(S2 a) { return {NAME(a.x), NAME(a.y)}; }
