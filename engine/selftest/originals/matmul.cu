#include <cuda_runtime.h>

// optiml: args.a = { role = "in", size = "m*k", fill = "normal" }
// optiml: args.b = { role = "in", size = "k*n", fill = "normal" }
// optiml: args.c = { role = "out", size = "m*n" }
// optiml: check = [{ m = 1, n = 1, k = 1 }, { m = 7, n = 33, k = 19 }, { m = 40, n = 24, k = 17 }]
// optiml: time = [{ m = 1024, n = 1024, k = 1024 }]
__global__ void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < m && col < n) {
        float sum = 0.0f;
        for (int i = 0; i < k; ++i) {
            sum += a[row * k + i] * b[i * n + col];
        }
        c[row * n + col] = sum;
    }
}

void run_matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    dim3 block(16, 16);
    dim3 grid((n + 15) / 16, (m + 15) / 16);
    matmul<<<grid, block>>>(a, b, c, m, n, k);
}
