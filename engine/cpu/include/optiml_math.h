// Device mathematics. Fast intrinsics are computed exactly rather than with the GPU's larger error: a candidate is
// compared under a tolerance that allows for theirs.
#pragma once

// Overloads as CUDA declares them: mixed integers convert, float stays float.
#define OPTIML_MINMAX(T_)                                              \
    OPTIML_INLINE constexpr T_ min(T_ a, T_ b) { return b < a ? b : a; } \
    OPTIML_INLINE constexpr T_ max(T_ a, T_ b) { return a < b ? b : a; }
OPTIML_MINMAX(int)
OPTIML_MINMAX(unsigned)
OPTIML_MINMAX(long)
OPTIML_MINMAX(unsigned long)
OPTIML_MINMAX(long long)
OPTIML_MINMAX(unsigned long long)
#undef OPTIML_MINMAX
OPTIML_INLINE unsigned min(int a, unsigned b) { return min(static_cast<unsigned>(a), b); }
OPTIML_INLINE unsigned min(unsigned a, int b) { return min(a, static_cast<unsigned>(b)); }
OPTIML_INLINE unsigned max(int a, unsigned b) { return max(static_cast<unsigned>(a), b); }
OPTIML_INLINE unsigned max(unsigned a, int b) { return max(a, static_cast<unsigned>(b)); }
#define OPTIML_MIXED(A_, B_, R_)                                                                       \
    OPTIML_INLINE R_ min(A_ a, B_ b) { return min(static_cast<R_>(a), static_cast<R_>(b)); }             \
    OPTIML_INLINE R_ min(B_ a, A_ b) { return min(static_cast<R_>(a), static_cast<R_>(b)); }             \
    OPTIML_INLINE R_ max(A_ a, B_ b) { return max(static_cast<R_>(a), static_cast<R_>(b)); }             \
    OPTIML_INLINE R_ max(B_ a, A_ b) { return max(static_cast<R_>(a), static_cast<R_>(b)); }
OPTIML_MIXED(long, unsigned long, unsigned long)
OPTIML_MIXED(long long, unsigned long long, unsigned long long)
#undef OPTIML_MIXED
OPTIML_INLINE float min(float a, float b) { return __builtin_fminf(a, b); }
OPTIML_INLINE float max(float a, float b) { return __builtin_fmaxf(a, b); }
OPTIML_INLINE double min(double a, double b) { return __builtin_fmin(a, b); }
OPTIML_INLINE double max(double a, double b) { return __builtin_fmax(a, b); }
OPTIML_INLINE double min(float a, double b) { return __builtin_fmin(a, b); }
OPTIML_INLINE double min(double a, float b) { return __builtin_fmin(a, b); }
OPTIML_INLINE double max(float a, double b) { return __builtin_fmax(a, b); }
OPTIML_INLINE double max(double a, float b) { return __builtin_fmax(a, b); }
OPTIML_INLINE unsigned umin(unsigned a, unsigned b) { return min(a, b); }
OPTIML_INLINE unsigned umax(unsigned a, unsigned b) { return max(a, b); }
OPTIML_INLINE long long llmin(long long a, long long b) { return min(a, b); }
OPTIML_INLINE long long llmax(long long a, long long b) { return max(a, b); }

