// The eight largest values of every row and where they stand, in descending order; of equal values the first counts.
#include <cuda_runtime.h>

#define K 8

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.values = { role = "out", size = "rows*8" }
// optiml: args.indices = { role = "out", size = "rows*8" }
// optiml: check = [{ rows = 1, cols = 9 }, { rows = 7, cols = 129 }, { rows = 260, cols = 31 }, { rows = 64, cols = 256 }]
// optiml: time = [{ rows = 131072, cols = 256 }]

// One thread keeps the best of one row in order.
__global__ void topk_kernel(const float* x, float* values, int* indices, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    float best[K];
    int where[K];
    for (int k = 0; k < K; ++k) {
        best[k] = -INFINITY;
        where[k] = -1;
    }
    for (int c = 0; c < cols; ++c) {
        float value = x[row * cols + c];
        int index = c;
        bool moved = false;
        for (int k = 0; k < K; ++k) {
            if (moved || value > best[k]) {
                moved = true;
                float pushed = best[k];
                int from = where[k];
                best[k] = value;
                where[k] = index;
                value = pushed;
                index = from;
            }
        }
    }
    for (int k = 0; k < K; ++k) {
        values[row * K + k] = best[k];
        indices[row * K + k] = where[k];
    }
}

void topk(const float* x, float* values, int* indices, int rows, int cols) {
    int threads = 128;
    topk_kernel<<<(rows + threads - 1) / threads, threads>>>(x, values, indices, rows, cols);
}
