// One round of message passing on a graph: every edge gathers its source's features and adds them to its target's.
#include <cuda_runtime.h>

// optiml: args.source = { role = "in", size = "edges", fill = { kind = "integers", low = 0, high = "nodes" } }
// optiml: args.target = { role = "in", size = "edges", fill = { kind = "integers", low = 0, high = "nodes" } }
// optiml: args.features = { role = "in", size = "nodes*width", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.sums = { role = "inout", size = "nodes*width", fill = { kind = "constant", low = 0 } }
// optiml: deterministic = false
// optiml: check = [{ nodes = 2, edges = 1, width = 1 }, { nodes = 40, edges = 300, width = 16 }, { nodes = 129, edges = 500, width = 7 }]
// optiml: time = [{ nodes = 131072, edges = 524288, width = 64 }]

// One thread moves one feature along one edge.
__global__ void message_passing_kernel(const int* source, const int* target, const float* features, float* sums,
                                       int edges, int width) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int edge = i / width;
    int feature = i % width;
    if (edge < edges) {
        atomicAdd(&sums[target[edge] * width + feature], features[source[edge] * width + feature]);
    }
}

void message_passing(const int* source, const int* target, const float* features, float* sums, int edges, int width) {
    int threads = 256;
    int blocks = (edges * width + threads - 1) / threads;
    message_passing_kernel<<<blocks, threads>>>(source, target, features, sums, edges, width);
}
