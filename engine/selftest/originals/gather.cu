#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.at = { role = "in", size = "n", fill = { kind = "integers", low = 0, high = "n" } }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 2 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void gather(const float* x, const int* at, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = 0.5f * x[at[i]];
    }
}

void run_gather(const float* x, const int* at, float* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    gather<<<blocks, threads>>>(x, at, y, n);
}
