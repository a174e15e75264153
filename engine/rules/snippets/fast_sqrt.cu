// The square root by its approximate reciprocal. Zeros and infinities stay what they are.
__device__ __forceinline__ float $name(float x) { return x * rsqrtf(fminf(x + 1.17549435e-38f, 3.402823466e38f)); }

