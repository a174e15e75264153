#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 13, cols = 300 }]
// optiml: time = [{ rows = 16384, cols = 2048 }]
// One block adds up one row.
__global__ void rowsum(const float* x, float* y, int rows, int cols) {
    __shared__ float part[128];
    int row = blockIdx.x;
    int t = threadIdx.x;
    float sum = 0.0f;
    for (int c = t; c < cols; c += 128) {
        sum += x[row * cols + c];
    }
    part[t] = sum;
    __syncthreads();
    for (int k = 64; k > 0; k /= 2) {
        if (t < k) {
            part[t] += part[t + k];
        }
        __syncthreads();
    }
    if (t == 0) {
        y[row] = part[0];
    }
}

void run_rowsum(const float* x, float* y, int rows, int cols) {
    rowsum<<<rows, 128>>>(x, y, rows, cols);
}
