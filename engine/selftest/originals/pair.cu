#include <cuda_runtime.h>

__device__ float twice(float v) {
    return 2.0f * v;
}

__global__ void other(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] = twice(x[i]) - 1.0f;
    }
}

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void shift(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = twice(x[i]) + 3.0f;
    }
}

void run_pair(const float* x, float* y, float* z, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    shift<<<blocks, threads>>>(x, y, n);
    other<<<blocks, threads>>>(z, n);
}
