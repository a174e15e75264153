#include <cuda_runtime.h>
#include <cuda_bf16.h>

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void brains(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float v = __bfloat162float(x[i]);
        y[i] = __float2bfloat16(v * v + 0.5f);
    }
}

void run_brains(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    brains<<<blocks, threads>>>(x, y, n);
}
