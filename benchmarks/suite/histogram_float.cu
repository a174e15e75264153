// How many values of [0, 1) fall into each of equally wide bins. Adds to what `counts` holds.
#include <cuda_runtime.h>

// optiml: args.values = { role = "in", size = "n", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.counts = { role = "inout", size = "bins", fill = { kind = "constant", low = 0 } }
// optiml: check = [{ n = 1, bins = 16 }, { n = 903, bins = 64 }, { n = 10007, bins = 1024 }]
// optiml: time = [{ n = 16777216, bins = 1024 }]
__global__ void histogram_float_kernel(const float* values, int* counts, int n, int bins) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        int bin = min((int)(values[i] * bins), bins - 1);
        atomicAdd(&counts[bin], 1);
    }
}

void histogram_float(const float* values, int* counts, int n, int bins) {
    cudaMemset(counts, 0, bins * sizeof(int));
    histogram_float_kernel<<<(n + 255) / 256, 256>>>(values, counts, n, bins);
}
