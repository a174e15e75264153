#include <cuda_runtime.h>

// optiml: kernel = "halve<float>"
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
template <typename T>
__global__ void halve(const T* x, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i] / T(2) + T(1);
    }
}

void run_floats(const float* x, float* y, int n) {
    halve<float><<<(n + 255) / 256, 256>>>(x, y, n);
}

void run_integers(const int* x, int* y, int n) {
    halve<int><<<(n + 255) / 256, 256>>>(x, y, n);
}
