// Streaming FIR filter with decimation. A stream arrives in blocks of n samples; the last taps-1 samples of the stream before a block
// are kept in history. Every call filters one block and then brings the history up to date.
#include <cuda_runtime.h>

#include <stdexcept>

#define MAX_TAPS 256

__constant__ float c_taps[MAX_TAPS];

// optiml: args.c_taps = { fill = "normal" }
// optiml: args.history = { role = "in", size = "taps-1", fill = "normal" }
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "(n+factor-1)/factor" }
// optiml: check = [{ n = 5, taps = 9, factor = 1 }, { n = 300, taps = 32, factor = 3 }, { n = 1025, taps = 63, factor = 4 }]
// optiml: time = [{ n = 8388608, taps = 64, factor = 4 }]
__global__ void fir_decimate_kernel(const float* history, const float* x, float* y, int n, int taps, int factor) {
    int o = blockIdx.x * blockDim.x + threadIdx.x;
    int outputs = (n + factor - 1) / factor;
    if (o >= outputs) return;
    int newest = o * factor;
    float acc = 0.0f;
    for (int k = 0; k < taps; k++) {
        int i = newest - k;
        float sample = i >= 0 ? x[i] : history[taps - 1 + i];
        acc += c_taps[k] * sample;
    }
    y[o] = acc;
}

// One block, as the old history is read before the new one is written.
__global__ void update_history_kernel(float* history, const float* x, int n, int taps) {
    extern __shared__ float next[];
    int keep = taps - 1;
    for (int i = threadIdx.x; i < keep; i += blockDim.x) {
        int s = n + i;
        next[i] = s < keep ? history[s] : x[s - keep];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < keep; i += blockDim.x) history[i] = next[i];
}

void fir_decimate(const float* host_taps, float* history, const float* x, float* y, int n, int taps, int factor,
                  cudaStream_t stream) {
    if (taps < 2 || taps > MAX_TAPS || factor < 1) throw std::invalid_argument("fir_decimate");
    cudaMemcpyToSymbolAsync(c_taps, host_taps, taps * sizeof(float), 0, cudaMemcpyHostToDevice, stream);
    int outputs = (n + factor - 1) / factor;
    int threads = 256;
    fir_decimate_kernel<<<(outputs + threads - 1) / threads, threads, 0, stream>>>(history, x, y, n, taps, factor);
    update_history_kernel<<<1, 128, (taps - 1) * sizeof(float), stream>>>(history, x, n, taps);
    if (cudaGetLastError() != cudaSuccess) throw std::runtime_error("fir_decimate");
}
