#include <cuda_runtime.h>

#define THREADS 128

// optiml: args.x = { role = "in", size = "n", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.y = { role = "out", size = "blocks" }
// optiml: check = [{ n = 1, blocks = 32 }, { n = 903, blocks = 32 }, { n = 9001, blocks = 32 }]
// optiml: time = [{ n = 33554432, blocks = 32 }]

// Partial sums, compensated in each thread (Kahan).
__global__ void steady(const float* x, float* y, size_t n) {
    __shared__ float sums[THREADS];
    float sum = 0.0f, lost = 0.0f;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
        float term = x[i] - lost;
        float next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) {
            sums[threadIdx.x] += sums[threadIdx.x + step];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        y[blockIdx.x] = sums[0];
    }
}

void run_steady(const float* x, float* y, size_t n, int blocks) {
    steady<<<blocks, THREADS>>>(x, y, n);
}
