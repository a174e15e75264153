// Clamps samples to [lo, hi] and adds the number of clipped samples to *clipped. NaN samples pass through.
#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: args.clipped = { role = "inout", size = "1", fill = { kind = "constant", low = 0 } }
// optiml: args.lo = { value = "0.25" }
// optiml: args.hi = { value = "1.5" }
// optiml: check = [{ n = 1, block_size = 256 }, { n = 903, block_size = 256 }, { n = 4096, block_size = 256 }, { n = 10007, block_size = 256 }]
// optiml: time = [{ n = 33554432, block_size = 256 }]

__global__ void clamp_count_kernel(const float* x, float* y, unsigned int* clipped, float lo, float hi, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float v = x[i];
        if (v < lo) {
            v = lo;
            atomicAdd(clipped, 1u);
        } else if (v > hi) {
            v = hi;
            atomicAdd(clipped, 1u);
        }
        y[i] = v;
    }
}

// block_size: a multiple of 32, up to 1024; the tuning table of each device supplies it.
cudaError_t clamp_count(const float* x, float* y, unsigned int* clipped, float lo, float hi, int n, int block_size,
                        cudaStream_t stream) {
    if (n <= 0) {
        return cudaSuccess;
    }
    int blocks = (n + block_size - 1) / block_size;
    clamp_count_kernel<<<blocks, block_size, 0, stream>>>(x, y, clipped, lo, hi, n);
    return cudaGetLastError();
}
