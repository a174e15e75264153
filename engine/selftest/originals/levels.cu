#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "n", fill = { kind = "integers", low = 0, high = 256 } }
// optiml: args.mask = { role = "in", size = "n", fill = { kind = "integers", low = 0, high = 2 } }
// optiml: args.y = { role = "out", size = "n" }
// optiml: args.weight = { value = "48" }
// optiml: args.inverted = { value = "0" }
// optiml: check = [{ n = 1, threads = 256 }, { n = 903, threads = 256 }, { n = 4100, threads = 256 }]
// optiml: time = [{ n = 33554432, threads = 256 }]

// Mixes masked levels with grey, weight in 0..256. A mask that is not zero keeps its level.
__global__ void levels(const unsigned char* x, const unsigned char* mask, int* y, int n, int weight, int inverted) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        int value = mask[i] ? x[i] : 0;
        int level = weight * value + (256 - weight) * 128;
        y[i] = inverted ? 65535 - level : level;
    }
}

void run_levels(const unsigned char* x, const unsigned char* mask, int* y, int n, int weight, int inverted, int threads) {
    levels<<<(n + threads - 1) / threads, threads>>>(x, mask, y, n, weight, inverted);
}
