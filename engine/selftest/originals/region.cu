#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "pitch*height", fill = "normal" }
// optiml: args.y = { role = "inout", size = "pitch*height", fill = "normal" }
// optiml: args.slope = { value = "0.1" }
// optiml: check = [{ width = 1, height = 1, pitch = 1 }, { width = 61, height = 19, pitch = 61 }, { width = 100, height = 33, pitch = 128 }]
// optiml: time = [{ width = 4096, height = 4096, pitch = 4096 }]

// A leaky ramp over a region of an image whose rows lie `pitch` elements apart.
__global__ void region(const float* x, float* y, float slope, int width, int height, int pitch) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int r = blockIdx.y;
    if (c < width && r < height) {
        float v = x[(size_t)r * pitch + c];
        y[(size_t)r * pitch + c] = v > 0.0f ? v : slope * v;
    }
}

void run_region(const float* x, float* y, float slope, int width, int height, int pitch) {
    region<<<dim3((width + 127) / 128, height), 128>>>(x, y, slope, width, height, pitch);
}
