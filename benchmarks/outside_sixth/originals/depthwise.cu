// Depthwise 2-D convolution, NCHW, zero padding, with any (square) kernel size, stride and dilation. A tap outside of the image adds
// nothing. `bias` is optional: nullptr stands for a layer without one. The output may be cropped: oh and ow are the caller's.
// k, stride, dil >= 1, pad >= 0, n * ch <= 65535. An empty batch (n == 0) is legal and does nothing.
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>

// optiml: args.x = { role = "in", size = "n*ch*h*w", fill = "normal" }
// optiml: args.wt = { role = "in", size = "ch*k*k", fill = "normal" }
// optiml: args.bias = { role = "in", size = "ch", fill = "normal" }
// optiml: args.y = { role = "out", size = "n*ch*oh*ow" }
// optiml: check = [{ n = 1, ch = 1, h = 1, w = 1, oh = 1, ow = 1, k = 1, stride = 1, pad = 1, dil = 1 }, { n = 2, ch = 3, h = 13, w = 37, oh = 13, ow = 37, k = 3, stride = 1, pad = 1, dil = 1 }, { n = 1, ch = 2, h = 19, w = 41, oh = 10, ow = 21, k = 5, stride = 2, pad = 2, dil = 1 }, { n = 1, ch = 3, h = 11, w = 35, oh = 11, ow = 35, k = 3, stride = 1, pad = 2, dil = 2 }]
// optiml: time = [{ n = 32, ch = 256, h = 112, w = 112, oh = 112, ow = 112, k = 3, stride = 1, pad = 1, dil = 1 }]
__global__ void depthwise_kernel(const float* x, const float* wt, const float* bias, float* y, int ch, int h, int w, int oh, int ow,
                                 int k, int stride, int pad, int dil) {
    const int ox = blockIdx.x * blockDim.x + threadIdx.x;
    const int oy = blockIdx.y * blockDim.y + threadIdx.y;
    const int plane = blockIdx.z;
    const int c = plane % ch;
    if (ox >= ow || oy >= oh) return;
    const float* xp = x + (size_t)plane * h * w;
    const float* wp = wt + (size_t)c * k * k;
    float acc = bias != nullptr ? bias[c] : 0.0f;
    for (int ky = 0; ky < k; ++ky) {
        const int iy = oy * stride - pad + ky * dil;
        if (iy < 0 || iy >= h) continue;
        for (int kx = 0; kx < k; ++kx) {
            const int ix = ox * stride - pad + kx * dil;
            if (ix < 0 || ix >= w) continue;
            acc += wp[ky * k + kx] * xp[(size_t)iy * w + ix];
        }
    }
    y[((size_t)plane * oh + oy) * ow + ox] = acc;
}

void depthwise(const float* x, const float* wt, const float* bias, float* y, int n, int ch, int h, int w, int oh, int ow, int k,
               int stride, int pad, int dil) {
    if (n == 0) return;
    const dim3 block(32, 8);
    const dim3 grid((ow + 31) / 32, (oh + 7) / 8, n * ch);
    depthwise_kernel<<<grid, block>>>(x, wt, bias, y, ch, h, w, oh, ow, k, stride, pad, dil);
    if (cudaError_t e = cudaGetLastError(); e != cudaSuccess) {
        std::fprintf(stderr, "depthwise_kernel: %s\n", cudaGetErrorName(e));
        std::abort();
    }
}
