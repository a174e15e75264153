// residual += x, then out = rmsnorm(residual) * weight. Half precision storage, single precision arithmetic.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define THREADS 256

// optiml: args.x = { role = "in", size = "rows*hidden", fill = "normal" }
// optiml: args.residual = { role = "inout", size = "rows*hidden", fill = "normal" }
// optiml: args.weight = { role = "in", size = "hidden", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.out = { role = "out", size = "rows*hidden" }
// optiml: args.eps = { value = "1e-5" }
// optiml: check = [{ rows = 1, hidden = 1 }, { rows = 7, hidden = 129 }, { rows = 3, hidden = 2048 }, { rows = 11, hidden = 514 }]
// optiml: time = [{ rows = 8192, hidden = 4096 }]

__global__ void add_rmsnorm_kernel(const half* x, half* residual, const half* weight, half* out, int rows, int hidden,
                                   float eps) {
    __shared__ float partial[THREADS];
    const size_t start = (size_t)blockIdx.x * hidden;

    float sum = 0.0f;
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        float v = __half2float(x[start + i]) + __half2float(residual[start + i]);
        residual[start + i] = __float2half(v);
        sum += v * v;
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int step = THREADS / 2; step > 0; step >>= 1) {
        if (threadIdx.x < step) {
            partial[threadIdx.x] += partial[threadIdx.x + step];
        }
        __syncthreads();
    }

    const float scale = rsqrtf(partial[0] / hidden + eps);
    for (int i = threadIdx.x; i < hidden; i += THREADS) {
        float v = __half2float(residual[start + i]);
        out[start + i] = __float2half(v * scale * __half2float(weight[i]));
    }
}

cudaError_t add_rmsnorm(const half* x, half* residual, const half* weight, half* out, int rows, int hidden, float eps,
                        cudaStream_t stream) {
    add_rmsnorm_kernel<<<rows, THREADS, 0, stream>>>(x, residual, weight, out, rows, hidden, eps);
    return cudaGetLastError();
}
