// Scales each row to Euclidean length 1; a row of zeros stays as it is. Rows are scaled by their largest magnitude first,
// as the squares of long sensor vectors leave the range of float. y may be x.
#include <cuda_runtime.h>

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows*cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 33, cols = 64 }, { rows = 260, cols = 31 }]
// optiml: time = [{ rows = 16384, cols = 1024 }]

__global__ void l2_normalize_kernel(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    const float* in = x + (size_t)row * cols;
    float* out = y + (size_t)row * cols;

    float largest = 0.0f;
    for (int c = 0; c < cols; ++c) {
        largest = fmaxf(largest, fabsf(in[c]));
    }
    if (largest == 0.0f) {
        for (int c = 0; c < cols; ++c) {
            out[c] = in[c];
        }
        return;
    }
    float sum = 0.0f;
    for (int c = 0; c < cols; ++c) {
        float v = in[c] / largest;
        sum += v * v;
    }
    const float length = sqrtf(sum);
    for (int c = 0; c < cols; ++c) {
        out[c] = in[c] / largest / length;
    }
}

void l2_normalize(const float* x, float* y, int rows, int cols) {
    const int threads = 64;
    l2_normalize_kernel<<<(rows + threads - 1) / threads, threads>>>(x, y, rows, cols);
}

void l2_normalize_in_place(float* x, int rows, int cols) {
    l2_normalize(x, x, rows, cols);
}
