#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = { kind = "integers", low = 0, high = 64 } }
// optiml: args.bins = { role = "inout", size = "64", fill = { kind = "constant", low = 0 } }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void histogram(const int* x, int* bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&bins[x[i]], 1);
    }
}

void run_histogram(const int* x, int* bins, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    histogram<<<blocks, threads>>>(x, bins, n);
}
