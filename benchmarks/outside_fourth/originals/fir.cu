// FIR filter with 17 taps in constant memory; samples outside of the signal are zero.
#include <cuda_runtime.h>

#define RADIUS 8
#define THREADS 256

__constant__ float c_taps[2 * RADIUS + 1];

// optiml: args.c_taps = { fill = "normal" }
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 9 }, { n = 903 }, { n = 4096 }, { n = 10007 }]
// optiml: time = [{ n = 33554432 }]

__global__ void fir_kernel(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float sum = 0.0f;
    for (int t = -RADIUS; t <= RADIUS; ++t) {
        int j = i + t;
        if (j >= 0 && j < n) {
            sum += c_taps[t + RADIUS] * x[j];
        }
    }
    y[i] = sum;
}

cudaError_t fir_set_taps(const float* taps) {
    return cudaMemcpyToSymbol(c_taps, taps, sizeof(c_taps));
}

cudaError_t fir(const float* x, float* y, int n, cudaStream_t stream) {
    if (n <= 0) {
        return cudaSuccess;
    }
    const int blocks = (n + THREADS - 1) / THREADS;
    fir_kernel<<<blocks, THREADS, 0, stream>>>(x, y, n);
    return cudaGetLastError();
}
