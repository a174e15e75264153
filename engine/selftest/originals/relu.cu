#include <cuda_runtime.h>

// optiml: args.x = { role = "inout", size = "n", fill = "normal" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void relu(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] = x[i] > 0.0f ? x[i] : 0.01f * x[i];
    }
}

void run_relu(float* x, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    relu<<<blocks, threads>>>(x, n);
}
