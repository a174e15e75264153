#include <cuda_runtime.h>
#include <cuda_fp16.h>

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void halves(const half* x, half* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = __float2half(1.5f * __half2float(x[i]) + 0.25f);
    }
}

void run_halves(const half* x, half* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    halves<<<blocks, threads>>>(x, y, n);
}
