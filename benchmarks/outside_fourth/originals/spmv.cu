// y = A * x for a sparse matrix in CSR form. The columns of a row may come in any order, and a column may come twice
// (matrices as they come from the assembly).
#include <cuda_runtime.h>

// optiml: args.offsets = { role = "in", size = "rows+1", fill = { kind = "csr_offsets", of = "columns" } }
// optiml: args.columns = { role = "in", size = "rows*8", fill = { kind = "csr_columns", of = "offsets", high = "cols" } }
// optiml: args.values = { role = "in", size = "rows*8", fill = "normal" }
// optiml: args.x = { role = "in", size = "cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows" }
// optiml: check = [{ rows = 33, cols = 64 }, { rows = 129, cols = 100 }, { rows = 1000, cols = 700 }]
// optiml: time = [{ rows = 2097152, cols = 2097152 }]

__global__ void spmv_kernel(const int* offsets, const int* columns, const float* values, const float* x, float* y, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int j = offsets[row]; j < offsets[row + 1]; ++j) {
            sum += values[j] * x[columns[j]];
        }
        y[row] = sum;
    }
}

void spmv(const int* offsets, const int* columns, const float* values, const float* x, float* y, int rows,
          cudaStream_t stream) {
    int threads = 128;
    int blocks = (rows + threads - 1) / threads;
    spmv_kernel<<<blocks, threads, 0, stream>>>(offsets, columns, values, x, y, rows);
}
