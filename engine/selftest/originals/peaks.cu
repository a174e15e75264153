#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 13, cols = 300 }]
// optiml: time = [{ rows = 65536, cols = 512 }]

__device__ float magnitude(float v) {
    return fabsf(v);
}

// One thread looks at one row.
__global__ void peaks(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float largest = 0.0f;
        for (int c = 0; c < cols; ++c) {
            largest = fmaxf(largest, magnitude(x[row * cols + c]));
        }
        y[row] = largest;
    }
}

void run_peaks(const float* x, float* y, int rows, int cols) {
    int threads = 128;
    peaks<<<(rows + threads - 1) / threads, threads>>>(x, y, rows, cols);
}
