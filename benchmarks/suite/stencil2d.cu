// One step of diffusion in a medium whose conductivity differs from cell to cell; the border stays as it is.
#include <cuda_runtime.h>

// optiml: args.u = { role = "in", size = "height*width", fill = "normal" }
// optiml: args.k = { role = "in", size = "height*width", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.next = { role = "out", size = "height*width" }
// optiml: args.dt = { value = "0.1" }
// optiml: check = [{ height = 1, width = 1 }, { height = 7, width = 129 }, { height = 64, width = 64 }, { height = 33, width = 65 }]
// optiml: time = [{ height = 4096, width = 8192 }]
__global__ void stencil2d_kernel(const float* u, const float* k, float* next, float dt, int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) {
        return;
    }
    int i = y * width + x;
    if (x == 0 || y == 0 || x == width - 1 || y == height - 1) {
        next[i] = u[i];
        return;
    }
    float around = u[i - 1] + u[i + 1] + u[i - width] + u[i + width];
    float corners = u[i - width - 1] + u[i - width + 1] + u[i + width - 1] + u[i + width + 1];
    next[i] = u[i] + dt * k[i] * ((4.0f * around + corners) / 6.0f - 20.0f / 6.0f * u[i]);
}

void stencil2d(const float* u, const float* k, float* next, float dt, int height, int width) {
    dim3 block(16, 16);
    dim3 grid((width + 15) / 16, (height + 15) / 16);
    stencil2d_kernel<<<grid, block>>>(u, k, next, dt, height, width);
}
