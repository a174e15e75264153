// c = relu(a * b + bias): a is m x k, b is k x n, one bias for each column; all row-major.
#include <cuda_runtime.h>

// optiml: args.a = { role = "in", size = "m*k", fill = "normal" }
// optiml: args.b = { role = "in", size = "k*n", fill = "normal" }
// optiml: args.bias = { role = "in", size = "n", fill = "normal" }
// optiml: args.c = { role = "out", size = "m*n" }
// optiml: check = [{ m = 1, n = 2, k = 1 }, { m = 7, n = 129, k = 33 }, { m = 64, n = 64, k = 64 }, { m = 65, n = 31, k = 17 }]
// optiml: time = [{ m = 2048, n = 2048, k = 2048 }]
__global__ void gemm_bias_relu_kernel(const float* a, const float* b, const float* bias, float* c, int m, int n,
                                      int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < m && col < n) {
        float sum = 0.0f;
        for (int i = 0; i < k; ++i) {
            sum += a[row * k + i] * b[i * n + col];
        }
        c[row * n + col] = fmaxf(sum + bias[col], 0.0f);
    }
}

void gemm_bias_relu(const float* a, const float* b, const float* bias, float* c, int m, int n, int k) {
    dim3 block(16, 16);
    dim3 grid((n + block.x - 1) / block.x, (m + block.y - 1) / block.y);
    gemm_bias_relu_kernel<<<grid, block>>>(a, b, bias, c, m, n, k);
}
