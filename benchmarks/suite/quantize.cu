// Rows to eight-bit integers, each row with a scale of its own: scale = max |x| / 127, q = round(x / scale).
#include <cuda_runtime.h>

#define THREADS 128

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.q = { role = "out", size = "rows*cols" }
// optiml: args.scales = { role = "out", size = "rows" }
// optiml: check = [{ rows = 1, cols = 3 }, { rows = 7, cols = 129 }, { rows = 3, cols = 1024 }, { rows = 20, cols = 300 }]
// optiml: time = [{ rows = 16384, cols = 2048 }]

// One block works on one row.
__global__ void quantize_kernel(const float* x, signed char* q, float* scales, int rows, int cols) {
    __shared__ float largest[THREADS];
    int row = blockIdx.x;
    int tid = threadIdx.x;
    float own = 0.0f;
    for (int c = tid; c < cols; c += THREADS) {
        own = fmaxf(own, fabsf(x[row * cols + c]));
    }
    largest[tid] = own;
    __syncthreads();
    for (int stride = THREADS / 2; stride > 0; stride >>= 1) {
        if (tid < stride) {
            largest[tid] = fmaxf(largest[tid], largest[tid + stride]);
        }
        __syncthreads();
    }
    float scale = fmaxf(largest[0] / 127.0f, 1e-20f);
    for (int c = tid; c < cols; c += THREADS) {
        q[row * cols + c] = (signed char)rintf(x[row * cols + c] / scale);
    }
    if (tid == 0) {
        scales[row] = scale;
    }
}

void quantize(const float* x, signed char* q, float* scales, int rows, int cols) {
    quantize_kernel<<<rows, THREADS>>>(x, q, scales, rows, cols);
}
