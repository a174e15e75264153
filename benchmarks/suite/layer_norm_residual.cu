// y = layer_norm(x + residual) * gamma + beta over the rows of a row-major matrix.
#include <cuda_runtime.h>

#define THREADS 256

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.residual = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.gamma = { role = "in", size = "cols", fill = "normal" }
// optiml: args.beta = { role = "in", size = "cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 2 }, { rows = 7, cols = 129 }, { rows = 3, cols = 1024 }, { rows = 20, cols = 300 }]
// optiml: time = [{ rows = 16384, cols = 2048 }]

// One block works on one row; both sums are added by a tree in shared memory.
__global__ void layer_norm_residual_kernel(const float* x, const float* residual, const float* gamma,
                                           const float* beta, float* y, int rows, int cols) {
    __shared__ float buffer[THREADS];
    int row = blockIdx.x;
    int tid = threadIdx.x;
    const float* xr = x + row * cols;
    const float* rr = residual + row * cols;

    float sum = 0.0f;
    for (int c = tid; c < cols; c += THREADS) {
        sum += xr[c] + rr[c];
    }
    buffer[tid] = sum;
    __syncthreads();
    for (int stride = THREADS / 2; stride > 0; stride >>= 1) {
        if (tid < stride) {
            buffer[tid] += buffer[tid + stride];
        }
        __syncthreads();
    }
    float mean = buffer[0] / cols;
    __syncthreads();

    float squares = 0.0f;
    for (int c = tid; c < cols; c += THREADS) {
        float d = xr[c] + rr[c] - mean;
        squares += d * d;
    }
    buffer[tid] = squares;
    __syncthreads();
    for (int stride = THREADS / 2; stride > 0; stride >>= 1) {
        if (tid < stride) {
            buffer[tid] += buffer[tid + stride];
        }
        __syncthreads();
    }
    float scale = rsqrtf(buffer[0] / cols + 1e-5f);

    for (int c = tid; c < cols; c += THREADS) {
        y[row * cols + c] = (xr[c] + rr[c] - mean) * scale * gamma[c] + beta[c];
    }
}

void layer_norm_residual(const float* x, const float* residual, const float* gamma, const float* beta, float* y,
                         int rows, int cols) {
    layer_norm_residual_kernel<<<rows, THREADS>>>(x, residual, gamma, beta, y, rows, cols);
}
