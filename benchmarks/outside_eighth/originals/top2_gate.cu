// Router of a mixture of experts: the two best experts of each token, and how to mix them.
//
// One warp for a token. What the dispatcher relies upon:
//  - any number of tokens and experts from 1 up; with a single expert the second one is -1 with weight 0;
//  - equal scores (0 and -0 are equal) go to the expert with the lower number, so that all ranks agree;
//  - a NaN score counts as -inf; -inf can still be chosen, with weight 0; +inf pins an expert, two pinned ones share 1/2 and 1/2;
//  - logits may be a slice of a fused projection, so they are aligned as one element is and no better;
//  - all outputs are written. The buffers do not overlap.
// Two instances: __half (serving) and float (training). Built for sm_70 and everything later.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>

constexpr unsigned kFull = 0xffffffffu;

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__half v) { return __half2float(v); }

// Whether score va of expert ia ranks before score vb of expert ib.
__device__ __forceinline__ bool before(float va, int ia, float vb, int ib) {
  return va > vb || (va == vb && ia < ib);
}

// optiml: kernel = "top2_gate<__half>"
// optiml: args.logits = { role = "in", size = "tokens*experts", fill = "normal" }
// optiml: args.bias = { role = "in", size = "experts", fill = { kind = "normal", low = 0, high = 0.1 } }
// optiml: args.expert = { role = "out", size = "2*tokens" }
// optiml: args.weight = { role = "out", size = "2*tokens" }
// optiml: check = [{ tokens = 1, experts = 1 }, { tokens = 5, experts = 8 }, { tokens = 33, experts = 64 }, { tokens = 9, experts = 160 }, { tokens = 130, experts = 7 }]
// optiml: time = [{ tokens = 262144, experts = 128 }, { tokens = 1048576, experts = 64 }]
template <typename T>
__global__ void top2_gate(const T* logits, const float* bias, int* expert, float* weight, int tokens, int experts) {
  const int lane = threadIdx.x & 31;
  const int token = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
  if (token >= tokens) return;
  const T* row = logits + (size_t)token * experts;

  float v0 = -INFINITY, v1 = -INFINITY;
  int i0 = INT_MAX, i1 = INT_MAX;
  for (int e = lane; e < experts; e += 32) {
    float v = to_float(row[e]) + bias[e];
    if (isnan(v)) v = -INFINITY;
    if (before(v, e, v0, i0)) {
      v1 = v0;
      i1 = i0;
      v0 = v;
      i0 = e;
    } else if (before(v, e, v1, i1)) {
      v1 = v;
      i1 = e;
    }
  }

  for (int o = 16; o > 0; o >>= 1) {
    const float u0 = __shfl_xor_sync(kFull, v0, o);
    const float u1 = __shfl_xor_sync(kFull, v1, o);
    const int j0 = __shfl_xor_sync(kFull, i0, o);
    const int j1 = __shfl_xor_sync(kFull, i1, o);
    if (before(u0, j0, v0, i0)) {
      if (before(u1, j1, v0, i0)) {
        v1 = u1;
        i1 = j1;
      } else {
        v1 = v0;
        i1 = i0;
      }
      v0 = u0;
      i0 = j0;
    } else if (before(u0, j0, v1, i1)) {
      v1 = u0;
      i1 = j0;
    }
  }

  if (lane == 0) {
    float w1 = 0.0f;
    if (v1 > -INFINITY) {
      const float gap = v0 == v1 ? 0.0f : v0 - v1;
      w1 = 1.0f / (1.0f + expf(gap));
    }
    expert[2 * (size_t)token] = i0;
    expert[2 * (size_t)token + 1] = i1 == INT_MAX ? -1 : i1;
    weight[2 * (size_t)token] = 1.0f - w1;
    weight[2 * (size_t)token + 1] = w1;
  }
}

void route_half(const __half* logits, const float* bias, int* expert, float* weight, int tokens, int experts,
                cudaStream_t stream) {
  top2_gate<__half><<<(tokens + 3) / 4, 128, 0, stream>>>(logits, bias, expert, weight, tokens, experts);
}

void route_float(const float* logits, const float* bias, int* expert, float* weight, int tokens, int experts,
                 cudaStream_t stream) {
  top2_gate<float><<<(tokens + 3) / 4, 128, 0, stream>>>(logits, bias, expert, weight, tokens, experts);
}
