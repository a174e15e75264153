// The two best experts of every token, with weights by a softmax over these two, and how many tokens each expert gets.
#include <cuda_runtime.h>

#define EXPERTS 64

// optiml: args.logits = { role = "in", size = "tokens*64", fill = "normal" }
// optiml: args.chosen = { role = "out", size = "tokens*2" }
// optiml: args.weights = { role = "out", size = "tokens*2" }
// optiml: args.load = { role = "inout", size = "64", fill = { kind = "constant", low = 0 } }
// optiml: check = [{ tokens = 1 }, { tokens = 129 }, { tokens = 1003 }]
// optiml: time = [{ tokens = 262144 }]

// One thread routes one token.
__global__ void moe_routing_kernel(const float* logits, int* chosen, float* weights, int* load, int tokens) {
    int token = blockIdx.x * blockDim.x + threadIdx.x;
    if (token >= tokens) {
        return;
    }
    int first = 0;
    for (int e = 1; e < EXPERTS; ++e) {
        if (logits[token * EXPERTS + e] > logits[token * EXPERTS + first]) {
            first = e;
        }
    }
    int second = first == 0 ? 1 : 0;
    for (int e = 0; e < EXPERTS; ++e) {
        if (e != first && logits[token * EXPERTS + e] > logits[token * EXPERTS + second]) {
            second = e;
        }
    }
    float a = expf(logits[token * EXPERTS + first] - logits[token * EXPERTS + first]);
    float b = expf(logits[token * EXPERTS + second] - logits[token * EXPERTS + first]);
    chosen[token * 2] = first;
    chosen[token * 2 + 1] = second;
    weights[token * 2] = a / (a + b);
    weights[token * 2 + 1] = b / (a + b);
    atomicAdd(&load[first], 1);
    atomicAdd(&load[second], 1);
}

void moe_routing(const float* logits, int* chosen, float* weights, int* load, int tokens) {
    moe_routing_kernel<<<(tokens + 255) / 256, 256>>>(logits, chosen, weights, load, tokens);
}
