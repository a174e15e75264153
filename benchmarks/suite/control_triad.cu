// a = b + s * c in vectors of four: nothing is left to gain.
#include <cuda_runtime.h>

// optiml: args.b = { role = "in", size = "n", fill = "normal" }
// optiml: args.c = { role = "in", size = "n", fill = "normal" }
// optiml: args.a = { role = "out", size = "n" }
// optiml: args.s = { value = "1.5" }
// optiml: check = [{ n = 1 }, { n = 257 }, { n = 2500 }]
// optiml: time = [{ n = 16777216 }]
__global__ void __launch_bounds__(256) control_triad_kernel(const float4* __restrict__ b, const float4* __restrict__ c,
                                                            float4* __restrict__ a, float s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 x = b[i];
        float4 y = c[i];
        a[i] = make_float4(x.x + s * y.x, x.y + s * y.y, x.z + s * y.z, x.w + s * y.w);
    }
}

void control_triad(const float4* b, const float4* c, float4* a, float s, int n) {
    control_triad_kernel<<<(n + 255) / 256, 256>>>(b, c, a, s, n);
}
