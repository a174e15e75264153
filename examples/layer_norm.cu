// Layer normalisation over the last dimension of a row-major matrix, with scale and shift.
#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.gamma = { role = "in", size = "cols", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.beta = { role = "in", size = "cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows*cols" }
// optiml: args.eps = { value = "1e-5" }
// optiml: check = [{ rows = 1, cols = 2 }, { rows = 7, cols = 129 }, { rows = 33, cols = 64 }, { rows = 131, cols = 48 }]
// optiml: time = [{ rows = 4096, cols = 4096 }, { rows = 8192, cols = 4096 }]

__global__ void layer_norm_kernel(const float* x, const float* gamma, const float* beta, float* y, int rows, int cols,
                                  float eps) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        const float* in = x + row * cols;
        float* out = y + row * cols;

        float mean = 0.0f;
        for (int i = 0; i < cols; i++) {
            mean += in[i];
        }
        mean /= cols;

        float variance = 0.0f;
        for (int i = 0; i < cols; i++) {
            float d = in[i] - mean;
            variance += d * d;
        }
        variance /= cols;

        float scale = rsqrtf(variance + eps);
        for (int i = 0; i < cols; i++) {
            out[i] = (in[i] - mean) * scale * gamma[i] + beta[i];
        }
    }
}

cudaError_t layer_norm(const float* x, const float* gamma, const float* beta, float* y, int rows, int cols, float eps,
                       cudaStream_t stream) {
    const int block = 128;
    const int grid = (rows + block - 1) / block;
    layer_norm_kernel<<<grid, block, 0, stream>>>(x, gamma, beta, y, rows, cols, eps);
    return cudaGetLastError();
}
