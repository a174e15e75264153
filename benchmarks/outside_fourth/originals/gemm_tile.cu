// C = alpha * A * B + beta * C, row-major. With beta == 0, C is only written and may hold anything before.
#include <cuda_runtime.h>

#define TILE 16

// optiml: args.A = { role = "in", size = "m*k", fill = "normal" }
// optiml: args.B = { role = "in", size = "k*n", fill = "normal" }
// optiml: args.C = { role = "inout", size = "m*n", fill = "normal" }
// optiml: args.alpha = { value = "1.25" }
// optiml: args.beta = { value = "0.5" }
// optiml: check = [{ m = 1, n = 1, k = 1 }, { m = 7, n = 129, k = 33 }, { m = 64, n = 48, k = 64 }, { m = 65, n = 31, k = 17 }]
// optiml: time = [{ m = 2048, n = 2048, k = 2048 }]

__global__ void gemm_kernel(const float* A, const float* B, float* C, int m, int n, int k, float alpha, float beta) {
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE];
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int row = blockIdx.y * TILE + ty;
    const int col = blockIdx.x * TILE + tx;

    float acc = 0.0f;
    for (int t = 0; t < k; t += TILE) {
        As[ty][tx] = (row < m && t + tx < k) ? A[(size_t)row * k + t + tx] : 0.0f;
        Bs[ty][tx] = (col < n && t + ty < k) ? B[(size_t)(t + ty) * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) {
            acc += As[ty][i] * Bs[i][tx];
        }
        __syncthreads();
    }

    if (row < m && col < n) {
        const size_t at = (size_t)row * n + col;
        if (beta == 0.0f) {
            C[at] = alpha * acc;
        } else {
            C[at] = alpha * acc + beta * C[at];
        }
    }
}

cudaError_t gemm(const float* A, const float* B, float* C, int m, int n, int k, float alpha, float beta,
                 cudaStream_t stream) {
    dim3 block(TILE, TILE);
    dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);
    gemm_kernel<<<grid, block, 0, stream>>>(A, B, C, m, n, k, alpha, beta);
    return cudaGetLastError();
}
