#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "inout", size = "n", fill = "normal" }
// optiml: args.a = { role = "scalar", value = "2.5" }
// optiml: check = [{ n = 1 }, { n = 333 }, { n = 5000 }]
// optiml: time = [{ n = 16777216 }]
// y += a * x, for any a.
__global__ void axpy(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] += a * x[i];
    }
}

void run_axpy(const float* x, float* y, float a, int n) {
    axpy<<<(n + 255) / 256, 256>>>(x, y, a, n);
}
