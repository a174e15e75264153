// Inclusive prefix sums of an array in three launches: within blocks, over the blocks' sums, and the two together.
// Its kernel spec stands in optiml.toml: a chain of kernels.
#include <cuda_runtime.h>

#define BLOCK 1024

// Hillis and Steele's scan in shared memory.
__global__ void scan_blocks(const int* x, int* y, int* sums, int n) {
    __shared__ int values[BLOCK];
    int t = threadIdx.x;
    int i = blockIdx.x * BLOCK + t;
    values[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (int step = 1; step < BLOCK; step *= 2) {
        int left = t >= step ? values[t - step] : 0;
        __syncthreads();
        values[t] += left;
        __syncthreads();
    }
    if (i < n) {
        y[i] = values[t];
    }
    if (t == BLOCK - 1) {
        sums[blockIdx.x] = values[t];
    }
}

// One block turns the sums into what comes before each block.
__global__ void scan_sums(int* sums, int blocks) {
    __shared__ int values[BLOCK];
    int t = threadIdx.x;
    int before = 0;
    for (int start = 0; start < blocks; start += BLOCK) {
        int own = start + t < blocks ? sums[start + t] : 0;
        values[t] = own;
        __syncthreads();
        for (int step = 1; step < BLOCK; step *= 2) {
            int left = t >= step ? values[t - step] : 0;
            __syncthreads();
            values[t] += left;
            __syncthreads();
        }
        if (start + t < blocks) {
            sums[start + t] = before + values[t] - own;
        }
        before += values[BLOCK - 1];
        __syncthreads();
    }
}

__global__ void add_sums(int* y, const int* sums, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] += sums[i / BLOCK];
    }
}

void scan(const int* x, int* y, int* sums, int n) {
    int blocks = (n + BLOCK - 1) / BLOCK;
    scan_blocks<<<blocks, BLOCK>>>(x, y, sums, n);
    scan_sums<<<1, BLOCK>>>(sums, blocks);
    add_sums<<<(n + 255) / 256, 256>>>(y, sums, n);
}
