// Adds the histogram of a chunk of 16-bit samples to `bins`; samples beyond the last bin count in the last bin.
// A recording arrives in many chunks, on several streams at once, that all add to the same bins.
#include <cuda_runtime.h>

#include <cstdint>

#define THREADS 256

// optiml: args.data = { role = "in", size = "n", fill = { kind = "integers", low = 0, high = 1100 } }
// optiml: args.bins = { role = "inout", size = "nbins", fill = { kind = "constant", low = 0 } }
// optiml: check = [{ n = 1, nbins = 16 }, { n = 903, nbins = 1000 }, { n = 4096, nbins = 1 }, { n = 10007, nbins = 256 }]
// optiml: time = [{ n = 67108864, nbins = 1024 }]

__global__ void histogram_kernel(const unsigned short* data, unsigned int* bins, long long n, int nbins) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        int b = min((int)data[i], nbins - 1);
        atomicAdd(&bins[b], 1u);
    }
}

cudaError_t histogram_add(const uint16_t* data, unsigned int* bins, long long n, int nbins, cudaStream_t stream) {
    if (n == 0) {
        return cudaSuccess;
    }
    histogram_kernel<<<(n + THREADS - 1) / THREADS, THREADS, 0, stream>>>(data, bins, n, nbins);
    return cudaGetLastError();
}
