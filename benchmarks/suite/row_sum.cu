// The sum of every row of a row-major matrix.
#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.sums = { role = "out", size = "rows" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 129, cols = 7 }, { rows = 64, cols = 256 }]
// optiml: time = [{ rows = 16384, cols = 2048 }]

// One thread adds one row.
__global__ void row_sum_kernel(const float* x, float* sums, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int c = 0; c < cols; c++) {
            sum += x[row * cols + c];
        }
        sums[row] = sum;
    }
}

void row_sum(const float* x, float* sums, int rows, int cols) {
    const int block = 128;
    row_sum_kernel<<<(rows + block - 1) / block, block>>>(x, sums, rows, cols);
}
