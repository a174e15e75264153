// Rotary position embedding in place: x[token][head][2 * pairs], element i is rotated with element i + pairs.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// optiml: args.x = { role = "inout", size = "tokens*heads*2*pairs", fill = "normal" }
// optiml: args.pos = { role = "in", size = "tokens", fill = { kind = "integers", low = 0, high = "max_pos" } }
// optiml: args.cos_table = { role = "in", size = "max_pos*pairs", fill = { kind = "uniform", low = -1, high = 1 } }
// optiml: args.sin_table = { role = "in", size = "max_pos*pairs", fill = { kind = "uniform", low = -1, high = 1 } }
// optiml: check = [{ tokens = 1, heads = 1, pairs = 1, max_pos = 1, block_size = 256 }, { tokens = 7, heads = 3, pairs = 32, max_pos = 50, block_size = 256 }, { tokens = 12, heads = 4, pairs = 20, max_pos = 9, block_size = 128 }, { tokens = 33, heads = 2, pairs = 16, max_pos = 100, block_size = 256 }]
// optiml: time = [{ tokens = 1024, heads = 16, pairs = 64, max_pos = 4096, block_size = 256 }]

// One thread rotates one pair. The arithmetic is in single precision, each result is rounded once.
__global__ void rope_kernel(half* x, const int* pos, const float* cos_table, const float* sin_table, int tokens, int heads,
                            int pairs) {
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= (long long)tokens * heads * pairs) {
        return;
    }
    const long long vec = i / pairs;
    const int p = (int)(i - vec * pairs);
    const int token = (int)(vec / heads);

    const size_t entry = (size_t)pos[token] * pairs + p;
    const float c = cos_table[entry];
    const float s = sin_table[entry];

    half* v = x + vec * 2 * pairs;
    const float a = __half2float(v[p]);
    const float b = __half2float(v[p + pairs]);
    v[p] = __float2half(a * c - b * s);
    v[p + pairs] = __float2half(b * c + a * s);
}

// Work is queued in `stream`; block_size is what the caller's tuning table says, up to 1024. No tokens is no work.
cudaError_t rope(half* x, const int* pos, const float* cos_table, const float* sin_table, int tokens, int heads, int pairs,
                 int block_size, cudaStream_t stream) {
    if (tokens == 0) {
        return cudaSuccess;
    }
    const long long total = (long long)tokens * heads * pairs;
    const unsigned int blocks = (unsigned int)((total + block_size - 1) / block_size);
    rope_kernel<<<blocks, block_size, 0, stream>>>(x, pos, cos_table, sin_table, tokens, heads, pairs);
    return cudaGetLastError();
}
