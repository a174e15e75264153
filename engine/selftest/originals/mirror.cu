#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "256*n", fill = "normal" }
// optiml: args.y = { role = "out", size = "256*n" }
// optiml: check = [{ n = 1 }, { n = 3 }, { n = 17 }]
// optiml: time = [{ n = 131072 }]

// Turns each run of 256 elements around; y may be x.
__global__ void mirror(const float* x, float* y) {
    __shared__ float tile[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    tile[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = 0.5f * tile[255 - threadIdx.x];
}

void run_mirror(const float* x, float* y, int n) {
    mirror<<<n, 256>>>(x, y);
}

void mirror_in_place(float* x, int n) {
    run_mirror(x, x, n);
}
