// A sum in two passes: vectors of four, shuffles within warps, one partial sum for each block. Nothing is left to gain.
// Its kernel spec stands in optiml.toml: a chain of kernels.
#include <cuda_runtime.h>

#define THREADS 512
#define WARPS (THREADS / 32)

__device__ __forceinline__ float block_sum(float sum) {
    __shared__ float partial[WARPS];
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        sum += __shfl_down_sync(0xffffffffu, sum, offset);
    }
    if (threadIdx.x % 32 == 0) {
        partial[threadIdx.x / 32] = sum;
    }
    __syncthreads();
    sum = threadIdx.x < WARPS ? partial[threadIdx.x] : 0.0f;
    if (threadIdx.x < 32) {
#pragma unroll
        for (int offset = WARPS / 2; offset > 0; offset >>= 1) {
            sum += __shfl_down_sync(0xffffffffu, sum, offset);
        }
    }
    return sum;
}

__global__ void __launch_bounds__(THREADS)
    control_partial_kernel(const float4* __restrict__ x, float* __restrict__ partial, int n) {
    float sum = 0.0f;
    int stride = gridDim.x * THREADS;
#pragma unroll 4
    for (int i = blockIdx.x * THREADS + threadIdx.x; i < n; i += stride) {
        float4 v = x[i];
        sum += (v.x + v.y) + (v.z + v.w);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
    }
}

__global__ void __launch_bounds__(THREADS)
    control_final_kernel(const float* __restrict__ partial, float* __restrict__ total, int blocks) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < blocks; i += THREADS) {
        sum += partial[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        *total = sum;
    }
}

void control_reduction(const float4* x, float* partial, float* total, int n, int blocks) {
    control_partial_kernel<<<blocks, THREADS>>>(x, partial, n);
    control_final_kernel<<<1, THREADS>>>(partial, total, blocks);
}
