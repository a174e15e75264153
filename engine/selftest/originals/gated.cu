#include <cuda_runtime.h>

// optiml: args.g = { role = "in", size = "n", fill = "normal" }
// optiml: args.u = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void gated(const float* g, const float* u, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = g[i] / (1.0f + expf(-g[i])) * u[i];
    }
}

void run_gated(const float* g, const float* u, float* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    gated<<<blocks, threads>>>(g, u, y, n);
}
