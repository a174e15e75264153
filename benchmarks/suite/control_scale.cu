// y = s * x in vectors of four: nothing is left to gain. (A bare copy could not be certified: a copied input would pass.)
#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: args.s = { value = "1.5" }
// optiml: check = [{ n = 1 }, { n = 257 }, { n = 2500 }]
// optiml: time = [{ n = 16777216 }]
__global__ void __launch_bounds__(256)
    control_scale_kernel(const float4* __restrict__ x, float4* __restrict__ y, float s, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float4 v = x[i];
        y[i] = make_float4(s * v.x, s * v.y, s * v.z, s * v.w);
    }
}

void control_scale(const float4* x, float4* y, float s, int n) {
    control_scale_kernel<<<(n + 255) / 256, 256>>>(x, y, s, n);
}
