// A convolution layer: 3 x 3 filters over images in NCHW order, zero padding of one, stride one.
#include <cuda_runtime.h>

// optiml: args.in = { role = "in", size = "images*in_channels*height*width", fill = "normal" }
// optiml: args.filters = { role = "in", size = "out_channels*in_channels*9", fill = "normal" }
// optiml: args.out = { role = "out", size = "images*out_channels*height*width" }
// optiml: check = [{ images = 1, in_channels = 1, out_channels = 1, height = 1, width = 2 }, { images = 2, in_channels = 3, out_channels = 4, height = 9, width = 17 }, { images = 1, in_channels = 4, out_channels = 2, height = 16, width = 32 }]
// optiml: time = [{ images = 8, in_channels = 32, out_channels = 64, height = 112, width = 112 }]

// One thread computes one pixel of one output channel.
__global__ void conv2d_kernel(const float* in, const float* filters, float* out, int images, int in_channels,
                              int out_channels, int height, int width) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    int image = blockIdx.z / out_channels;
    int channel = blockIdx.z % out_channels;
    if (x >= width || y >= height) {
        return;
    }
    float sum = 0.0f;
    for (int c = 0; c < in_channels; ++c) {
        for (int dy = -1; dy <= 1; ++dy) {
            for (int dx = -1; dx <= 1; ++dx) {
                int sy = y + dy;
                int sx = x + dx;
                if (sy >= 0 && sy < height && sx >= 0 && sx < width) {
                    float pixel = in[((image * in_channels + c) * height + sy) * width + sx];
                    sum += pixel * filters[(channel * in_channels + c) * 9 + (dy + 1) * 3 + dx + 1];
                }
            }
        }
    }
    out[((image * out_channels + channel) * height + y) * width + x] = sum;
}

void conv2d(const float* in, const float* filters, float* out, int images, int in_channels, int out_channels,
            int height, int width) {
    dim3 block(16, 16);
    dim3 grid((width + 15) / 16, (height + 15) / 16, images * out_channels);
    conv2d_kernel<<<grid, block>>>(in, filters, out, images, in_channels, out_channels, height, width);
}
