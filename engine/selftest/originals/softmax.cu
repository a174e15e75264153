#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 13, cols = 300 }]
// optiml: time = [{ rows = 16384, cols = 2048 }]
__global__ void softmax(const float* x, float* y, int rows, int cols) {
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

void run_softmax(const float* x, float* y, int rows, int cols) {
    int threads = 128;
    softmax<<<(rows + threads - 1) / threads, threads>>>(x, y, rows, cols);
}
