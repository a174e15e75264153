// Hamming distance of a binary query to n binary codes of `words` 64-bit words each.
#include <cuda_runtime.h>

// optiml: args.query = { role = "in", size = "words", fill = { kind = "integers", low = 0, high = 1000000000000000000 } }
// optiml: args.codes = { role = "in", size = "n*words", fill = { kind = "integers", low = 0, high = 1000000000000000000 } }
// optiml: args.dist = { role = "out", size = "n" }
// optiml: check = [{ n = 1, words = 1 }, { n = 129, words = 3 }, { n = 1000, words = 4 }, { n = 260, words = 16 }]
// optiml: time = [{ n = 4194304, words = 4 }, { n = 1048576, words = 16 }]

__global__ void hamming_kernel(const unsigned long long* query, const unsigned long long* codes, int* dist, int n,
                               int words) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    const unsigned long long* code = codes + (size_t)i * words;
    int d = 0;
    for (int w = 0; w < words; ++w) {
        d += __popcll(query[w] ^ code[w]);
    }
    dist[i] = d;
}

cudaError_t hamming(const unsigned long long* query, const unsigned long long* codes, int* dist, int n, int words,
                    cudaStream_t stream) {
    int threads = 256;
    int blocks = (n + threads - 1) / threads;
    hamming_kernel<<<blocks, threads, 0, stream>>>(query, codes, dist, n, words);
    return cudaGetLastError();
}
