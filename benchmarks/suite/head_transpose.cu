// out[h][d][s] = in[h][s][d]: the keys of attention heads turned for a product, through a tile in shared memory.
#include <cuda_runtime.h>

#define TILE 32

// optiml: args.in = { role = "in", size = "heads*seq*dim", fill = "normal" }
// optiml: args.out = { role = "out", size = "heads*seq*dim" }
// optiml: check = [{ heads = 1, seq = 1, dim = 2 }, { heads = 2, seq = 70, dim = 33 }, { heads = 3, seq = 64, dim = 64 }]
// optiml: time = [{ heads = 128, seq = 4096, dim = 128 }]
__global__ void head_transpose_kernel(const float* in, float* out, int heads, int seq, int dim) {
    __shared__ float tile[TILE][TILE];
    const float* head_in = in + (size_t)blockIdx.z * seq * dim;
    float* head_out = out + (size_t)blockIdx.z * seq * dim;
    int d = blockIdx.x * TILE + threadIdx.x;
    int s = blockIdx.y * TILE + threadIdx.y;
    if (d < dim && s < seq) {
        tile[threadIdx.y][threadIdx.x] = head_in[s * dim + d];
    }
    __syncthreads();
    d = blockIdx.x * TILE + threadIdx.y;
    s = blockIdx.y * TILE + threadIdx.x;
    if (d < dim && s < seq) {
        head_out[d * seq + s] = tile[threadIdx.x][threadIdx.y];
    }
}

void head_transpose(const float* in, float* out, int heads, int seq, int dim) {
    dim3 block(TILE, TILE);
    dim3 grid((dim + TILE - 1) / TILE, (seq + TILE - 1) / TILE, heads);
    head_transpose_kernel<<<grid, block>>>(in, out, heads, seq, dim);
}
