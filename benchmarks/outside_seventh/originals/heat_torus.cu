// Explicit steps of the heat equation on a height x width grid whose edges are joined (a torus), in single or double precision.
#include <cuda_runtime.h>

#include <cstddef>
#include <utility>

// optiml: kernel = "heat_torus_kernel<float>"
// optiml: args.u = { role = "in", size = "height*width", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.next = { role = "out", size = "height*width" }
// optiml: args.alpha = { value = "0.2" }
// optiml: check = [{ height = 1, width = 1 }, { height = 7, width = 129 }, { height = 50, width = 3 }, { height = 66, width = 50 }]
// optiml: time = [{ height = 2048, width = 4096 }]

// One thread computes one cell. Tiles of the block's shape are numbered row by row.
template <typename T>
__global__ void heat_torus_kernel(const T* u, T* next, int height, int width, T alpha) {
    const int tiles = (width + blockDim.x - 1) / blockDim.x;
    const int tile_y = blockIdx.x / tiles;
    const int x = (blockIdx.x - tile_y * tiles) * blockDim.x + threadIdx.x;
    const int y = tile_y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) {
        return;
    }
    const int left = x == 0 ? width - 1 : x - 1;
    const int right = x == width - 1 ? 0 : x + 1;
    const int up = y == 0 ? height - 1 : y - 1;
    const int down = y == height - 1 ? 0 : y + 1;

    const T c = u[(size_t)y * width + x];
    const T sum = u[(size_t)y * width + left] + u[(size_t)y * width + right] + u[(size_t)up * width + x] +
                  u[(size_t)down * width + x];
    next[(size_t)y * width + x] = c + alpha * (sum - T(4) * c);
}

// One step. Single precision works on tiles of 32 x 8, double precision on 16 x 16.
template <typename T>
cudaError_t heat_step(const T* u, T* next, int height, int width, T alpha, cudaStream_t stream) {
    const dim3 block(sizeof(T) == 4 ? 32 : 16, sizeof(T) == 4 ? 8 : 16);
    const int tiles = ((width + block.x - 1) / block.x) * ((height + block.y - 1) / block.y);
    heat_torus_kernel<T><<<tiles, block, 0, stream>>>(u, next, height, width, alpha);
    return cudaGetLastError();
}

// `steps` steps from u; `other` is scratch. The result is in u.
template <typename T>
cudaError_t heat_steps(T* u, T* other, int height, int width, T alpha, int steps, cudaStream_t stream) {
    T* from = u;
    T* to = other;
    for (int i = 0; i < steps; i++) {
        const cudaError_t status = heat_step<T>(from, to, height, width, alpha, stream);
        if (status != cudaSuccess) {
            return status;
        }
        std::swap(from, to);
    }
    if (from != u) {
        return cudaMemcpyAsync(u, from, sizeof(T) * height * width, cudaMemcpyDeviceToDevice, stream);
    }
    return cudaSuccess;
}

template cudaError_t heat_steps<float>(float*, float*, int, int, float, int, cudaStream_t);
template cudaError_t heat_steps<double>(double*, double*, int, int, double, int, cudaStream_t);
