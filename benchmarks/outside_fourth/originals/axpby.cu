// out = a * x + b * y on long vectors.
// The solver calls it in place as well: out may be the same vector as x or as y (never shifted against them).
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "in", size = "n", fill = "normal" }
// optiml: args.out = { role = "out", size = "n" }
// optiml: args.a = { value = "1.5" }
// optiml: args.b = { value = "0.75" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4096 }, { n = 10007 }]
// optiml: time = [{ n = 33554432 }]

__global__ void axpby_kernel(float a, const float* x, float b, const float* y, float* out, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        out[i] = a * x[i] + b * y[i];
    }
}

cudaError_t axpby(float a, const float* x, float b, const float* y, float* out, size_t n, cudaStream_t stream) {
    if (n == 0) {
        return cudaSuccess;
    }
    const int threads = 256;
    const unsigned int blocks = (n + threads - 1) / threads;
    axpby_kernel<<<blocks, threads, 0, stream>>>(a, x, b, y, out, n);
    return cudaGetLastError();
}

// Updates y[first .. first + count) in place.
cudaError_t axpby_range(float a, const float* x, float b, float* y, size_t first, size_t count, cudaStream_t stream) {
    return axpby(a, x + first, b, y + first, y + first, count, stream);
}
