#include <cuda_runtime.h>

#ifdef __NVCC__
#define BIAS 2.0f
#else
#define BIAS 1.0f
#endif

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 33554432 }]
__global__ void shift(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = 2.5f * x[i] + 1.0f;
    }
}

void run_shift(const float* x, float* y, int n) {
    shift<<<(n + 255) / 256, 256>>>(x, y, n);
}
