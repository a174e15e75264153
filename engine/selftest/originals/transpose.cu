#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 13, cols = 300 }]
// optiml: time = [{ rows = 8192, cols = 4096 }]
__global__ void transpose(const float* x, float* y, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < cols) {
        y[c * rows + r] = x[r * cols + c];
    }
}

void run_transpose(const float* x, float* y, int rows, int cols) {
    dim3 block(16, 16);
    dim3 grid((cols + 15) / 16, (rows + 15) / 16);
    transpose<<<grid, block>>>(x, y, rows, cols);
}
