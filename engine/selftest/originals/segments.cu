#include <cuda_runtime.h>

#include <cmath>

// optiml: args.codes = { role = "in", size = "segments*len", fill = { kind = "integers", low = 0, high = 256 } }
// optiml: args.x = { role = "in", size = "segments*len", fill = "normal" }
// optiml: args.starts = { role = "in", size = "segments+1", fill = { kind = "offsets", low = 0, high = "len+1" } }
// optiml: args.sums = { role = "out", size = "segments" }
// optiml: args.where = { role = "out", size = "segments" }
// optiml: check = [{ segments = 1, len = 3 }, { segments = 129, len = 13 }, { segments = 40, len = 90 }]
// optiml: time = [{ segments = 65536, len = 128 }]

// One thread works on one segment: a checksum of its codes, and where the first of its largest numbers is (-1: nowhere).
__global__ void segments(const unsigned char* codes, const float* x, const int* starts, unsigned int* sums, int* where,
                         int segments) {
    int s = blockIdx.x * blockDim.x + threadIdx.x;
    if (s < segments) {
        int begin = starts[s], end = starts[s + 1];
        unsigned int sum = 17u;
        for (int i = begin; i < end; ++i) {
            sum = sum * 31u + codes[i];
        }
        float most = -INFINITY;
        int at = -1;
        for (int i = begin; i < end; ++i) {
            if (x[i] > most) {
                most = x[i];
                at = i;
            }
        }
        sums[s] = sum;
        where[s] = at;
    }
}

void run_segments(const unsigned char* codes, const float* x, const int* starts, unsigned int* sums, int* where, int count) {
    int threads = 128;
    segments<<<(count + threads - 1) / threads, threads>>>(codes, x, starts, sums, where, count);
}
