// Counts how often each byte value occurs. Adds to what `bins` already holds.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>

#define NUM_BINS 256
#define THREADS 256

// optiml: args.data = { role = "in", size = "n", fill = { kind = "integers", low = 0, high = 256 } }
// optiml: args.bins = { role = "inout", size = "256", fill = { kind = "constant", low = 0 } }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4096 }, { n = 10007 }]
// optiml: time = [{ n = 67108864 }]

__global__ void histogram_kernel(const unsigned char* data, int* bins, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&bins[data[i]], 1);
    }
}

int histogram(const uint8_t* data, int* bins, int n) {
    if (n <= 0) {
        return 0;
    }
    cudaError_t status = cudaMemset(bins, 0, NUM_BINS * sizeof(int));
    if (status == cudaSuccess) {
        histogram_kernel<<<(n + THREADS - 1) / THREADS, THREADS>>>(data, bins, n);
        status = cudaGetLastError();
    }
    if (status != cudaSuccess) {
        printf("histogram failed: %s\n", cudaGetErrorString(status));
        return -1;
    }
    return 0;
}
