// Mean and reciprocal standard deviation of each row, two passes. One warp works on one row.
#include <cuda_runtime.h>

#define WARPS 4

__device__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset /= 2) {
        v += __shfl_down_sync(0xffffffffu, v, offset);
    }
    return __shfl_sync(0xffffffffu, v, 0);
}

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.mean = { role = "out", size = "rows" }
// optiml: args.rstd = { role = "out", size = "rows" }
// optiml: args.eps = { value = "1e-6" }
// optiml: check = [{ rows = 1, cols = 2 }, { rows = 7, cols = 129 }, { rows = 33, cols = 64 }, { rows = 130, cols = 31 }]
// optiml: time = [{ rows = 16384, cols = 4096 }]

__global__ void row_stats_kernel(const float* x, float* mean, float* rstd, int rows, int cols, float eps) {
    int row = blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= rows) {
        return;
    }
    const float* in = x + (size_t)row * cols;
    float sum = 0.0f;
    for (int c = lane; c < cols; c += 32) {
        sum += in[c];
    }
    float mu = warp_sum(sum) / cols;
    float squares = 0.0f;
    for (int c = lane; c < cols; c += 32) {
        float d = in[c] - mu;
        squares += d * d;
    }
    float variance = warp_sum(squares) / cols;
    if (lane == 0) {
        mean[row] = mu;
        rstd[row] = rsqrtf(variance + eps);
    }
}

cudaError_t row_stats(const float* x, float* mean, float* rstd, int rows, int cols, float eps, cudaStream_t stream) {
    int blocks = (rows + WARPS - 1) / WARPS;
    row_stats_kernel<<<blocks, WARPS * 32, 0, stream>>>(x, mean, rstd, rows, cols, eps);
    return cudaGetLastError();
}
