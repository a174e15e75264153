// Partial sums of a long vector, one for each block, with compensated summation in each thread.
#include <cuda_runtime.h>

#define THREADS 256

// optiml: args.x = { role = "in", size = "n", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.partial = { role = "out", size = "blocks" }
// optiml: check = [{ n = 1, blocks = 64 }, { n = 903, blocks = 64 }, { n = 16384, blocks = 64 }, { n = 20011, blocks = 64 }]
// optiml: time = [{ n = 67108864, blocks = 64 }]

__global__ void partial_sums_kernel(const float* x, float* partial, size_t n) {
    __shared__ float sums[THREADS];
    const int tid = threadIdx.x;
    const size_t stride = (size_t)gridDim.x * THREADS;

    float sum = 0.0f;
    float lost = 0.0f;
    for (size_t i = (size_t)blockIdx.x * THREADS + tid; i < n; i += stride) {
        float term = x[i] - lost;
        float next = sum + term;
        lost = (next - sum) - term;
        sum = next;
    }
    sums[tid] = sum;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step >>= 1) {
        if (tid < step) {
            sums[tid] += sums[tid + step];
        }
        __syncthreads();
    }
    if (tid == 0) {
        partial[blockIdx.x] = sums[0];
    }
}

// `blocks` is chosen by the caller: the number of multiprocessors of the device, times two.
cudaError_t partial_sums(const float* x, float* partial, size_t n, int blocks, cudaStream_t stream) {
    partial_sums_kernel<<<blocks, THREADS, 0, stream>>>(x, partial, n);
    return cudaGetLastError();
}
