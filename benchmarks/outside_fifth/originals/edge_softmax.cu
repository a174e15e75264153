// Graph attention: softmax over the incoming edges of every node of leaky_relu(left[source] + right[node]).
// A score of -infinity masks an edge: it gets weight 0, also where all edges of a node are masked.
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>

#define CUDA_OK(call)                                                                  \
    do {                                                                               \
        cudaError_t e_ = (call);                                                       \
        if (e_ != cudaSuccess) {                                                       \
            std::fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(e_)); \
            std::abort();                                                              \
        }                                                                              \
    } while (0)

__device__ __forceinline__ float leaky_relu(float v, float slope) {
    return v > 0.0f ? v : slope * v;
}

// optiml: args.offsets = { role = "in", size = "nodes+1", fill = { kind = "csr_offsets", of = "sources" } }
// optiml: args.sources = { role = "in", size = "edges", fill = { kind = "csr_columns", of = "offsets", high = "nodes" } }
// optiml: args.left = { role = "in", size = "nodes", fill = "normal" }
// optiml: args.right = { role = "in", size = "nodes", fill = "normal" }
// optiml: args.weight = { role = "out", size = "edges" }
// optiml: args.slope = { value = "0.2" }
// optiml: check = [{ nodes = 1, edges = 1 }, { nodes = 40, edges = 300 }, { nodes = 300, edges = 2000 }]
// optiml: time = [{ nodes = 65536, edges = 1048576 }]
__global__ void edge_softmax_kernel(const int* offsets, const int* sources, const float* left, const float* right, float* weight,
                                    float slope, int nodes) {
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= nodes) return;
    int begin = offsets[node];
    int end = offsets[node + 1];

    float top = -INFINITY;
    for (int e = begin; e < end; e++) {
        top = fmaxf(top, leaky_relu(left[sources[e]] + right[node], slope));
    }
    if (top == -INFINITY) top = 0.0f;
    float sum = 0.0f;
    for (int e = begin; e < end; e++) {
        float v = expf(leaky_relu(left[sources[e]] + right[node], slope) - top);
        weight[e] = v;
        sum += v;
    }
    for (int e = begin; e < end; e++) {
        weight[e] = sum > 0.0f ? weight[e] / sum : 0.0f;
    }
}

void edge_softmax(const int* offsets, const int* sources, const float* left, const float* right, float* weight, float slope,
                  int nodes, cudaStream_t stream) {
    const int threads = 128;
    edge_softmax_kernel<<<(nodes + threads - 1) / threads, threads, 0, stream>>>(offsets, sources, left, right, weight, slope, nodes);
    CUDA_OK(cudaGetLastError());
}
