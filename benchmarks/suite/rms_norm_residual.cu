// residual += x, then y = residual / rms(residual) * weight, row by row of a row-major matrix.
#include <cuda_runtime.h>

// optiml: args.residual = { role = "inout", size = "rows*cols", fill = "normal" }
// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.weight = { role = "in", size = "cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows*cols" }
// optiml: args.eps = { value = "0.000001" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 33, cols = 64 }, { rows = 260, cols = 31 }]
// optiml: time = [{ rows = 16384, cols = 1024 }]

// One thread works on one row.
__global__ void rms_norm_residual_kernel(float* residual, const float* x, const float* weight, float* y, float eps,
                                         int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    float squares = 0.0f;
    for (int c = 0; c < cols; ++c) {
        float value = residual[row * cols + c] + x[row * cols + c];
        residual[row * cols + c] = value;
        squares += value * value;
    }
    float scale = rsqrtf(squares / cols + eps);
    for (int c = 0; c < cols; ++c) {
        y[row * cols + c] = residual[row * cols + c] * scale * weight[c];
    }
}

void rms_norm_residual(float* residual, const float* x, const float* weight, float* y, float eps, int rows, int cols) {
    int threads = 128;
    int blocks = (rows + threads - 1) / threads;
    rms_norm_residual_kernel<<<blocks, threads>>>(residual, x, weight, y, eps, rows, cols);
}
