// A finite impulse response of nine taps along a signal; outside of it the signal is zero.
#include <cuda_runtime.h>

#define RADIUS 4

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.taps = { role = "in", size = "9", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4096 }, { n = 10007 }]
// optiml: time = [{ n = 33554432 }]
__global__ void stencil1d_kernel(const float* x, const float* taps, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float sum = 0.0f;
    for (int k = -RADIUS; k <= RADIUS; ++k) {
        int j = i + k;
        if (j >= 0 && j < n) {
            sum += taps[k + RADIUS] * x[j];
        }
    }
    y[i] = sum;
}

void stencil1d(const float* x, const float* taps, float* y, int n) {
    int threads = 256;
    stencil1d_kernel<<<(n + threads - 1) / threads, threads>>>(x, taps, y, n);
}
