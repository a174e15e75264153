#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = { kind = "integers", low = 0, high = 2000000000 } }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void mix(const unsigned int* x, unsigned int* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = (x[i] * 2654435761u) ^ (x[i] / 7u);
    }
}

void run_mix(const unsigned int* x, unsigned int* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    mix<<<blocks, threads>>>(x, y, n);
}
