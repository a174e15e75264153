// Attention scores of all heads, q k^T / sqrt(dim), with a causal mask: what lies ahead gets -10000.
#include <cuda_runtime.h>

// optiml: args.q = { role = "in", size = "heads*seq*dim", fill = "normal" }
// optiml: args.k = { role = "in", size = "heads*seq*dim", fill = "normal" }
// optiml: args.scores = { role = "out", size = "heads*seq*seq" }
// optiml: args.scale = { value = "0.125" }
// optiml: tolerance = 0.000001
// optiml: check = [{ heads = 1, seq = 2, dim = 1 }, { heads = 2, seq = 33, dim = 16 }, { heads = 3, seq = 48, dim = 8 }]
// optiml: time = [{ heads = 16, seq = 1024, dim = 64 }]

// One thread computes one score.
__global__ void causal_scores_kernel(const float* q, const float* k, float* scores, float scale, int heads, int seq,
                                     int dim) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int head = blockIdx.z;
    if (row >= seq || col >= seq) {
        return;
    }
    float score = -10000.0f;
    if (col <= row) {
        float sum = 0.0f;
        for (int d = 0; d < dim; ++d) {
            sum += q[(head * seq + row) * dim + d] * k[(head * seq + col) * dim + d];
        }
        score = sum * scale;
    }
    scores[(head * seq + row) * seq + col] = score;
}

void causal_scores(const float* q, const float* k, float* scores, float scale, int heads, int seq, int dim) {
    dim3 block(16, 16);
    dim3 grid((seq + 15) / 16, (seq + 15) / 16, heads);
    causal_scores_kernel<<<grid, block>>>(q, k, scores, scale, heads, seq, dim);
}
