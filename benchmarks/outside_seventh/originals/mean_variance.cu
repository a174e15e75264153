// Mean and (population) variance of a vector in one launch: the block that finishes last merges what all of them found.
#include <cuda_runtime.h>

constexpr int kThreads = 256;
constexpr int kChunk = 4096;

// How many blocks of the running launch are done. Zero between launches.
__device__ unsigned int g_done = 0;

struct Moments {
    float count;
    float mean;
    float m2;
};

__device__ Moments merge(Moments a, Moments b) {
    if (b.count == 0.0f) {
        return a;
    }
    Moments r;
    r.count = a.count + b.count;
    const float d = b.mean - a.mean;
    const float w = b.count / r.count;
    r.mean = a.mean + d * w;
    r.m2 = a.m2 + b.m2 + d * d * a.count * w;
    return r;
}

// optiml: args.x = { role = "in", size = "n", fill = { kind = "normal", low = 2, high = 1 } }
// optiml: args.partial = { role = "out", size = "3*cdiv(n, 4096)" }
// optiml: args.out = { role = "out", size = "2" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4096 }, { n = 18001 }]
// optiml: time = [{ n = 8388608 }]

// One block works on 4096 elements.
__global__ void mean_variance_kernel(const float* x, float* partial, float* out, long long n) {
    __shared__ Moments part[kThreads];
    __shared__ bool last;

    const long long begin = (long long)blockIdx.x * kChunk;
    const long long end = min(begin + kChunk, n);
    Moments m = {0.0f, 0.0f, 0.0f};
    for (long long i = begin + threadIdx.x; i < end; i += kThreads) {
        const float d = x[i] - m.mean;
        m.count += 1.0f;
        m.mean += d / m.count;
        m.m2 += d * (x[i] - m.mean);
    }
    part[threadIdx.x] = m;
    __syncthreads();
    for (int stride = kThreads / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            part[threadIdx.x] = merge(part[threadIdx.x], part[threadIdx.x + stride]);
        }
        __syncthreads();
    }

    if (threadIdx.x == 0) {
        partial[3 * blockIdx.x] = part[0].count;
        partial[3 * blockIdx.x + 1] = part[0].mean;
        partial[3 * blockIdx.x + 2] = part[0].m2;
        __threadfence();
        last = atomicAdd(&g_done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last) {
        return;
    }

    if (threadIdx.x == 0) {
        __threadfence();
        const volatile float* found = partial;
        Moments all = {found[0], found[1], found[2]};
        for (unsigned int b = 1; b < gridDim.x; b++) {
            Moments next = {found[3 * b], found[3 * b + 1], found[3 * b + 2]};
            all = merge(all, next);
        }
        out[0] = all.mean;
        out[1] = all.m2 / all.count;
        g_done = 0;
    }
}

// The result is in `result` (host memory of any kind) when the function returns.
cudaError_t mean_variance(const float* x, float* partial, float* out, float* result, long long n, cudaStream_t stream) {
    const unsigned int blocks = (unsigned int)((n + kChunk - 1) / kChunk);
    mean_variance_kernel<<<blocks, kThreads, 0, stream>>>(x, partial, out, n);
    cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) {
        return status;
    }
    status = cudaMemcpyAsync(result, out, 2 * sizeof(float), cudaMemcpyDeviceToHost, stream);
    if (status != cudaSuccess) {
        return status;
    }
    return cudaStreamSynchronize(stream);
}
