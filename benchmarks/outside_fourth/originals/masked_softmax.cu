// Softmax over the unmasked columns of each row. Masked columns get probability 0; a fully masked row is all zeros.
// A mask byte counts as "keep" if it is not zero. Scores of masked columns may hold anything.
#include <cuda_runtime.h>

#include <cmath>

#define THREADS 128

// optiml: args.scores = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.mask = { role = "in", size = "rows*cols", fill = { kind = "integers", low = 0, high = 2 } }
// optiml: args.probs = { role = "out", size = "rows*cols" }
// optiml: args.scale = { value = "0.125" }
// optiml: check = [{ rows = 1, cols = 37 }, { rows = 7, cols = 129 }, { rows = 33, cols = 64 }, { rows = 5, cols = 1000 }]
// optiml: time = [{ rows = 8192, cols = 4096 }]

__global__ void masked_softmax_kernel(const float* scores, const unsigned char* mask, float* probs, int rows, int cols,
                                      float scale) {
    __shared__ float red[THREADS];
    const int tid = threadIdx.x;
    const size_t start = (size_t)blockIdx.x * cols;
    const float* s = scores + start;
    const unsigned char* m = mask + start;
    float* p = probs + start;

    float largest = -INFINITY;
    for (int c = tid; c < cols; c += THREADS) {
        if (m[c]) {
            largest = fmaxf(largest, s[c] * scale);
        }
    }
    red[tid] = largest;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if (tid < step) {
            red[tid] = fmaxf(red[tid], red[tid + step]);
        }
        __syncthreads();
    }
    largest = red[0];
    __syncthreads();

    float sum = 0.0f;
    for (int c = tid; c < cols; c += THREADS) {
        if (m[c]) {
            sum += expf(s[c] * scale - largest);
        }
    }
    red[tid] = sum;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if (tid < step) {
            red[tid] += red[tid + step];
        }
        __syncthreads();
    }
    sum = red[0];

    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int c = tid; c < cols; c += THREADS) {
        p[c] = m[c] ? expf(s[c] * scale - largest) * inverse : 0.0f;
    }
}

cudaError_t masked_softmax(const float* scores, const unsigned char* mask, float* probs, int rows, int cols, float scale,
                           cudaStream_t stream) {
    masked_softmax_kernel<<<rows, THREADS, 0, stream>>>(scores, mask, probs, rows, cols, scale);
    return cudaGetLastError();
}
