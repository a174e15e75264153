#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.variance = { role = "out", size = "rows" }
// optiml: args.largest = { role = "out", size = "rows" }
// optiml: launch = { grid = "rows", block = "threads", shared = "threads*4" }
// optiml: check = [{ rows = 1, cols = 1, threads = 128 }, { rows = 7, cols = 129, threads = 128 }, { rows = 13, cols = 700, threads = 256 }]
// optiml: time = [{ rows = 4096, cols = 4096, threads = 256 }]

// Variance and largest value of each row; the largest value passes over NaN. One block for a row.
__global__ void variance(const float* x, float* variance, float* largest, int cols) {
    extern __shared__ float part[];
    const float* row = x + (size_t)blockIdx.x * cols;
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        sum += row[c];
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    float mean = part[0] / cols;
    __syncthreads();
    float squares = 0.0f;
    float most = -INFINITY;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float apart = row[c] - mean;
        squares += apart * apart;
        most = fmaxf(most, row[c]);
    }
    part[threadIdx.x] = squares;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) variance[blockIdx.x] = part[0] / cols;
    __syncthreads();
    part[threadIdx.x] = most;
    __syncthreads();
    for (int step = blockDim.x / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) part[threadIdx.x] = fmaxf(part[threadIdx.x], part[threadIdx.x + step]);
        __syncthreads();
    }
    if (threadIdx.x == 0) largest[blockIdx.x] = part[0];
}

// threads: a power of two up to 1024.
void run_variance(const float* x, float* out, float* largest, int rows, int cols, int threads) {
    variance<<<rows, threads, threads * sizeof(float)>>>(x, out, largest, cols);
}
