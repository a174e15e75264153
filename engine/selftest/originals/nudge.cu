#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void nudge(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i] + 1.0e-4f * sinf(x[i]);
    }
}

void run_nudge(const float* x, float* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    nudge<<<blocks, threads>>>(x, y, n);
}
