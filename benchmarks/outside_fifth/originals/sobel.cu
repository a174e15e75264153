// Edge strength of an 8-bit image, |gx| + |gy| of the Sobel operator, zero below a threshold. Borders are replicated.
// Source and destination may be regions of larger images: rows lie src_pitch and dst_pitch bytes apart.
#include <cuda_runtime.h>

#include <cstdio>

__device__ inline int clamp_index(int v, int n) {
    return v < 0 ? 0 : (v >= n ? n - 1 : v);
}

// optiml: args.src = { role = "in", size = "src_pitch*height", fill = { kind = "integers", low = 0, high = 256 } }
// optiml: args.dst = { role = "inout", size = "dst_pitch*height", fill = { kind = "integers", low = 0, high = 256 } }
// optiml: args.threshold = { value = "90" }
// optiml: check = [{ width = 1, height = 1, src_pitch = 1, dst_pitch = 1, block_x = 32, block_y = 8 }, { width = 61, height = 19, src_pitch = 64, dst_pitch = 61, block_x = 32, block_y = 8 }, { width = 100, height = 33, src_pitch = 128, dst_pitch = 128, block_x = 32, block_y = 8 }]
// optiml: time = [{ width = 4096, height = 4096, src_pitch = 4096, dst_pitch = 4096, block_x = 32, block_y = 8 }]
__global__ void sobel_kernel(const unsigned char* src, unsigned char* dst, int width, int height, int src_pitch, int dst_pitch,
                             int threshold) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;

    int xl = clamp_index(x - 1, width);
    int xr = clamp_index(x + 1, width);
    int yt = clamp_index(y - 1, height);
    int yb = clamp_index(y + 1, height);

    int tl = src[(size_t)yt * src_pitch + xl];
    int tc = src[(size_t)yt * src_pitch + x];
    int tr = src[(size_t)yt * src_pitch + xr];
    int ml = src[(size_t)y * src_pitch + xl];
    int mr = src[(size_t)y * src_pitch + xr];
    int bl = src[(size_t)yb * src_pitch + xl];
    int bc = src[(size_t)yb * src_pitch + x];
    int br = src[(size_t)yb * src_pitch + xr];

    int gx = (tr + 2 * mr + br) - (tl + 2 * ml + bl);
    int gy = (bl + 2 * bc + br) - (tl + 2 * tc + tr);
    int magnitude = abs(gx) + abs(gy);
    if (magnitude < threshold) magnitude = 0;
    dst[(size_t)y * dst_pitch + x] = (unsigned char)(magnitude > 255 ? 255 : magnitude);
}

// block_x and block_y come from the autotuner of the application (16x16, 32x8, 64x4, ...).
int sobel(const unsigned char* src, unsigned char* dst, int width, int height, int src_pitch, int dst_pitch, int threshold,
          int block_x, int block_y, cudaStream_t stream) {
    dim3 block(block_x, block_y);
    dim3 grid((width + block_x - 1) / block_x, (height + block_y - 1) / block_y);
    sobel_kernel<<<grid, block, 0, stream>>>(src, dst, width, height, src_pitch, dst_pitch, threshold);
    cudaError_t err = cudaGetLastError();
    if (err != cudaSuccess) {
        std::fprintf(stderr, "sobel: %s\n", cudaGetErrorString(err));
        return 1;
    }
    return 0;
}
