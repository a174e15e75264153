// Images from channels last to channels first: out[n][c][p] = in[n][p][c], a transpose within each image.
#include <cuda_runtime.h>

// optiml: args.in = { role = "in", size = "images*pixels*channels", fill = "normal" }
// optiml: args.out = { role = "out", size = "images*pixels*channels" }
// optiml: check = [{ images = 1, pixels = 1, channels = 2 }, { images = 2, pixels = 49, channels = 33 }, { images = 3, pixels = 64, channels = 32 }]
// optiml: time = [{ images = 64, pixels = 3136, channels = 128 }]
__global__ void permute_kernel(const float* in, float* out, int images, int pixels, int channels) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int p = blockIdx.y * blockDim.y + threadIdx.y;
    int n = blockIdx.z;
    if (c < channels && p < pixels) {
        out[(n * channels + c) * pixels + p] = in[(n * pixels + p) * channels + c];
    }
}

void permute(const float* in, float* out, int images, int pixels, int channels) {
    dim3 block(32, 8);
    dim3 grid((channels + block.x - 1) / block.x, (pixels + block.y - 1) / block.y, images);
    permute_kernel<<<grid, block>>>(in, out, images, pixels, channels);
}
