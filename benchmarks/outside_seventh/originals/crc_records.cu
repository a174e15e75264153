// CRC-32 (reflected, as in zlib) of each record of a packed buffer. Record r is data[starts[r]] ... data[starts[r + 1] - 1].
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>

// The CRC of each nibble.
__constant__ unsigned int kNibble[16] = {0x00000000u, 0x1db71064u, 0x3b6e20c8u, 0x26d930acu, 0x76dc4190u, 0x6b6b51f4u,
                                         0x4db26158u, 0x5005713cu, 0xedb88320u, 0xf00f9344u, 0xd6d6a3e8u, 0xcb61b38cu,
                                         0x9b64c2b0u, 0x86d3d2d4u, 0xa00ae278u, 0xbdbdf21cu};

// optiml: args.data = { role = "in", size = "n*len", fill = { kind = "integers", low = 0, high = 256 } }
// optiml: args.starts = { role = "in", size = "n+1", fill = { kind = "offsets", low = 0, high = "len+1" } }
// optiml: args.crc = { role = "out", size = "n" }
// optiml: check = [{ n = 1, len = 9 }, { n = 129, len = 40 }, { n = 1000, len = 13 }, { n = 70, len = 150 }]
// optiml: time = [{ n = 32768, len = 256 }]

// One thread works on one record after another. An empty record has the CRC 0.
__global__ void crc_records_kernel(const unsigned char* data, const int* starts, unsigned int* crc, int n) {
    for (long long r = (long long)blockIdx.x * blockDim.x + threadIdx.x; r < n; r += (long long)gridDim.x * blockDim.x) {
        const int begin = starts[r];
        const int end = starts[r + 1];
        unsigned int c = 0xffffffffu;
        for (int i = begin; i < end; i++) {
            c ^= data[i];
            c = kNibble[c & 15] ^ (c >> 4);
            c = kNibble[c & 15] ^ (c >> 4);
        }
        crc[r] = ~c;
    }
}

// Called from C and from Python (ctypes).
extern "C" int crc_records(const unsigned char* data, const int* starts, unsigned int* crc, int n) {
    if (n <= 0) {
        return 0;
    }
    const int threads = 128;
    const int blocks = std::min((n + threads - 1) / threads, 2048);
    crc_records_kernel<<<blocks, threads>>>(data, starts, crc, n);
    const cudaError_t status = cudaGetLastError();
    if (status != cudaSuccess) {
        std::fprintf(stderr, "crc_records: %s\n", cudaGetErrorString(status));
        return -1;
    }
    return 0;
}
