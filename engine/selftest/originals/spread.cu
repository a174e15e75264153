// Four running values of each element, by a function that returns them as one struct.
#include <cuda_runtime.h>

struct Four {
    float at[4];
};

__device__ Four spread(float x) {
    Four four;
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) {
        sum += x * (i + 1);
        four.at[i] = sum;
    }
    return four;
}

// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "4*n" }
// optiml: check = [{ n = 1 }, { n = 333 }, { n = 700 }]
// optiml: time = [{ n = 4194304 }]
__global__ void running(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        ((Four*)y)[i] = spread(x[i]);
    }
}

void launch_running(const float* x, float* y, int n) {
    running<<<(n + 255) / 256, 256>>>(x, y, n);
}
