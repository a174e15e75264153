// Symmetric int8 quantisation of a row-major matrix in groups of 64 columns: one scale for each group.
#include <cuda_runtime.h>

#include <cstddef>

constexpr int kGroup = 64;
constexpr int kTag = 0x51;

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.q = { role = "out", size = "rows*cols" }
// optiml: args.scale = { role = "out", size = "rows*cdiv(cols, 64)" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 7, cols = 129 }, { rows = 33, cols = 64 }, { rows = 19, cols = 250 }]
// optiml: time = [{ rows = 2048, cols = 4096 }]

// One warp works on one group; the last group of a row may be shorter. NaN takes no part in the maximum and becomes 0.
__global__ void group_quant_kernel(const float* x, signed char* q, float* scale, int rows, int cols) {
    const int lane = threadIdx.x & 31;
    const int group = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    const int groups = (cols + kGroup - 1) / kGroup;
    const int row = group / groups;
    if (row >= rows) {
        return;
    }
    const int c0 = (group - row * groups) * kGroup + lane;
    const int c1 = c0 + 32;
    const size_t base = (size_t)row * cols;

    const float a = c0 < cols ? x[base + c0] : 0.0f;
    const float b = c1 < cols ? x[base + c1] : 0.0f;
    float m = 0.0f;
    m = fmaxf(m, fabsf(a));
    m = fmaxf(m, fabsf(b));
    for (int offset = 16; offset > 0; offset >>= 1) {
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, offset));
    }

    const float inv = m > 0.0f ? 127.0f / m : 0.0f;
    if (c0 < cols) {
        const int code = __float2int_rn(a * inv);
        q[base + c0] = (signed char)min(max(code, -127), 127);
    }
    if (c1 < cols) {
        const int code = __float2int_rn(b * inv);
        q[base + c1] = (signed char)min(max(code, -127), 127);
    }
    if (lane == 0) {
        scale[group] = m / 127.0f;
    }
}

cudaError_t group_quant(const float* x, signed char* q, float* scale, int rows, int cols, cudaStream_t stream) {
    const int threads = 128;
    const int groups = rows * ((cols + kGroup - 1) / kGroup);
    const int blocks = (groups + threads / 32 - 1) / (threads / 32);
    group_quant_kernel<<<blocks, threads, 0, stream>>>(x, q, scale, rows, cols);
    return cudaGetLastError();
}

// A message for the wire: one tag byte, then the codes. Ordered in `stream` like any other work.
cudaError_t group_quant_message(const float* x, signed char* message, float* scale, int rows, int cols,
                                cudaStream_t stream) {
    cudaError_t status = cudaMemsetAsync(message, kTag, 1, stream);
    if (status != cudaSuccess) {
        return status;
    }
    return group_quant(x, message + 1, scale, rows, cols, stream);
}
