// Row-wise softmax of a row-major matrix: y[r][c] = exp(x[r][c] - max_r) / sum_r.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

#define CUDA_CHECK(call)                                                                        \
    do {                                                                                        \
        cudaError_t status = (call);                                                            \
        if (status != cudaSuccess) {                                                            \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status));     \
            exit(EXIT_FAILURE);                                                                 \
        }                                                                                       \
    } while (0)

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 33, cols = 64 }, { rows = 260, cols = 31 }]
// optiml: time = [{ rows = 4096, cols = 4096 }, { rows = 8192, cols = 4096 }]

// One thread works on one row.
__global__ void softmax_kernel(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }

    float largest = x[row * cols];
    for (int c = 1; c < cols; ++c) {
        largest = fmaxf(largest, x[row * cols + c]);
    }

    float sum = 0.0f;
    for (int c = 0; c < cols; ++c) {
        sum += expf(x[row * cols + c] - largest);
    }

    for (int c = 0; c < cols; ++c) {
        y[row * cols + c] = expf(x[row * cols + c] - largest) / sum;
    }
}

void softmax(const float* x, float* y, int rows, int cols) {
    int threads = 256;
    int blocks = (rows + threads - 1) / threads;
    softmax_kernel<<<blocks, threads>>>(x, y, rows, cols);
    CUDA_CHECK(cudaGetLastError());
}
