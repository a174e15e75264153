// out = transpose(in) for a row-major rows x cols matrix.
#include <cuda_runtime.h>

constexpr int kTile = 16;

// optiml: args.in = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.out = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 64, cols = 96 }, { rows = 100, cols = 33 }]
// optiml: time = [{ rows = 8192, cols = 8192 }]

__global__ void transpose_kernel(const float* in, float* out, int rows, int cols) {
    const int col = blockIdx.x * kTile + threadIdx.x;
    const int row = blockIdx.y * kTile + threadIdx.y;
    if (row < rows && col < cols) {
        out[col * rows + row] = in[row * cols + col];
    }
}

cudaError_t transpose(const float* in, float* out, int rows, int cols) {
    const dim3 block(kTile, kTile);
    const dim3 grid((cols + kTile - 1) / kTile, (rows + kTile - 1) / kTile);
    transpose_kernel<<<grid, block>>>(in, out, rows, cols);
    return cudaPeekAtLastError();
}
