// C = A * B for row-major matrices: A is m x k, B is k x n, C is m x n.
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

static void check(cudaError_t status, const char* what) {
    if (status != cudaSuccess) {
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
    }
}

// optiml: args.a = { role = "in", size = "m*k", fill = "normal" }
// optiml: args.b = { role = "in", size = "k*n", fill = "normal" }
// optiml: args.c = { role = "out", size = "m*n" }
// optiml: check = [{ m = 1, n = 1, k = 1 }, { m = 7, n = 129, k = 33 }, { m = 64, n = 64, k = 64 }, { m = 65, n = 31, k = 17 }]
// optiml: time = [{ m = 2048, n = 2048, k = 2048 }]

// One thread computes one element of C.
__global__ void matmul_kernel(const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < m && col < n) {
        float sum = 0.0f;
        for (int i = 0; i < k; ++i) {
            sum += a[row * k + i] * b[i * n + col];
        }
        c[row * n + col] = sum;
    }
}

void matmul(const float* a, const float* b, float* c, int m, int n, int k) {
    dim3 block(16, 16);
    dim3 grid((n + block.x - 1) / block.x, (m + block.y - 1) / block.y);
    matmul_kernel<<<grid, block>>>(a, b, c, m, n, k);
    check(cudaGetLastError(), "matmul_kernel");
    check(cudaDeviceSynchronize(), "matmul_kernel");
}
