// Explicit heat equation on a 3-D grid, seven-point stencil; the boundary values are kept.
#include <cuda_runtime.h>

#include <utility>

// optiml: args.u = { role = "in", size = "nx*ny*nz", fill = { kind = "uniform", low = 0, high = 1 } }
// optiml: args.next = { role = "out", size = "nx*ny*nz" }
// optiml: args.alpha = { value = "0.125" }
// optiml: check = [{ nx = 1, ny = 1, nz = 1 }, { nx = 33, ny = 9, nz = 5 }, { nx = 7, ny = 20, nz = 11 }, { nx = 64, ny = 6, nz = 8 }]
// optiml: time = [{ nx = 384, ny = 384, nz = 384 }]

__global__ void heat_kernel(const float* u, float* next, int nx, int ny, int nz, float alpha) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || y >= ny || z >= nz) {
        return;
    }
    const size_t plane = (size_t)nx * ny;
    const size_t at = z * plane + (size_t)y * nx + x;
    const float centre = u[at];
    if (x == 0 || y == 0 || z == 0 || x == nx - 1 || y == ny - 1 || z == nz - 1) {
        next[at] = centre;
        return;
    }
    const float around = u[at - 1] + u[at + 1] + u[at - nx] + u[at + nx] + u[at - plane] + u[at + plane];
    next[at] = centre + alpha * (around - 6.0f * centre);
}

// Leaves the result in `a`; `b` is scratch space of the same size.
void heat_run(float*& a, float*& b, int nx, int ny, int nz, float alpha, int steps, cudaStream_t stream) {
    dim3 block(32, 4, 2);
    dim3 grid((nx + 31) / 32, (ny + 3) / 4, (nz + 1) / 2);
    for (int s = 0; s < steps; ++s) {
        heat_kernel<<<grid, block, 0, stream>>>(a, b, nx, ny, nz, alpha);
        std::swap(a, b);
    }
}
