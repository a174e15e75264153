// y = GELU(x + bias) over a row-major matrix, bias per column, with the usual tanh approximation.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.bias = { role = "in", size = "cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 32, cols = 64 }, { rows = 101, cols = 30 }]
// optiml: time = [{ rows = 8192, cols = 4096 }]

__device__ float gelu(float v) {
    const float kSqrt2OverPi = 0.7978845608f;
    return 0.5f * v * (1.0f + tanhf(kSqrt2OverPi * (v + 0.044715f * v * v * v)));
}

__global__ void gelu_bias_kernel(const float* x, const float* bias, float* y, int rows, int cols) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols) {
        y[i] = gelu(x[i] + bias[i % cols]);
    }
}

void gelu_bias(const float* x, const float* bias, float* y, int rows, int cols) {
    constexpr int threads = 128;
    const int total = rows * cols;
    gelu_bias_kernel<<<(total + threads - 1) / threads, threads>>>(x, bias, y, rows, cols);
    if (cudaError_t e = cudaGetLastError(); e != cudaSuccess) {
        std::fprintf(stderr, "gelu_bias_kernel: %s\n", cudaGetErrorName(e));
        std::abort();
    }
}
