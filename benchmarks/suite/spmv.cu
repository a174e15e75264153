// y = a * x for a sparse matrix in compressed rows.
#include <cuda_runtime.h>

// optiml: args.offsets = { role = "in", size = "rows + 1", fill = { kind = "csr_offsets", of = "columns" } }
// optiml: args.columns = { role = "in", size = "entries", fill = { kind = "csr_columns", of = "offsets", high = "cols" } }
// optiml: args.values = { role = "in", size = "entries", fill = "normal" }
// optiml: args.x = { role = "in", size = "cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows" }
// optiml: check = [{ rows = 1, cols = 4, entries = 2 }, { rows = 33, cols = 65, entries = 300 }, { rows = 300, cols = 129, entries = 3000 }]
// optiml: time = [{ rows = 65536, cols = 65536, entries = 4194304 }]

// One thread works on one row.
__global__ void spmv_kernel(const int* offsets, const int* columns, const float* values, const float* x, float* y,
                            int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int e = offsets[row]; e < offsets[row + 1]; ++e) {
            sum += values[e] * x[columns[e]];
        }
        y[row] = sum;
    }
}

void spmv(const int* offsets, const int* columns, const float* values, const float* x, float* y, int rows) {
    spmv_kernel<<<(rows + 255) / 256, 256>>>(offsets, columns, values, x, y, rows);
}
