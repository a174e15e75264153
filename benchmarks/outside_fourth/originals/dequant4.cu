// Expands 4-bit weights: out = (q - 8) * scale, with one scale for each `group` columns of a row.
// Two weights share a byte, the first one in the low nibble.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

// optiml: args.packed = { role = "in", size = "cdiv(rows*cols, 2)", fill = { kind = "integers", low = 0, high = 256 } }
// optiml: args.scales = { role = "in", size = "rows*cdiv(cols, group)", fill = { kind = "uniform", low = 0.01, high = 0.1 } }
// optiml: args.out = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1, group = 32 }, { rows = 7, cols = 160, group = 32 }, { rows = 3, cols = 129, group = 64 }, { rows = 16, cols = 256, group = 128 }]
// optiml: time = [{ rows = 8192, cols = 8192, group = 128 }]

__global__ void dequant4_kernel(const unsigned char* packed, const half* scales, half* out, int rows, int cols, int group) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int r = blockIdx.y;
    if (c >= cols) {
        return;
    }
    size_t at = (size_t)r * cols + c;
    int groups = (cols + group - 1) / group;
    unsigned char byte = packed[at / 2];
    int q = (at % 2 == 0) ? (byte & 15) : (byte >> 4);
    half scale = scales[(size_t)r * groups + c / group];
    out[at] = __hmul(__int2half_rn(q - 8), scale);
}

cudaError_t dequant4(const unsigned char* packed, const half* scales, half* out, int rows, int cols, int group,
                     cudaStream_t stream) {
    dim3 block(128);
    dim3 grid((cols + 127) / 128, rows);
    dequant4_kernel<<<grid, block, 0, stream>>>(packed, scales, out, rows, cols, group);
    return cudaGetLastError();
}
