#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void stencil(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float left = i > 0 ? x[i - 1] : 0.0f;
        float right = i + 1 < n ? x[i + 1] : 0.0f;
        y[i] = 0.25f * left + 0.5f * x[i] + 0.25f * right;
    }
}

void run_stencil(const float* x, float* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    stencil<<<blocks, threads>>>(x, y, n);
}
