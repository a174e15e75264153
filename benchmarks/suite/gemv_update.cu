// y = alpha * a * x + beta * y for a row-major matrix.
#include <cuda_runtime.h>

// optiml: args.a = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.x = { role = "in", size = "cols", fill = "normal" }
// optiml: args.y = { role = "inout", size = "rows", fill = "normal" }
// optiml: args.alpha = { value = "1.5" }
// optiml: args.beta = { value = "0.5" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 129, cols = 7 }, { rows = 96, cols = 128 }]
// optiml: time = [{ rows = 8192, cols = 4096 }]

// One thread computes one element of y.
__global__ void gemv_update_kernel(const float* a, const float* x, float* y, float alpha, float beta, int rows,
                                   int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    float sum = 0.0f;
    for (int j = 0; j < cols; ++j) {
        sum += a[row * cols + j] * x[j];
    }
    y[row] = alpha * sum + beta * y[row];
}

void gemv_update(const float* a, const float* x, float* y, float alpha, float beta, int rows, int cols) {
    gemv_update_kernel<<<(rows + 127) / 128, 128>>>(a, x, y, alpha, beta, rows, cols);
}
