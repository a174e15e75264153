// Rotary position embedding on half-precision queries or keys: x and y are [tokens][heads][dim] with a row stride each (rows may lie
// in a fused QKV buffer). y may be x, with the same stride. A negative position marks a padding token: it is passed through. Positions
// reach a few million (long contexts). dim is even. Both pairings are in use: halves (GPT-NeoX) and interleaved (GPT-J).
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

// The two elements of a head that pair p rotates.
template <bool INTERLEAVED>
__device__ void pair_of(int p, int half_dim, int& lo, int& hi) {
    if (INTERLEAVED) {
        lo = 2 * p;
        hi = 2 * p + 1;
    } else {
        lo = p;
        hi = p + half_dim;
    }
}

// optiml: kernel = "rope_kernel<false>"
// optiml: args.x = { role = "in", size = "tokens*x_stride", fill = "normal" }
// optiml: args.y = { role = "out", size = "tokens*y_stride" }
// optiml: args.positions = { role = "in", size = "tokens", fill = { kind = "integers", low = 0, high = "tokens" } }
// optiml: args.inv_freq = { role = "in", size = "dim/2", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: check = [{ tokens = 1, heads = 1, dim = 2, x_stride = 2, y_stride = 2, block_size = 128 }, { tokens = 9, heads = 3, dim = 64, x_stride = 576, y_stride = 192, block_size = 128 }, { tokens = 37, heads = 2, dim = 90, x_stride = 181, y_stride = 180, block_size = 128 }]
// optiml: time = [{ tokens = 8192, heads = 32, dim = 128, x_stride = 4096, y_stride = 4096, block_size = 128 }]
template <bool INTERLEAVED>
__global__ void rope_kernel(const __half* x, __half* y, const int* positions, const float* inv_freq, int heads, int dim,
                            int x_stride, int y_stride) {
    const int token = blockIdx.x;
    const int half_dim = dim / 2;
    const __half* src = x + (size_t)token * x_stride;
    __half* dst = y + (size_t)token * y_stride;
    const int pos = positions[token];
    for (int t = threadIdx.x; t < heads * half_dim; t += blockDim.x) {
        const int head = t / half_dim;
        const int p = t % half_dim;
        int lo, hi;
        pair_of<INTERLEAVED>(p, half_dim, lo, hi);
        lo += head * dim;
        hi += head * dim;
        const __half xa = src[lo];
        const __half xb = src[hi];
        if (pos < 0) {
            dst[lo] = xa;
            dst[hi] = xb;
            continue;
        }
        float sine, cosine;
        sincosf((float)pos * inv_freq[p], &sine, &cosine);
        const float a = __half2float(xa);
        const float b = __half2float(xb);
        dst[lo] = __float2half(a * cosine - b * sine);
        dst[hi] = __float2half(b * cosine + a * sine);
    }
}

void rope(const __half* x, __half* y, const int* positions, const float* inv_freq, int tokens, int heads, int dim, int x_stride,
          int y_stride, int block_size, bool interleaved) {
    if (interleaved) {
        rope_kernel<true><<<tokens, block_size>>>(x, y, positions, inv_freq, heads, dim, x_stride, y_stride);
    } else {
        rope_kernel<false><<<tokens, block_size>>>(x, y, positions, inv_freq, heads, dim, x_stride, y_stride);
    }
    if (cudaError_t e = cudaGetLastError(); e != cudaSuccess) {
        std::fprintf(stderr, "rope_kernel: %s\n", cudaGetErrorName(e));
        std::abort();
    }
}
