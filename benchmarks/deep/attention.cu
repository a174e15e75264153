// Causal attention of one query per thread: out = softmax(q k^T / 8) v, with a head size of 64.
#include <cuda_runtime.h>

#define D 64

// optiml: args.q = { role = "in", size = "heads*n*64", fill = "normal" }
// optiml: args.k = { role = "in", size = "heads*n*64", fill = "normal" }
// optiml: args.v = { role = "in", size = "heads*n*64", fill = "normal" }
// optiml: args.out = { role = "out", size = "heads*n*64" }
// optiml: check = [{ heads = 1, n = 1 }, { heads = 2, n = 67 }, { heads = 1, n = 130 }]
// optiml: time = [{ heads = 32, n = 2048 }]

// One thread works on one query, in two passes over the keys.
__global__ void attention_kernel(const float* q, const float* k, const float* v, float* out, int heads, int n) {
    int query = blockIdx.x * blockDim.x + threadIdx.x;
    int head = blockIdx.y;
    if (query >= n) {
        return;
    }
    const float* own = q + (head * n + query) * D;
    float largest = -1e30f;
    for (int j = 0; j <= query; ++j) {
        float score = 0.0f;
        for (int d = 0; d < D; ++d) {
            score += own[d] * k[(head * n + j) * D + d];
        }
        largest = fmaxf(largest, score * 0.125f);
    }
    float sum = 0.0f;
    float result[D];
    for (int d = 0; d < D; ++d) {
        result[d] = 0.0f;
    }
    for (int j = 0; j <= query; ++j) {
        float score = 0.0f;
        for (int d = 0; d < D; ++d) {
            score += own[d] * k[(head * n + j) * D + d];
        }
        float weight = expf(score * 0.125f - largest);
        sum += weight;
        for (int d = 0; d < D; ++d) {
            result[d] += weight * v[(head * n + j) * D + d];
        }
    }
    for (int d = 0; d < D; ++d) {
        out[(head * n + query) * D + d] = result[d] / sum;
    }
}

void attention(const float* q, const float* k, const float* v, float* out, int heads, int n) {
    dim3 grid((n + 127) / 128, heads);
    attention_kernel<<<grid, 128>>>(q, k, v, out, heads, n);
}
