// Dot product of two vectors. The kernel spec of this file stands in optiml.toml.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>

#define CHECK(x)                        \
    if ((x) != cudaSuccess) {           \
        std::exit(EXIT_FAILURE);        \
    }

// Every thread adds up a part and then adds it to the result; the order of the additions differs from run to run.
__global__ void dot_kernel(const float* a, const float* b, float* result, int n) {
    int stride = gridDim.x * blockDim.x;
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        sum += a[i] * b[i];
    }
    atomicAdd(result, sum);
}

void dot(const float* a, const float* b, float* result, int n) {
    const int threads = 256;
    const int blocks = std::min((n + threads - 1) / threads, 1024);
    CHECK(cudaMemset(result, 0, sizeof(float)));
    dot_kernel<<<blocks, threads>>>(a, b, result, n);
    CHECK(cudaGetLastError());
}
