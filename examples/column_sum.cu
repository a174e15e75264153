// sums[c] = x[0][c] + x[1][c] + ... for a row-major matrix.
#include <cuda_runtime.h>

#include <iostream>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.sums = { role = "out", size = "cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 129, cols = 7 }, { rows = 64, cols = 256 }]
// optiml: time = [{ rows = 8192, cols = 8192 }]

// One thread adds up one column, straight into the result.
__global__ void column_sum_kernel(const float* x, float* sums, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols) return;
    sums[c] = 0.0f;
    for (int r = 0; r < rows; r++) {
        sums[c] += x[r * cols + c];
    }
}

bool column_sum(const float* x, float* sums, int rows, int cols) {
    int blockSize = 256;
    int gridSize = (cols + blockSize - 1) / blockSize;
    column_sum_kernel<<<gridSize, blockSize>>>(x, sums, rows, cols);
    cudaError_t status = cudaDeviceSynchronize();
    if (status != cudaSuccess) {
        std::cerr << "column_sum: " << cudaGetErrorString(status) << std::endl;
        return false;
    }
    return true;
}
