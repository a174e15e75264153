// Softmax of every row of a row-major matrix, shifted by the row's maximum.
#include <cuda_runtime.h>

// optiml: args.in = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.out = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 33, cols = 64 }, { rows = 260, cols = 31 }]
// optiml: time = [{ rows = 32768, cols = 1024 }]
__global__ void softmax_rows_kernel(const float* in, float* out, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    const float* x = in + row * cols;
    float* y = out + row * cols;

    float top = -INFINITY;
    for (int c = 0; c < cols; ++c) {
        top = fmaxf(top, x[c]);
    }
    float sum = 0.0f;
    for (int c = 0; c < cols; ++c) {
        y[c] = expf(x[c] - top);
        sum += y[c];
    }
    for (int c = 0; c < cols; ++c) {
        y[c] /= sum;
    }
}

void softmax_rows(const float* in, float* out, int rows, int cols) {
    int threads = 64;
    softmax_rows_kernel<<<(rows + threads - 1) / threads, threads>>>(in, out, rows, cols);
}
