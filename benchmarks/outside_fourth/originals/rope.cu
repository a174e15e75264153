// Rotary position embedding, in place. q is tokens x heads x dim, dim is even; neighbouring elements form a pair.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>

// optiml: args.q = { role = "inout", size = "tokens*heads*dim", fill = "normal" }
// optiml: args.pos = { role = "in", size = "tokens", fill = { kind = "integers", low = 0, high = 1024 } }
// optiml: args.base = { value = "10000" }
// optiml: check = [{ tokens = 1, heads = 1, dim = 2 }, { tokens = 7, heads = 3, dim = 64 }, { tokens = 5, heads = 8, dim = 128 }]
// optiml: time = [{ tokens = 8192, heads = 32, dim = 128 }]

__global__ void rope_kernel(half* q, const int* pos, int tokens, int heads, int dim, float base) {
    int pairs = dim / 2;
    int token = blockIdx.x;
    half* row = q + (size_t)token * heads * dim;
    for (int j = threadIdx.x; j < heads * pairs; j += blockDim.x) {
        int head = j / pairs;
        int pair = j % pairs;
        float angle = pos[token] * powf(base, -2.0f * pair / dim);
        float s, c;
        sincosf(angle, &s, &c);
        half* two = row + head * dim + 2 * pair;
        float a = __half2float(two[0]);
        float b = __half2float(two[1]);
        two[0] = __float2half(a * c - b * s);
        two[1] = __float2half(a * s + b * c);
    }
}

cudaError_t rope(half* q, const int* pos, int tokens, int heads, int dim, float base, cudaStream_t stream) {
    rope_kernel<<<tokens, 128, 0, stream>>>(q, pos, tokens, heads, dim, base);
    return cudaGetLastError();
}
