// Dynamic int8 quantisation of activations: one scale for each row, from the largest magnitude of the row (not more than clip).
// NaNs do not enter the scale.
#include <cuda_runtime.h>

#include <iostream>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.q = { role = "out", size = "rows*cols" }
// optiml: args.scale = { role = "out", size = "rows" }
// optiml: args.clip = { value = "100.0" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 6, cols = 100 }, { rows = 4, cols = 777 }]
// optiml: time = [{ rows = 4096, cols = 4096 }]
__global__ void quantize_rows_kernel(const float* x, signed char* q, float* scale, float clip, int rows, int cols) {
    __shared__ float peak[256];
    int r = blockIdx.x;
    float m = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        m = fmaxf(m, fabsf(x[(size_t)r * cols + c]));
    }
    peak[threadIdx.x] = m;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s /= 2) {
        if (threadIdx.x < s) peak[threadIdx.x] = fmaxf(peak[threadIdx.x], peak[threadIdx.x + s]);
        __syncthreads();
    }
    float top = fminf(peak[0], clip);
    float step = top > 0.0f ? top / 127.0f : 1.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float v = rintf(x[(size_t)r * cols + c] / step);
        v = fminf(fmaxf(v, -127.0f), 127.0f);
        q[(size_t)r * cols + c] = (signed char)v;
    }
    if (threadIdx.x == 0) scale[r] = step;
}

bool quantize_rows(const float* x, signed char* q, float* scale, float clip, int rows, int cols, cudaStream_t stream) {
    if (rows == 0) return true;
    quantize_rows_kernel<<<rows, 256, 0, stream>>>(x, q, scale, clip, rows, cols);
    cudaError_t err = cudaGetLastError();
    if (err != cudaSuccess) std::cerr << "quantize_rows: " << cudaGetErrorString(err) << "\n";
    return err == cudaSuccess;
}
