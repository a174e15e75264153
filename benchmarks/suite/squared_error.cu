// The sum of squared differences of two arrays, added to `total`.
#include <cuda_runtime.h>

#define BLOCK 256

// optiml: args.a = { role = "in", size = "n", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.b = { role = "in", size = "n", fill = { kind = "uniform", low = 1, high = 2 } }
// optiml: args.total = { role = "inout", size = "1", fill = { kind = "constant", low = 0 } }
// optiml: deterministic = false
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4096 }, { n = 10007 }]
// optiml: time = [{ n = 33554432 }]

// A tree in shared memory, then one atomic addition for each block.
__global__ void squared_error_kernel(const float* a, const float* b, float* total, int n) {
    __shared__ float partial[BLOCK];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float difference = i < n ? a[i] - b[i] : 0.0f;
    partial[threadIdx.x] = difference * difference;
    __syncthreads();
    for (int stride = BLOCK / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            partial[threadIdx.x] += partial[threadIdx.x + stride];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        atomicAdd(total, partial[0]);
    }
}

void squared_error(const float* a, const float* b, float* total, int n) {
    cudaMemset(total, 0, sizeof(float));
    squared_error_kernel<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(a, b, total, n);
}
