#pragma once
// Complex numbers of CUDA's cuComplex.h: names and results of the CUDA Math API's complex functions, in code of our own.
#include "optiml_cuda.h"

#define OPTIML_COMPLEX(VECTOR, REAL, TYPE, MAKE, F, ROOT, SIZE)                                                      \
    typedef VECTOR TYPE;                                                                                             \
    static __host__ __device__ inline TYPE MAKE(REAL x, REAL y) {                                                    \
        TYPE z;                                                                                                      \
        z.x = x;                                                                                                     \
        z.y = y;                                                                                                     \
        return z;                                                                                                    \
    }                                                                                                                \
    static __host__ __device__ inline REAL cuCreal##F(TYPE a) { return a.x; }                                        \
    static __host__ __device__ inline REAL cuCimag##F(TYPE a) { return a.y; }                                        \
    static __host__ __device__ inline TYPE cuConj##F(TYPE a) { return MAKE(a.x, -a.y); }                             \
    static __host__ __device__ inline TYPE cuCadd##F(TYPE a, TYPE b) { return MAKE(a.x + b.x, a.y + b.y); }          \
    static __host__ __device__ inline TYPE cuCsub##F(TYPE a, TYPE b) { return MAKE(a.x - b.x, a.y - b.y); }          \
    static __host__ __device__ inline TYPE cuCmul##F(TYPE a, TYPE b) {                                               \
        return MAKE(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);                                                   \
    }                                                                                                                \
    /* Scaled, so that the square of the divisor neither overflows nor vanishes. */                                  \
    static __host__ __device__ inline TYPE cuCdiv##F(TYPE a, TYPE b) {                                               \
        REAL one_over = REAL(1) / (SIZE(b.x) + SIZE(b.y));                                                           \
        REAL ax = a.x * one_over, ay = a.y * one_over, bx = b.x * one_over, by = b.y * one_over;                     \
        REAL rest = REAL(1) / (bx * bx + by * by);                                                                   \
        return MAKE((ax * bx + ay * by) * rest, (ay * bx - ax * by) * rest);                                         \
    }                                                                                                                \
    static __host__ __device__ inline REAL cuCabs##F(TYPE a) {                                                       \
        REAL x = SIZE(a.x), y = SIZE(a.y), large = x > y ? x : y, small = x > y ? y : x;                             \
        if (large + large == large) return large; /* zero and infinity */                                            \
        REAL part = small / large;                                                                                   \
        return large * ROOT(REAL(1) + part * part);                                                                  \
    }

OPTIML_COMPLEX(float2, float, cuFloatComplex, make_cuFloatComplex, f, sqrtf, fabsf)
OPTIML_COMPLEX(double2, double, cuDoubleComplex, make_cuDoubleComplex, , sqrt, fabs)
#undef OPTIML_COMPLEX

typedef cuFloatComplex cuComplex;
static __host__ __device__ inline cuComplex make_cuComplex(float x, float y) { return make_cuFloatComplex(x, y); }
static __host__ __device__ inline cuDoubleComplex cuComplexFloatToDouble(cuFloatComplex a) {
    return make_cuDoubleComplex(a.x, a.y);
}
static __host__ __device__ inline cuFloatComplex cuComplexDoubleToFloat(cuDoubleComplex a) {
    return make_cuFloatComplex(static_cast<float>(a.x), static_cast<float>(a.y));
}
static __host__ __device__ inline cuComplex cuCfmaf(cuComplex a, cuComplex b, cuComplex c) {
    return make_cuComplex(a.x * b.x + c.x - a.y * b.y, a.x * b.y + c.y + a.y * b.x);
}
static __host__ __device__ inline cuDoubleComplex cuCfma(cuDoubleComplex a, cuDoubleComplex b, cuDoubleComplex c) {
    return make_cuDoubleComplex(a.x * b.x + c.x - a.y * b.y, a.x * b.y + c.y + a.y * b.x);
}
