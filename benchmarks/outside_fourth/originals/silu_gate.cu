// Activations of a gated feed-forward layer. Input rows hold the gate, then the up projection: in is rows x (2 * cols).
#include <cuda_runtime.h>

__device__ __forceinline__ float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

// Plain SiLU, in place.
__global__ void silu_kernel(float* x, long long n) {
    long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] = x[i] * sigmoid(x[i]);
    }
}

// optiml: args.in = { role = "in", size = "rows*cols*2", fill = "normal" }
// optiml: args.out = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 33, cols = 64 }, { rows = 3, cols = 1027 }]
// optiml: time = [{ rows = 4096, cols = 4096 }]

__global__ void silu_gate_kernel(const float* in, float* out, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    int r = blockIdx.y;
    if (c >= cols) {
        return;
    }
    const float* row = in + (size_t)r * cols * 2;
    float gate = row[c];
    float up = row[cols + c];
    out[(size_t)r * cols + c] = gate * sigmoid(gate) * up;
}

cudaError_t silu(float* x, long long n, cudaStream_t stream) {
    silu_kernel<<<(unsigned)((n + 255) / 256), 256, 0, stream>>>(x, n);
    return cudaGetLastError();
}

cudaError_t silu_gate(const float* in, float* out, int rows, int cols, cudaStream_t stream) {
    dim3 block(256);
    dim3 grid((cols + 255) / 256, rows);
    silu_gate_kernel<<<grid, block, 0, stream>>>(in, out, rows, cols);
    return cudaGetLastError();
}