namespace optiml {
OPTIML_INLINE float saturate(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
// As CUDA documents the approximate quotient: nothing is left of it for divisors beyond 2^126.
OPTIML_INLINE float divide(float a, float b) {
    float size = __builtin_fabsf(b);
    return size > 0x1p126f && size < __builtin_inff() ? a * 0.0f : a / b;
}
OPTIML_INLINE float reciprocal_root(float x) { return 1.0f / __builtin_sqrtf(x); }
OPTIML_INLINE double reciprocal_root_double(double x) { return 1.0 / __builtin_sqrt(x); }
OPTIML_INLINE float exp10_float(float x) { return static_cast<float>(__builtin_pow(10.0, x)); }
OPTIML_INLINE void sincos_float(float x, float *s, float *c) { *s = __builtin_sinf(x), *c = __builtin_cosf(x); }
OPTIML_INLINE void sincos_double(double x, double *s, double *c) { *s = __builtin_sin(x), *c = __builtin_cos(x); }
constexpr double PI = 3.14159265358979323846;
OPTIML_INLINE double sin_pi(double x) { return __builtin_sin(PI * __builtin_remainder(x, 2.0)); }
OPTIML_INLINE double cos_pi(double x) { return __builtin_cos(PI * __builtin_remainder(x, 2.0)); }
template <class T_> OPTIML_INLINE void sincos_pi(T_ x, T_ *s, T_ *c) {
    *s = static_cast<T_>(sin_pi(x)), *c = static_cast<T_>(cos_pi(x));
}
OPTIML_INLINE double normal_cdf(double x) { return 0.5 * __builtin_erfc(-x * 0.70710678118654752440); }
OPTIML_INLINE double inverse_erf(double y) {  // Winitzki's start, then Newton's method
    if (y <= -1.0 || y >= 1.0) return y == 1.0 ? __builtin_inf() : y == -1.0 ? -__builtin_inf() : __builtin_nan("");
    double l = __builtin_log((1.0 - y) * (1.0 + y)), t = 2.0 / (PI * 0.147) + l / 2.0;
    double x = __builtin_copysign(__builtin_sqrt(__builtin_sqrt(t * t - l / 0.147) - t), y);
    for (int i = 0; i < 4; ++i) x -= (__builtin_erf(x) - y) / (1.12837916709551257390 * __builtin_exp(-x * x));
    return x;
}
}  // namespace optiml

// The C library declares some of these names itself, so they are macros: a macro does not clash with a declaration.
#define __expf(x) __builtin_expf(x)
#define __exp10f(x) ::optiml::exp10_float(x)
#define __logf(x) __builtin_logf(x)
#define __log2f(x) __builtin_log2f(x)
#define __log10f(x) __builtin_log10f(x)
#define __sinf(x) __builtin_sinf(x)
#define __cosf(x) __builtin_cosf(x)
#define __tanf(x) __builtin_tanf(x)
#define __tanhf(x) __builtin_tanhf(x)
#define __powf(x, y) __builtin_powf(x, y)
#define __sincosf(x, s, c) ::optiml::sincos_float(x, s, c)
#define sincosf(x, s, c) ::optiml::sincos_float(x, s, c)
#define sincos(x, s, c) ::optiml::sincos_double(x, s, c)
#define rsqrtf(x) ::optiml::reciprocal_root(x)
#define exp10f(x) ::optiml::exp10_float(x)
#define exp10(x) __builtin_pow(10.0, x)
#define sinpif(x) static_cast<float>(::optiml::sin_pi(x))
#define cospif(x) static_cast<float>(::optiml::cos_pi(x))
#define sinpi(x) ::optiml::sin_pi(x)
#define cospi(x) ::optiml::cos_pi(x)
#define sincospi(x, s, c) ::optiml::sincos_pi(x, s, c)
#define sincospif(x, s, c) ::optiml::sincos_pi(x, s, c)
#define normcdff(x) static_cast<float>(::optiml::normal_cdf(x))
#define normcdf(x) ::optiml::normal_cdf(x)
#define erfinvf(x) static_cast<float>(::optiml::inverse_erf(x))
#define erfinv(x) ::optiml::inverse_erf(x)
#define __fdividef(a, b) ::optiml::divide(a, b)
#define fdividef(a, b) ::optiml::divide(a, b)
#define __saturatef(x) ::optiml::saturate(x)
#define __frsqrt_rn(x) ::optiml::reciprocal_root(x)
OPTIML_INLINE float rsqrt(float x) { return optiml::reciprocal_root(x); }
OPTIML_INLINE double rsqrt(double x) { return optiml::reciprocal_root_double(x); }
OPTIML_INLINE float rcbrtf(float x) { return 1.0f / __builtin_cbrtf(x); }
OPTIML_INLINE double rcbrt(double x) { return 1.0 / __builtin_cbrt(x); }
OPTIML_INLINE float rhypotf(float a, float b) { return 1.0f / __builtin_hypotf(a, b); }
OPTIML_INLINE float norm3df(float a, float b, float c) { return __builtin_sqrtf(a * a + b * b + c * c); }
OPTIML_INLINE float rnorm3df(float a, float b, float c) { return 1.0f / norm3df(a, b, c); }
OPTIML_INLINE float norm4df(float a, float b, float c, float d) { return __builtin_sqrtf(a * a + b * b + c * c + d * d); }

// Arithmetic with a stated rounding. Only to nearest is exact here; the others differ in the last place.
#define OPTIML_ROUNDED(R_)                                                                                        \
    OPTIML_INLINE float __fadd_##R_(float a, float b) { volatile float r = a + b; return r; }                     \
    OPTIML_INLINE float __fsub_##R_(float a, float b) { volatile float r = a - b; return r; }                     \
    OPTIML_INLINE float __fmul_##R_(float a, float b) { volatile float r = a * b; return r; }                     \
    OPTIML_INLINE float __fdiv_##R_(float a, float b) { return a / b; }                                           \
    OPTIML_INLINE float __frcp_##R_(float a) { return 1.0f / a; }                                                 \
    OPTIML_INLINE float __fsqrt_##R_(float a) { return __builtin_sqrtf(a); }                                      \
    OPTIML_INLINE float __fmaf_##R_(float a, float b, float c) { return __builtin_fmaf(a, b, c); }                \
    OPTIML_INLINE double __dadd_##R_(double a, double b) { volatile double r = a + b; return r; }                 \
    OPTIML_INLINE double __dsub_##R_(double a, double b) { volatile double r = a - b; return r; }                 \
    OPTIML_INLINE double __dmul_##R_(double a, double b) { volatile double r = a * b; return r; }                 \
    OPTIML_INLINE double __ddiv_##R_(double a, double b) { return a / b; }                                        \
    OPTIML_INLINE double __drcp_##R_(double a) { return 1.0 / a; }                                                \
    OPTIML_INLINE double __dsqrt_##R_(double a) { return __builtin_sqrt(a); }                                     \
    OPTIML_INLINE double __fma_##R_(double a, double b, double c) { return __builtin_fma(a, b, c); }
OPTIML_ROUNDED(rn)
OPTIML_ROUNDED(rz)
OPTIML_ROUNDED(ru)
OPTIML_ROUNDED(rd)
#undef OPTIML_ROUNDED

// Conversions. Out-of-range values saturate, NaN gives 0, as on the GPU.
namespace optiml {
template <class I_, class F_>
OPTIML_INLINE I_ to_integer(F_ x) {
    if (x != x) return 0;
    constexpr F_ low = static_cast<F_>(std::numeric_limits<I_>::min()), high = static_cast<F_>(std::numeric_limits<I_>::max());
    return x <= low ? std::numeric_limits<I_>::min() : x >= high ? std::numeric_limits<I_>::max() : static_cast<I_>(x);
}
}  // namespace optiml
#define OPTIML_CONVERT(PREFIX, F_, NAME, I_)                                                                          \
    OPTIML_INLINE I_ __##PREFIX##2##NAME##_rn(F_ x) { return optiml::to_integer<I_>(__builtin_rint(x)); }              \
    OPTIML_INLINE I_ __##PREFIX##2##NAME##_rz(F_ x) { return optiml::to_integer<I_>(__builtin_trunc(x)); }             \
    OPTIML_INLINE I_ __##PREFIX##2##NAME##_ru(F_ x) { return optiml::to_integer<I_>(__builtin_ceil(x)); }              \
    OPTIML_INLINE I_ __##PREFIX##2##NAME##_rd(F_ x) { return optiml::to_integer<I_>(__builtin_floor(x)); }             \
    OPTIML_INLINE F_ __##NAME##2##PREFIX##_rn(I_ x) { return static_cast<F_>(x); }
OPTIML_CONVERT(float, float, int, int)
OPTIML_CONVERT(float, float, uint, unsigned)
OPTIML_CONVERT(float, float, ll, long long)
OPTIML_CONVERT(float, float, ull, unsigned long long)
OPTIML_CONVERT(double, double, int, int)
OPTIML_CONVERT(double, double, uint, unsigned)
OPTIML_CONVERT(double, double, ll, long long)
OPTIML_CONVERT(double, double, ull, unsigned long long)
#undef OPTIML_CONVERT
OPTIML_INLINE float __double2float_rn(double x) { return static_cast<float>(x); }
namespace optiml {
// `to` is where a value that is no F is rounded. A long double holds what is converted exactly.
template <class F_, class V_>
OPTIML_INLINE F_ directed(V_ x, F_ to) {
    F_ near = static_cast<F_>(x);
    long double exact = x, got = near;
    return (got < exact && near < to) || (got > exact && to < near) ? std::nextafter(near, to) : near;
}
}  // namespace optiml
#define OPTIML_DIRECTED(FROM, V_, TO, F_)                                                             \
    OPTIML_INLINE F_ __##FROM##2##TO##_rz(V_ x) { return optiml::directed<F_>(x, F_(0)); }              \
    OPTIML_INLINE F_ __##FROM##2##TO##_ru(V_ x) { return optiml::directed<F_>(x, __builtin_inf()); }   \
    OPTIML_INLINE F_ __##FROM##2##TO##_rd(V_ x) { return optiml::directed<F_>(x, -__builtin_inf()); }
OPTIML_DIRECTED(int, int, float, float)
OPTIML_DIRECTED(uint, unsigned, float, float)
OPTIML_DIRECTED(ll, long long, float, float)
OPTIML_DIRECTED(ull, unsigned long long, float, float)
OPTIML_DIRECTED(ll, long long, double, double)
OPTIML_DIRECTED(ull, unsigned long long, double, double)
OPTIML_DIRECTED(double, double, float, float)
#undef OPTIML_DIRECTED
OPTIML_INLINE int __float_as_int(float x) { return optiml::bits<int>(x); }
OPTIML_INLINE unsigned __float_as_uint(float x) { return optiml::bits<unsigned>(x); }
OPTIML_INLINE float __int_as_float(int x) { return optiml::bits<float>(x); }
OPTIML_INLINE float __uint_as_float(unsigned x) { return optiml::bits<float>(x); }
OPTIML_INLINE long long __double_as_longlong(double x) { return optiml::bits<long long>(x); }
OPTIML_INLINE double __longlong_as_double(long long x) { return optiml::bits<double>(x); }
OPTIML_INLINE int __double2hiint(double x) { return static_cast<int>(optiml::bits<uint64_t>(x) >> 32); }
OPTIML_INLINE int __double2loint(double x) { return static_cast<int>(optiml::bits<uint64_t>(x)); }

// Bits.
OPTIML_INLINE int __popc(unsigned x) { return __builtin_popcount(x); }
OPTIML_INLINE int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
OPTIML_INLINE int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
OPTIML_INLINE int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
OPTIML_INLINE int __ffs(int x) { return __builtin_ffs(x); }
OPTIML_INLINE int __ffsll(long long x) { return __builtin_ffsll(x); }
OPTIML_INLINE unsigned __brev(unsigned x) {
    x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
    x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
    x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
    return __builtin_bswap32(x);
}
OPTIML_INLINE unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32 | __brev(static_cast<unsigned>(x >> 32));
}
OPTIML_INLINE unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t all = static_cast<uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        unsigned s = selector >> (4 * i) & 0xf;
        auto byte = static_cast<unsigned>(all >> (8 * (s & 7)) & 0xff);
        if (s & 8) byte = byte & 0x80 ? 0xff : 0;
        result |= byte << (8 * i);
    }
    return result;
}
OPTIML_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) << (shift & 31) >> 32);
}
OPTIML_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}
OPTIML_INLINE unsigned __funnelshift_lc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? low : __funnelshift_l(low, high, shift);
}
OPTIML_INLINE unsigned __funnelshift_rc(unsigned low, unsigned high, unsigned shift) {
    return shift >= 32 ? high : __funnelshift_r(low, high, shift);
}
OPTIML_INLINE int __mul24(int a, int b) { return ((a << 8) >> 8) * ((b << 8) >> 8); }
OPTIML_INLINE unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
OPTIML_INLINE int __mulhi(int a, int b) { return static_cast<int>(static_cast<int64_t>(a) * b >> 32); }
OPTIML_INLINE unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
OPTIML_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
OPTIML_INLINE unsigned __usad(unsigned a, unsigned b, unsigned c) { return (a > b ? a - b : b - a) + c; }
OPTIML_INLINE int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) c += static_cast<signed char>(a >> (8 * i)) * static_cast<signed char>(b >> (8 * i));
    return c;
}
OPTIML_INLINE unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
    for (int i = 0; i < 4; ++i) c += (a >> (8 * i) & 0xff) * (b >> (8 * i) & 0xff);
    return c;
}
OPTIML_INLINE int __dp2a_lo(int a, int b, int c) {
    return c + static_cast<short>(a) * static_cast<signed char>(b) + static_cast<short>(a >> 16) * static_cast<signed char>(b >> 8);
}
OPTIML_INLINE unsigned __dp2a_lo(unsigned a, unsigned b, unsigned c) { return c + (a & 0xffff) * (b & 0xff) + (a >> 16) * (b >> 8 & 0xff); }
OPTIML_INLINE int __dp2a_hi(int a, int b, int c) { return __dp2a_lo(a, b >> 16, c); }
OPTIML_INLINE unsigned __dp2a_hi(unsigned a, unsigned b, unsigned c) { return __dp2a_lo(a, b >> 16, c); }
OPTIML_INLINE unsigned __sad(int a, int b, unsigned c) {
    return (a > b ? static_cast<unsigned>(a) - static_cast<unsigned>(b) : static_cast<unsigned>(b) - static_cast<unsigned>(a)) + c;
}
OPTIML_INLINE int __hadd(int a, int b) { return static_cast<int>((static_cast<int64_t>(a) + b) >> 1); }
OPTIML_INLINE int __rhadd(int a, int b) { return static_cast<int>((static_cast<int64_t>(a) + b + 1) >> 1); }
OPTIML_INLINE unsigned __uhadd(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<uint64_t>(a) + b) >> 1); }
OPTIML_INLINE unsigned __urhadd(unsigned a, unsigned b) { return static_cast<unsigned>((static_cast<uint64_t>(a) + b + 1) >> 1); }
OPTIML_INLINE long long __mul64hi(long long a, long long b) { return static_cast<long long>(static_cast<__int128>(a) * b >> 64); }
OPTIML_INLINE double __hiloint2double(int high, int low) {
    return optiml::bits<double>(static_cast<uint64_t>(static_cast<unsigned>(high)) << 32 | static_cast<unsigned>(low));
}
OPTIML_INLINE unsigned __fns(unsigned mask, unsigned base, int offset) {  // the offset-th set bit, up or down from the base
    const int step = offset < 0 ? -1 : 1;
    int left = offset < 0 ? -offset : offset;
    for (int at = static_cast<int>(base); at >= 0 && at < 32; at += step) {
        if (!(mask >> at & 1)) continue;
        if (left <= 1) return static_cast<unsigned>(at);
        --left;
    }
    return 0xffffffffu;
}
