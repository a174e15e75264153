#include <cuda_runtime.h>

// optiml: args.offsets = { role = "in", size = "rows+1", fill = { kind = "csr_offsets", of = "columns" } }
// optiml: args.columns = { role = "in", size = "rows*6", fill = { kind = "csr_columns", of = "offsets", high = "cols" } }
// optiml: args.values = { role = "in", size = "rows*6", fill = "normal" }
// optiml: args.x = { role = "in", size = "cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows" }
// optiml: check = [{ rows = 33, cols = 64 }, { rows = 129, cols = 100 }, { rows = 700, cols = 500 }]
// optiml: time = [{ rows = 1048576, cols = 1048576 }]

__global__ void sparse(const int* offsets, const int* columns, const float* values, const float* x, float* y, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int j = offsets[row]; j < offsets[row + 1]; ++j) {
            sum += values[j] * x[columns[j]];
        }
        y[row] = sum;
    }
}

void run_sparse(const int* offsets, const int* columns, const float* values, const float* x, float* y, int rows) {
    int threads = 128;
    sparse<<<(rows + threads - 1) / threads, threads>>>(offsets, columns, values, x, y, rows);
}
