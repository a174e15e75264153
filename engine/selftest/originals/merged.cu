#include <cuda_runtime.h>

#define THREADS 256
#define CHUNK 4096

// How many blocks of the running launch are done. Zero between launches.
__device__ unsigned int g_done = 0;

// optiml: args.x = { role = "in", size = "n", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.partial = { role = "out", size = "2*cdiv(n, 4096)" }
// optiml: args.out = { role = "out", size = "2" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 18001 }]
// optiml: time = [{ n = 8388608 }]

// Sum and largest element in one launch: the block that is done last merges what all of them found.
__global__ void merged(const float* x, float* partial, float* out, int n) {
    __shared__ float sums[THREADS], peaks[THREADS];
    __shared__ bool last;
    const int begin = blockIdx.x * CHUNK, end = min(begin + CHUNK, n);
    float sum = 0.0f, peak = 0.0f;
    for (int i = begin + threadIdx.x; i < end; i += THREADS) {
        sum += x[i];
        peak = fmaxf(peak, x[i]);
    }
    sums[threadIdx.x] = sum;
    peaks[threadIdx.x] = peak;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step /= 2) {
        if (threadIdx.x < step) {
            sums[threadIdx.x] += sums[threadIdx.x + step];
            peaks[threadIdx.x] = fmaxf(peaks[threadIdx.x], peaks[threadIdx.x + step]);
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        partial[2 * blockIdx.x] = sums[0];
        partial[2 * blockIdx.x + 1] = peaks[0];
        __threadfence();
        last = atomicAdd(&g_done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        __threadfence();
        const volatile float* found = partial;
        sum = peak = 0.0f;
        for (unsigned int b = 0; b < gridDim.x; b++) {
            sum += found[2 * b];
            peak = fmaxf(peak, found[2 * b + 1]);
        }
        out[0] = sum;
        out[1] = peak;
        g_done = 0;
    }
}

void run_merged(const float* x, float* partial, float* out, int n) {
    merged<<<(n + CHUNK - 1) / CHUNK, THREADS>>>(x, partial, out, n);
}
