// Largest value of each column of a row-major matrix and the first row that holds it.
#include <cuda_runtime.h>

#include <stdexcept>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.best = { role = "out", size = "cols" }
// optiml: args.index = { role = "out", size = "cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 129, cols = 7 }, { rows = 64, cols = 260 }, { rows = 1000, cols = 9 }]
// optiml: time = [{ rows = 8192, cols = 8192 }]

__global__ void col_argmax_kernel(const float* x, float* best, int* index, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols) {
        return;
    }
    float m = x[c];
    int at = 0;
    for (int r = 1; r < rows; ++r) {
        float v = x[(size_t)r * cols + c];
        if (v > m) {
            m = v;
            at = r;
        }
    }
    best[c] = m;
    index[c] = at;
}

void col_argmax(const float* x, float* best, int* index, int rows, int cols) {
    const int threads = 128;
    const int blocks = (cols + threads - 1) / threads;
    col_argmax_kernel<<<blocks, threads>>>(x, best, index, rows, cols);
    if (cudaGetLastError() != cudaSuccess) {
        throw std::runtime_error("col_argmax");
    }
}
