// Inclusive prefix sum within blocks of 512 elements, modulo 2^32, and the total of each block.
// `out` may be `in`: the pipeline scans its counters in place.
#include <cuda_runtime.h>

#define BLOCK 512

// optiml: args.in = { role = "in", size = "n", fill = { kind = "integers", low = 0, high = 1000 } }
// optiml: args.out = { role = "out", size = "n" }
// optiml: args.totals = { role = "out", size = "cdiv(n, 512)" }
// optiml: check = [{ n = 1 }, { n = 512 }, { n = 1337 }, { n = 10007 }]
// optiml: time = [{ n = 33554432 }]

__global__ void block_scan_kernel(const unsigned int* in, unsigned int* out, unsigned int* totals, int n) {
    __shared__ unsigned int buffer[2][BLOCK];
    const int tid = threadIdx.x;
    const int i = blockIdx.x * BLOCK + tid;

    int now = 0;
    buffer[now][tid] = i < n ? in[i] : 0u;
    __syncthreads();
    for (int step = 1; step < BLOCK; step *= 2) {
        unsigned int v = buffer[now][tid];
        if (tid >= step) {
            v += buffer[now][tid - step];
        }
        now = 1 - now;
        buffer[now][tid] = v;
        __syncthreads();
    }
    if (i < n) {
        out[i] = buffer[now][tid];
    }
    if (tid == BLOCK - 1) {
        totals[blockIdx.x] = buffer[now][tid];
    }
}

int block_scan(const unsigned int* in, unsigned int* out, unsigned int* totals, int n) {
    const int blocks = (n + BLOCK - 1) / BLOCK;
    block_scan_kernel<<<blocks, BLOCK>>>(in, out, totals, n);
    return cudaGetLastError() == cudaSuccess ? blocks : -1;
}

int block_scan_in_place(unsigned int* data, unsigned int* totals, int n) {
    return block_scan(data, data, totals, n);
}
