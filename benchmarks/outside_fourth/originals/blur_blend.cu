// Blends a 3x3 box blur of src into dst: dst = (alpha * blur + (256 - alpha) * dst) / 256, alpha in 0..256.
// src and dst are windows of larger images: the bytes of a line behind `width` belong to the neighbouring windows,
// which other streams work on at the same time.
#include <cuda_runtime.h>

#include <cassert>

// optiml: args.src = { role = "in", size = "height*pitch", fill = { kind = "integers", low = 0, high = 256 } }
// optiml: args.dst = { role = "inout", size = "height*pitch", fill = { kind = "integers", low = 0, high = 256 } }
// optiml: args.alpha = { value = "96" }
// optiml: check = [{ height = 1, width = 1, pitch = 1 }, { height = 7, width = 129, pitch = 160 }, { height = 33, width = 64, pitch = 64 }]
// optiml: time = [{ height = 8192, width = 8192, pitch = 8192 }]

__global__ void blur_blend_kernel(const unsigned char* src, unsigned char* dst, int width, int height, int pitch,
                                  int alpha) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) {
        return;
    }
    int sum = 0;
    for (int dy = -1; dy <= 1; ++dy) {
        int yy = min(max(y + dy, 0), height - 1);
        for (int dx = -1; dx <= 1; ++dx) {
            int xx = min(max(x + dx, 0), width - 1);
            sum += src[(size_t)yy * pitch + xx];
        }
    }
    int blur = (sum + 4) / 9;
    size_t at = (size_t)y * pitch + x;
    dst[at] = (unsigned char)((alpha * blur + (256 - alpha) * dst[at] + 128) >> 8);
}

void blur_blend(const unsigned char* src, unsigned char* dst, int width, int height, int pitch, int alpha,
                cudaStream_t stream) {
    assert(alpha >= 0 && alpha <= 256 && pitch >= width);
    dim3 block(32, 8);
    dim3 grid((width + block.x - 1) / block.x, (height + block.y - 1) / block.y);
    blur_blend_kernel<<<grid, block, 0, stream>>>(src, dst, width, height, pitch, alpha);
}
