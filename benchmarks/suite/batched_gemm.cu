// c[i] = a[i] * b[i] for a batch of small square matrices, row-major, of up to 32 x 32.
#include <cuda_runtime.h>

// optiml: args.a = { role = "in", size = "batch*size*size", fill = "normal" }
// optiml: args.b = { role = "in", size = "batch*size*size", fill = "normal" }
// optiml: args.c = { role = "out", size = "batch*size*size" }
// optiml: check = [{ batch = 1, size = 1 }, { batch = 3, size = 7 }, { batch = 5, size = 16 }, { batch = 7, size = 32 }]
// optiml: time = [{ batch = 8192, size = 32 }]

// One block multiplies one pair of matrices, one thread computes one element.
__global__ void batched_gemm_kernel(const float* a, const float* b, float* c, int batch, int size) {
    int i = blockIdx.x;
    int col = threadIdx.x;
    int row = threadIdx.y;
    float sum = 0.0f;
    for (int k = 0; k < size; ++k) {
        sum += a[i * size * size + row * size + k] * b[i * size * size + k * size + col];
    }
    c[i * size * size + row * size + col] = sum;
}

void batched_gemm(const float* a, const float* b, float* c, int batch, int size) {
    dim3 block(size, size);
    batched_gemm_kernel<<<batch, block>>>(a, b, c, batch, size);
}
