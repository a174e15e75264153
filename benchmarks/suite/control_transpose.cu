// A transpose through a padded tile in shared memory, sixteen rows for each thread: nothing is left to gain.
#include <cuda_runtime.h>

#define TILE 64
#define LINES 4

// optiml: args.in = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.out = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 2 }, { rows = 7, cols = 129 }, { rows = 64, cols = 64 }, { rows = 65, cols = 31 }]
// optiml: time = [{ rows = 8192, cols = 8192 }]
__global__ void __launch_bounds__(TILE* LINES)
    control_transpose_kernel(const float* __restrict__ in, float* __restrict__ out, int rows, int cols) {
    __shared__ float tile[TILE][TILE + 1];
    int x = blockIdx.x * TILE + threadIdx.x;
    int y = blockIdx.y * TILE + threadIdx.y;
#pragma unroll
    for (int j = 0; j < TILE; j += LINES) {
        if (x < cols && y + j < rows) {
            tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * cols + x];
        }
    }
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
#pragma unroll
    for (int j = 0; j < TILE; j += LINES) {
        if (x < rows && y + j < cols) {
            out[(y + j) * rows + x] = tile[threadIdx.x][threadIdx.y + j];
        }
    }
}

void control_transpose(const float* in, float* out, int rows, int cols) {
    dim3 block(TILE, LINES);
    dim3 grid((cols + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    control_transpose_kernel<<<grid, block>>>(in, out, rows, cols);
}
