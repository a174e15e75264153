#include <cuda_runtime.h>

template <typename T, int STEPS>
__device__ T polynomial(T v) {
    T sum = T(0);
    for (int k = 0; k < STEPS; ++k) {
        sum = sum * v + T(1);
    }
    return sum;
}

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.w = { role = "in", size = "n", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
// optiml: kernel = "blend<float, 4>"
template <typename T, int STEPS>
__global__ void blend(const T* x, const T* w, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = w[i] * polynomial<T, STEPS>(x[i] * T(0.1));
    }
}

void run_blend(const float* x, const float* w, float* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    blend<float, 4><<<blocks, threads>>>(x, w, y, n);
}
