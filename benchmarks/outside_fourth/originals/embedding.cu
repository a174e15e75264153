// out[i] = scale * table[ids[i]]. A negative id is padding: its row of the output is zero.
#include <cuda_runtime.h>

// optiml: args.table = { role = "in", size = "vocab*dim", fill = "normal" }
// optiml: args.ids = { role = "in", size = "count", fill = { kind = "integers", low = -1, high = "vocab" } }
// optiml: args.out = { role = "out", size = "count*dim" }
// optiml: args.scale = { value = "11.3125" }
// optiml: check = [{ count = 3, vocab = 2, dim = 1 }, { count = 37, vocab = 50, dim = 129 }, { count = 16, vocab = 9, dim = 256 }]
// optiml: time = [{ count = 16384, vocab = 50000, dim = 1024 }]

__global__ void embedding_kernel(const float* table, const long long* ids, float* out, int count, int dim, float scale) {
    int i = blockIdx.x;
    long long id = ids[i];
    float* to = out + (size_t)i * dim;
    if (id < 0) {
        for (int c = threadIdx.x; c < dim; c += blockDim.x) {
            to[c] = 0.0f;
        }
        return;
    }
    const float* from = table + id * dim;
    for (int c = threadIdx.x; c < dim; c += blockDim.x) {
        to[c] = from[c] * scale;
    }
}

cudaError_t embedding(const float* table, const long long* ids, float* out, int count, int dim, float scale,
                      cudaStream_t stream) {
    if (count > 0) {
        embedding_kernel<<<count, 128, 0, stream>>>(table, ids, out, count, dim, scale);
    }
    return cudaGetLastError();
}
