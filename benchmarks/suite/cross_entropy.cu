// The cross-entropy loss of every row of logits against its label: log(sum(exp(x))) - x[label].
#include <cuda_runtime.h>

// optiml: args.logits = { role = "in", size = "rows*classes", fill = "normal" }
// optiml: args.labels = { role = "in", size = "rows", fill = { kind = "integers", low = 0, high = "classes" } }
// optiml: args.losses = { role = "out", size = "rows" }
// optiml: check = [{ rows = 1, classes = 2 }, { rows = 7, classes = 129 }, { rows = 33, classes = 64 }, { rows = 260, classes = 31 }]
// optiml: time = [{ rows = 16384, classes = 2048 }]

// One thread works on one row.
__global__ void cross_entropy_kernel(const float* logits, const int* labels, float* losses, int rows, int classes) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    float top = logits[row * classes];
    for (int c = 1; c < classes; ++c) {
        top = fmaxf(top, logits[row * classes + c]);
    }
    float sum = 0.0f;
    for (int c = 0; c < classes; ++c) {
        sum += expf(logits[row * classes + c] - top);
    }
    losses[row] = logf(sum) + top - logits[row * classes + labels[row]];
}

void cross_entropy(const float* logits, const int* labels, float* losses, int rows, int classes) {
    int threads = 256;
    int blocks = (rows + threads - 1) / threads;
    cross_entropy_kernel<<<blocks, threads>>>(logits, labels, losses, rows, classes);
}
