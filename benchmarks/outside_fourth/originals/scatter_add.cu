// Gradient of an embedding: dst[index[i]] += src[i] for rows of `dim` elements. Rows of index may repeat.
#include <cuda_runtime.h>

// optiml: args.src = { role = "in", size = "count*dim", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.index = { role = "in", size = "count", fill = { kind = "integers", low = 0, high = "vocab" } }
// optiml: args.dst = { role = "inout", size = "vocab*dim", fill = { kind = "constant", low = 1 } }
// optiml: deterministic = false
// optiml: check = [{ count = 1, vocab = 3, dim = 1 }, { count = 100, vocab = 20, dim = 33 }, { count = 60, vocab = 5, dim = 128 }]
// optiml: time = [{ count = 32768, vocab = 20000, dim = 512 }]

__global__ void scatter_add_kernel(const float* src, const int* index, float* dst, int count, int dim) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int i = blockIdx.y * blockDim.y + threadIdx.y;
    if (c < dim && i < count) {
        atomicAdd(&dst[(size_t)index[i] * dim + c], src[(size_t)i * dim + c]);
    }
}

void scatter_add(const float* src, const int* index, float* dst, int count, int dim, cudaStream_t stream) {
    dim3 block(32, 8);
    dim3 grid((dim + 31) / 32, (count + 7) / 8);
    scatter_add_kernel<<<grid, block, 0, stream>>>(src, index, dst, count, dim);
}
