// c = alpha * a * b + beta * c with tiles of 16 x 16 in shared memory: a is m x k, b is k x n, all row-major.
#include <cuda_runtime.h>

#define TILE 16

// optiml: args.a = { role = "in", size = "m*k", fill = "normal" }
// optiml: args.b = { role = "in", size = "k*n", fill = "normal" }
// optiml: args.c = { role = "inout", size = "m*n", fill = "normal" }
// optiml: args.alpha = { value = "0.5" }
// optiml: args.beta = { value = "2" }
// optiml: check = [{ m = 1, n = 2, k = 1 }, { m = 7, n = 129, k = 33 }, { m = 64, n = 64, k = 64 }, { m = 65, n = 31, k = 17 }]
// optiml: time = [{ m = 2048, n = 2048, k = 1024 }]

// A block loads a tile of each matrix, waits, multiplies them, and waits.
__global__ void gemm_tiled_kernel(const float* a, const float* b, float* c, float alpha, float beta, int m, int n,
                                  int k) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < k; first += TILE) {
        int a_col = first + threadIdx.x;
        int b_row = first + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = (row < m && a_col < k) ? a[row * k + a_col] : 0.0f;
        b_tile[threadIdx.y][threadIdx.x] = (b_row < k && col < n) ? b[b_row * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) {
            sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
        }
        __syncthreads();
    }
    if (row < m && col < n) {
        c[row * n + col] = alpha * sum + beta * c[row * n + col];
    }
}

void gemm_tiled(const float* a, const float* b, float* c, float alpha, float beta, int m, int n, int k) {
    dim3 block(TILE, TILE);
    dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);
    gemm_tiled_kernel<<<grid, block>>>(a, b, c, alpha, beta, m, n, k);
}
