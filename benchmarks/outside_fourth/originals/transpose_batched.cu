// Transposes a batch of row-major matrices: out[b][c][r] = in[b][r][c].
#include <cuda_runtime.h>

#define TILE 16

// optiml: kernel = "transpose_kernel<float>"
// optiml: args.in = { role = "in", size = "batch*rows*cols", fill = "normal" }
// optiml: args.out = { role = "out", size = "batch*rows*cols" }
// optiml: check = [{ batch = 1, rows = 1, cols = 1 }, { batch = 3, rows = 7, cols = 129 }, { batch = 2, rows = 64, cols = 48 }]
// optiml: time = [{ batch = 16, rows = 2048, cols = 1024 }]

template <typename T>
__global__ void transpose_kernel(const T* in, T* out, int rows, int cols) {
    int c = blockIdx.x * TILE + threadIdx.x;
    int r = blockIdx.y * TILE + threadIdx.y;
    size_t base = (size_t)blockIdx.z * rows * cols;
    if (r < rows && c < cols) {
        out[base + (size_t)c * rows + r] = in[base + (size_t)r * cols + c];
    }
}

template <typename T>
void transpose(const T* in, T* out, int batch, int rows, int cols, cudaStream_t stream) {
    dim3 block(TILE, TILE);
    dim3 grid((cols + TILE - 1) / TILE, (rows + TILE - 1) / TILE, batch);
    transpose_kernel<T><<<grid, block, 0, stream>>>(in, out, rows, cols);
}

template void transpose<float>(const float*, float*, int, int, int, cudaStream_t);
template void transpose<double>(const double*, double*, int, int, int, cudaStream_t);
template void transpose<short>(const short*, short*, int, int, int, cudaStream_t);
