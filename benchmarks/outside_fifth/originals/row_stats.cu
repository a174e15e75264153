// Mean, variance, minimum and maximum of every row of a matrix with leading dimension ld. One block per row.
// NaNs spread into mean and variance and are skipped by minimum and maximum.
#include <cuda_runtime.h>

#include <cmath>

struct RowStats {
    float mean, var, lo, hi;
};

// optiml: args.x = { role = "in", size = "rows*ld", fill = "normal" }
// optiml: args.out = { role = "out", size = "rows", type = "float[4]" }
// optiml: args.ddof = { value = "1" }
// optiml: launch = { grid = "rows", block = "threads", shared = "threads*4" }
// optiml: check = [{ rows = 1, cols = 2, ld = 2, threads = 128 }, { rows = 5, cols = 77, ld = 80, threads = 128 }, { rows = 3, cols = 700, ld = 700, threads = 256 }]
// optiml: time = [{ rows = 4096, cols = 4096, ld = 4096, threads = 256 }]
__global__ void row_stats_kernel(const float* x, RowStats* out, int rows, int cols, int ld, int ddof) {
    extern __shared__ float scratch[];
    const float* row = x + (size_t)blockIdx.x * ld;
    int t = threadIdx.x;

    float sum = 0.0f;
    for (int c = t; c < cols; c += blockDim.x) sum += row[c];
    scratch[t] = sum;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (t < s) scratch[t] += scratch[t + s];
        __syncthreads();
    }
    float mean = scratch[0] / cols;
    __syncthreads();

    float sq = 0.0f;
    float lo = INFINITY;
    float hi = -INFINITY;
    for (int c = t; c < cols; c += blockDim.x) {
        float v = row[c];
        float d = v - mean;
        sq += d * d;
        lo = fminf(lo, v);
        hi = fmaxf(hi, v);
    }
    scratch[t] = sq;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (t < s) scratch[t] += scratch[t + s];
        __syncthreads();
    }
    float var = scratch[0] / (cols - ddof);
    __syncthreads();

    scratch[t] = lo;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (t < s) scratch[t] = fminf(scratch[t], scratch[t + s]);
        __syncthreads();
    }
    lo = scratch[0];
    __syncthreads();

    scratch[t] = hi;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (t < s) scratch[t] = fmaxf(scratch[t], scratch[t + s]);
        __syncthreads();
    }
    if (t == 0) {
        RowStats r;
        r.mean = mean;
        r.var = var;
        r.lo = lo;
        r.hi = scratch[0];
        out[blockIdx.x] = r;
    }
}

// threads: a power of two, from 32 to 1024.
cudaError_t row_stats(const float* x, RowStats* out, int rows, int cols, int ld, int ddof, int threads, cudaStream_t stream) {
    if (rows == 0) return cudaSuccess;
    row_stats_kernel<<<rows, threads, threads * sizeof(float), stream>>>(x, out, rows, cols, ld, ddof);
    return cudaGetLastError();
}
