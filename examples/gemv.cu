// y = A * x for a row-major matrix. The kernel spec of this file stands in optiml.toml.
#include <cuda_runtime.h>

// One thread computes one element of y.
__global__ void gemv_kernel(const float* a, const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        for (int j = 0; j < cols; j++) {
            sum += a[row * cols + j] * x[j];
        }
        y[row] = sum;
    }
}

cudaError_t gemv(const float* a, const float* x, float* y, int rows, int cols) {
    int threads = 256;
    int blocks = (rows + threads - 1) / threads;
    gemv_kernel<<<blocks, threads>>>(a, x, y, rows, cols);
    cudaError_t launched = cudaGetLastError();
    if (launched != cudaSuccess) {
        return launched;
    }
    return cudaDeviceSynchronize();
}
