// One Jacobi step of the five-point stencil on a height x width grid; the border is kept.
#include <cuda_runtime.h>

#include <cassert>

#define IDX(y, x) ((y) * width + (x))

// optiml: args.in = { role = "in", size = "height*width", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.out = { role = "out", size = "height*width" }
// optiml: check = [{ height = 1, width = 1 }, { height = 7, width = 129 }, { height = 3, width = 3 }, { height = 66, width = 50 }]
// optiml: time = [{ height = 8192, width = 8192 }]

__global__ void stencil_kernel(const float* in, float* out, int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) {
        return;
    }
    if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
        out[IDX(y, x)] = in[IDX(y, x)];
        return;
    }
    out[IDX(y, x)] =
        0.2f * (in[IDX(y, x)] + in[IDX(y - 1, x)] + in[IDX(y + 1, x)] + in[IDX(y, x - 1)] + in[IDX(y, x + 1)]);
}

void stencil_step(const float* in, float* out, int height, int width) {
    dim3 threadsPerBlock(8, 8);
    dim3 numBlocks((width + threadsPerBlock.x - 1) / threadsPerBlock.x,
                   (height + threadsPerBlock.y - 1) / threadsPerBlock.y);
    stencil_kernel<<<numBlocks, threadsPerBlock>>>(in, out, height, width);
    cudaError_t err = cudaGetLastError();
    assert(err == cudaSuccess);
    (void)err;
}
