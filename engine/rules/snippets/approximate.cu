//: sqrtf
// The square root, approximately. A subnormal number counts as zero.
__device__ __forceinline__ float $name(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
//: rsqrtf
// The reciprocal square root, approximately. A subnormal number counts as zero.
__device__ __forceinline__ float $name(float x) {
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
//: expf
// The exponential, approximately. A subnormal result is zero.
__device__ __forceinline__ float $name(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}
//: logf
// The logarithm, approximately. A subnormal number counts as zero.
__device__ __forceinline__ float $name(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y * 0.693147181f;
}
//: tanhf
// The hyperbolic tangent by a fast exponential.
__device__ __forceinline__ float $name(float x) {
    return 1.0f - __fdividef(2.0f, __expf(2.0f * x) + 1.0f);
}
//: coshf
// The hyperbolic cosine by a fast exponential.
__device__ __forceinline__ float $name(float x) {
    const float e = __expf(fabsf(x));
    return 0.5f * (e + __fdividef(1.0f, e));
}
