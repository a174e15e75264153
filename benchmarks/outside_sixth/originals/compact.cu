// Compacts each row by a bit mask: the kept values of a row move to its front, in their order; what lies behind them stays as it was.
// `out` may be `values` itself: a tile is read completely before any of it is written. Bits of the last word of a row behind `cols`
// may be anything. `count` (a row each) and `total` accumulate over calls, and calls on several streams may share `total`.
// cols <= 2^30. Always launched with THREADS threads.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

constexpr int THREADS = 128;
constexpr int WARPS = THREADS / 32;

// optiml: args.values = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.mask = { role = "in", size = "rows*((cols + 31) / 32)", fill = { kind = "integers", low = 0, high = 4294967295 } }
// optiml: args.out = { role = "inout", size = "rows*cols", fill = { kind = "constant", low = 0 } }
// optiml: args.count = { role = "inout", size = "rows", fill = { kind = "constant", low = 0 } }
// optiml: args.total = { role = "inout", size = "1", fill = { kind = "constant", low = 0 } }
// optiml: check = [{ rows = 1, cols = 3 }, { rows = 7, cols = 129 }, { rows = 5, cols = 1000 }, { rows = 33, cols = 64 }]
// optiml: time = [{ rows = 4096, cols = 16384 }]
__global__ void compact_rows_kernel(const float* values, const unsigned* mask, float* out, int* count, unsigned long long* total,
                                    int cols) {
    __shared__ int warp_sum[WARPS];
    const int row = blockIdx.x;
    const int lane = threadIdx.x & 31;
    const int warp = threadIdx.x >> 5;
    const float* src = values + (size_t)row * cols;
    const unsigned* bits = mask + (size_t)row * ((cols + 31) / 32);
    float* dst = out + (size_t)row * cols;
    int base = 0;
    for (int start = 0; start < cols; start += THREADS) {
        const int i = start + threadIdx.x;
        const bool keep = i < cols && ((bits[i >> 5] >> (i & 31)) & 1u) != 0;
        const float value = keep ? src[i] : 0.0f;
        const unsigned vote = __ballot_sync(0xffffffffu, keep);
        if (lane == 0) warp_sum[warp] = __popc(vote);
        __syncthreads();
        int before = base;
        int all = 0;
        for (int other = 0; other < WARPS; ++other) {
            if (other < warp) before += warp_sum[other];
            all += warp_sum[other];
        }
        if (keep) dst[before + __popc(vote & ((1u << lane) - 1u))] = value;
        base += all;
        __syncthreads();  // the counts are read before the next tile's are written
    }
    if (threadIdx.x == 0) {
        count[row] += base;
        atomicAdd(total, (unsigned long long)base);
    }
}

void compact_rows(const float* values, const unsigned* mask, float* out, int* count, unsigned long long* total, int rows, int cols,
                  cudaStream_t stream) {
    compact_rows_kernel<<<rows, THREADS, 0, stream>>>(values, mask, out, count, total, cols);
    if (cudaError_t e = cudaGetLastError(); e != cudaSuccess) {
        std::fprintf(stderr, "compact_rows_kernel: %s\n", cudaGetErrorName(e));
        std::abort();
    }
}
