// Largest value of each segment and where it is: the first one of several equal ones. Segment s is starts[s] ... starts[s + 1] - 1.
#include <cuda_runtime.h>

#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#define CUDA_CHECK(call)                                                                  \
    do {                                                                                  \
        cudaError_t status = (call);                                                      \
        if (status != cudaSuccess) {                                                      \
            std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(status)); \
            std::exit(EXIT_FAILURE);                                                      \
        }                                                                                 \
    } while (0)

// where[s] becomes row where[s] of the table, or zeros where there is none. One block copies one row.
__global__ void take_rows_kernel(const float* table, const int* where, float* rows, int width) {
    const int from = where[blockIdx.x];
    for (int c = threadIdx.x; c < width; c += blockDim.x) {
        rows[(size_t)blockIdx.x * width + c] = from < 0 ? 0.0f : table[(size_t)from * width + c];
    }
}

// optiml: args.x = { role = "in", size = "segments*len", fill = "normal" }
// optiml: args.starts = { role = "in", size = "segments+1", fill = { kind = "offsets", low = 0, high = "len+1" } }
// optiml: args.best = { role = "out", size = "segments" }
// optiml: args.where = { role = "out", size = "segments" }
// optiml: check = [{ segments = 1, len = 1 }, { segments = 7, len = 129 }, { segments = 301, len = 20 }, { segments = 40, len = 300 }]
// optiml: time = [{ segments = 65536, len = 128 }]

// One warp works on one segment. NaN is never the largest; a segment without another value has where = -1, best = -infinity.
__global__ void segment_argmax_kernel(const float* x, const int* starts, float* best, int* where, int segments) {
    const int lane = threadIdx.x & 31;
    const int s = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    if (s >= segments) {
        return;
    }
    const int begin = starts[s];
    const int end = starts[s + 1];
    float value = -INFINITY;
    int index = INT_MAX;
    for (int i = begin + lane; i < end; i += 32) {
        const float v = x[i];
        if (v > value || (v == value && i < index)) {
            value = v;
            index = i;
        }
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        const float v = __shfl_xor_sync(0xffffffffu, value, offset);
        const int i = __shfl_xor_sync(0xffffffffu, index, offset);
        if (v > value || (v == value && i < index)) {
            value = v;
            index = i;
        }
    }
    if (lane == 0) {
        best[s] = value;
        where[s] = index == INT_MAX ? -1 : index;
    }
}

void segment_argmax(const float* x, const int* starts, float* best, int* where, int segments, cudaStream_t stream) {
    const int threads = 128;
    const int blocks = (segments + 3) / 4;
    segment_argmax_kernel<<<blocks, threads, 0, stream>>>(x, starts, best, where, segments);
    CUDA_CHECK(cudaGetLastError());
}

void take_rows(const float* table, const int* where, float* rows, int segments, int width, cudaStream_t stream) {
    take_rows_kernel<<<segments, 128, 0, stream>>>(table, where, rows, width);
    CUDA_CHECK(cudaGetLastError());
}
