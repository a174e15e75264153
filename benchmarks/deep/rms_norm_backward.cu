// Gradients of y = x * w / rms(x) for every row: dx, and dw summed over the rows.
#include <cuda_runtime.h>


// One thread works on one row.
__global__ void rms_norm_backward_dx(const float* x, const float* w, const float* dy, float* dx, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    float squares = 0.0f;
    for (int c = 0; c < cols; ++c) {
        squares += x[row * cols + c] * x[row * cols + c];
    }
    float inverse = rsqrtf(squares / cols + 1e-5f);
    float dot = 0.0f;
    for (int c = 0; c < cols; ++c) {
        dot += dy[row * cols + c] * w[c] * x[row * cols + c];
    }
    for (int c = 0; c < cols; ++c) {
        float own = dy[row * cols + c] * w[c] * inverse;
        dx[row * cols + c] = own - x[row * cols + c] * dot * inverse * inverse * inverse / cols;
    }
}

// One thread works on one column.
__global__ void rms_norm_backward_dw(const float* x, const float* dy, float* dw, int rows, int cols) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= cols) {
        return;
    }
    float sum = 0.0f;
    for (int row = 0; row < rows; ++row) {
        float squares = 0.0f;
        for (int c = 0; c < cols; ++c) {
            squares += x[row * cols + c] * x[row * cols + c];
        }
        sum += dy[row * cols + col] * x[row * cols + col] * rsqrtf(squares / cols + 1e-5f);
    }
    dw[col] = sum;
}

void rms_norm_backward(const float* x, const float* w, const float* dy, float* dx, float* dw, int rows, int cols) {
    rms_norm_backward_dx<<<(rows + 127) / 128, 128>>>(x, w, dy, dx, rows, cols);
    rms_norm_backward_dw<<<(cols + 127) / 128, 128>>>(x, dy, dw, rows, cols);
}
