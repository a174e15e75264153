#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.counts = { role = "out", size = "rows" }
// optiml: check = [{ rows = 1, cols = 3, block_size = 128 }, { rows = 7, cols = 129, block_size = 64 }, { rows = 300, cols = 60, block_size = 128 }]
// optiml: time = [{ rows = 65536, cols = 256, block_size = 128 }]

// How many elements of each row are above half of its largest one. One thread for a row.
__global__ void shares(const float* x, int* counts, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float most = 0.0f;
        for (int c = 0; c < cols; ++c) {
            most = fmaxf(most, x[(size_t)row * cols + c]);
        }
        int count = 0;
        for (int c = 0; c < cols; ++c) {
            float share = x[(size_t)row * cols + c] / most;
            count += most > 0.0f && share > 0.5f;
        }
        counts[row] = count;
    }
}

// The caller chooses the block: up to 1024 threads.
void run_shares(const float* x, int* counts, int rows, int cols, int block_size) {
    shares<<<(rows + block_size - 1) / block_size, block_size>>>(x, counts, rows, cols);
}
