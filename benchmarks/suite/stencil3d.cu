// One Jacobi step of the seven-point Laplacian on a cube; the border stays as it is.
#include <cuda_runtime.h>

// optiml: args.u = { role = "in", size = "nx*ny*nz", fill = "normal" }
// optiml: args.f = { role = "in", size = "nx*ny*nz", fill = "normal" }
// optiml: args.next = { role = "out", size = "nx*ny*nz" }
// optiml: check = [{ nx = 1, ny = 1, nz = 1 }, { nx = 33, ny = 9, nz = 5 }, { nx = 16, ny = 16, nz = 16 }, { nx = 7, ny = 20, nz = 31 }]
// optiml: time = [{ nx = 320, ny = 320, nz = 320 }]
__global__ void stencil3d_kernel(const float* u, const float* f, float* next, int nx, int ny, int nz) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int z = blockIdx.z * blockDim.z + threadIdx.z;
    if (x >= nx || y >= ny || z >= nz) {
        return;
    }
    int i = (z * ny + y) * nx + x;
    if (x == 0 || y == 0 || z == 0 || x == nx - 1 || y == ny - 1 || z == nz - 1) {
        next[i] = u[i];
        return;
    }
    next[i] = (u[i - 1] + u[i + 1] + u[i - nx] + u[i + nx] + u[i - nx * ny] + u[i + nx * ny] - f[i]) / 6.0f;
}

void stencil3d(const float* u, const float* f, float* next, int nx, int ny, int nz) {
    dim3 block(8, 8, 8);
    dim3 grid((nx + 7) / 8, (ny + 7) / 8, (nz + 7) / 8);
    stencil3d_kernel<<<grid, block>>>(u, f, next, nx, ny, nz);
}
