#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.w = { role = "in", size = "cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 2 }, { rows = 7, cols = 129 }, { rows = 13, cols = 300 }]
// optiml: time = [{ rows = 16384, cols = 2048 }]

// One thread works on one element: its distance from the row's first one, weighed.
__global__ void centred(const float* x, const float* w, float* y, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y;
    if (c < cols) {
        y[row * cols + c] = (x[row * cols + c] - x[row * cols]) * w[c];
    }
}

void run_centred(const float* x, const float* w, float* y, int rows, int cols) {
    int threads = 128;
    dim3 grid((cols + threads - 1) / threads, rows);
    centred<<<grid, threads>>>(x, w, y, rows, cols);
}
