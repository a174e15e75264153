#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.q = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 5, cols = 300 }]
// optiml: time = [{ rows = 4096, cols = 4096 }]

// Rounds each row to 8 bits, by its largest magnitude. One block of 128 threads for a row.
__global__ void rounded(const float* x, signed char* q, int cols) {
    __shared__ float part[128];
    const float* row = x + (size_t)blockIdx.x * cols;
    float most = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        most = fmaxf(most, fabsf(row[c]));
    }
    part[threadIdx.x] = most;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + step]);
        __syncthreads();
    }
    float unit = part[0] > 0.0f ? part[0] / 127.0f : 1.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        q[(size_t)blockIdx.x * cols + c] = (signed char)rintf(row[c] / unit);
    }
}

void run_rounded(const float* x, signed char* q, int rows, int cols) {
    rounded<<<rows, 128>>>(x, q, cols);
}
