#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.y = { role = "in", size = "n", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.total = { role = "inout", size = "1", fill = { kind = "constant", low = 0 } }
// optiml: deterministic = false
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void dot(const float* x, const float* y, float* total, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float product = i < n ? x[i] * y[i] : 0.0f;
    for (int offset = 16; offset > 0; offset /= 2) {
        product += __shfl_down_sync(0xffffffffu, product, offset);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(total, product);
    }
}

void run_dot(const float* x, const float* y, float* total, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    dot<<<blocks, threads>>>(x, y, total, n);
}
