// SwiGLU of a transformer's feed-forward layer: y = silu(gate) * up, element by element.
#include <cuda_runtime.h>

// optiml: args.gate = { role = "in", size = "n", fill = "normal" }
// optiml: args.up = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 903 }, { n = 4096 }, { n = 10007 }]
// optiml: time = [{ n = 33554432 }]
__global__ void swiglu_kernel(const float* gate, const float* up, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float g = gate[i];
        y[i] = g / (1.0f + expf(-g)) * up[i];
    }
}

void swiglu(const float* gate, const float* up, float* y, int n) {
    int threads = 256;
    swiglu_kernel<<<(n + threads - 1) / threads, threads>>>(gate, up, y, n);
}
