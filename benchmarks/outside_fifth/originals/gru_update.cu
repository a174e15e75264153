// Pointwise part of a GRU cell. Two GEMMs have computed gates_x = x W and gates_h = h U (batch x 3*hidden: reset, update, new);
// this kernel joins them. Sequences of a batch have different lengths: a finished sequence keeps its state.
#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

__device__ __forceinline__ float sigmoid(float v) {
    return 1.0f / (1.0f + expf(-v));
}

// optiml: args.gates_x = { role = "in", size = "batch*3*hidden", fill = "normal" }
// optiml: args.gates_h = { role = "in", size = "batch*3*hidden", fill = "normal" }
// optiml: args.bias = { role = "in", size = "3*hidden", fill = "normal" }
// optiml: args.lengths = { role = "in", size = "batch", fill = { kind = "integers", low = 0, high = 9 } }
// optiml: args.h_prev = { role = "in", size = "batch*hidden", fill = "normal" }
// optiml: args.h_next = { role = "out", size = "batch*hidden" }
// optiml: args.step = { value = "4" }
// optiml: check = [{ batch = 1, hidden = 1 }, { batch = 5, hidden = 37 }, { batch = 16, hidden = 64 }, { batch = 9, hidden = 130 }]
// optiml: time = [{ batch = 512, hidden = 2048 }]
__global__ void gru_update_kernel(const float* gates_x, const float* gates_h, const float* bias, const int* lengths,
                                  const float* h_prev, float* h_next, int batch, int hidden, int step) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= batch * hidden) return;
    int b = i / hidden;
    int j = i % hidden;
    if (step >= lengths[b]) {
        h_next[i] = h_prev[i];
        return;
    }
    size_t row = (size_t)b * 3 * hidden;
    float r = sigmoid(gates_x[row + j] + gates_h[row + j] + bias[j]);
    float z = sigmoid(gates_x[row + hidden + j] + gates_h[row + hidden + j] + bias[hidden + j]);
    float n = tanhf(gates_x[row + 2 * hidden + j] + r * (gates_h[row + 2 * hidden + j] + bias[2 * hidden + j]));
    h_next[i] = (1.0f - z) * n + z * h_prev[i];
}

void gru_update(const float* gates_x, const float* gates_h, const float* bias, const int* lengths, const float* h_prev,
                float* h_next, int batch, int hidden, int step, cudaStream_t stream) {
    int threads = 256;
    int blocks = (batch * hidden + threads - 1) / threads;
    gru_update_kernel<<<blocks, threads, 0, stream>>>(gates_x, gates_h, bias, lengths, h_prev, h_next, batch, hidden, step);
    cudaError_t err = cudaGetLastError();
    if (err != cudaSuccess) throw std::runtime_error(std::string("gru_update: ") + cudaGetErrorString(err));
}

// One state buffer for the whole sequence: it is updated where it lies.
void gru_step_streaming(const float* gates_x, const float* gates_h, const float* bias, const int* lengths, float* h, int batch,
                        int hidden, int step, cudaStream_t stream) {
    gru_update(gates_x, gates_h, bias, lengths, h, h, batch, hidden, step, stream);
}
