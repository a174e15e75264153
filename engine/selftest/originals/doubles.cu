#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4100 }]
// optiml: time = [{ n = 16777216 }]
__global__ void doubles(const double* x, double* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = x[i] * x[i] * 0.5 + x[i] + 1.0;
    }
}

void run_doubles(const double* x, double* y, int n) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    doubles<<<blocks, threads>>>(x, y, n);
}
