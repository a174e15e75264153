// Draws one token for each sequence from softmax(logits / temperature); temperature 0 takes the largest logit (the first of equal ones).
// Each sequence has its own xorshift generator, whose state moves on by one with each call. A logit of -infinity is never drawn.
#include <cuda_runtime.h>

#include <cmath>

__device__ unsigned long long xorshift64(unsigned long long s) {
    if (s == 0) s = 0x9E3779B97F4A7C15ull;
    s ^= s << 13;
    s ^= s >> 7;
    s ^= s << 17;
    return s;
}

// optiml: args.logits = { role = "in", size = "batch*vocab", fill = "normal" }
// optiml: args.state = { role = "inout", size = "batch", fill = { kind = "integers", low = 1, high = 1000000000000 } }
// optiml: args.token = { role = "out", size = "batch" }
// optiml: args.temperature = { value = "0.8" }
// optiml: check = [{ batch = 3, vocab = 7 }, { batch = 70, vocab = 50 }, { batch = 130, vocab = 33 }]
// optiml: time = [{ batch = 2048, vocab = 4096 }]
__global__ void sample_tokens_kernel(const float* logits, unsigned long long* state, int* token, float temperature, int batch,
                                     int vocab) {
    int b = blockIdx.x * blockDim.x + threadIdx.x;
    if (b >= batch) return;
    state[b] = xorshift64(state[b]);
    float u = (float)(state[b] >> 40) * (1.0f / 16777216.0f);

    const float* row = logits + (size_t)b * vocab;
    float top = -INFINITY;
    int choice = 0;
    for (int v = 0; v < vocab; v++) {
        if (row[v] > top) {
            top = row[v];
            choice = v;
        }
    }
    if (temperature > 0.0f) {
        float sum = 0.0f;
        for (int v = 0; v < vocab; v++) sum += expf((row[v] - top) / temperature);
        float target = u * sum;
        float run = 0.0f;
        for (int v = 0; v < vocab; v++) {
            float w = expf((row[v] - top) / temperature);
            if (w > 0.0f) {
                choice = v;
                run += w;
                if (run > target) break;
            }
        }
    }
    token[b] = choice;
}

void sample_tokens(const float* logits, unsigned long long* state, int* token, float temperature, int batch, int vocab,
                   cudaStream_t stream) {
    int threads = 64;
    sample_tokens_kernel<<<(batch + threads - 1) / threads, threads, 0, stream>>>(logits, state, token, temperature, batch, vocab);
}
