// LayerNorm, backward: gradients of the input, of gamma and of beta in one launch.
//
// Each block takes 16 rows, writes their dx and its own share of the column sums; the block that arrives last adds the shares in
// their order, so that the result is the same from run to run.
//
// What callers rely upon:
//  - any rows and cols from 1 up, and another size with each call; calls on one device follow each other on one stream;
//  - dx may be dy itself (ln_bwd_inplace): the trainer has no room for both. Other buffers do not overlap;
//  - x is an activation that may have a large common offset (mean much larger than 1 / rstd);
//  - infinities and NaN in x or dy reach the dx of their whole row and the sums of their column: the loss scaler looks for them.
#include <cuda_runtime.h>

#include <cstddef>

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRowsPerBlock = 16;

__device__ unsigned int g_arrived = 0;  // blocks that are done; 0 between launches

// optiml: args.x = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.dy = { role = "in", size = "rows*cols", fill = "normal" }
// optiml: args.gamma = { role = "in", size = "cols", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.mean = { role = "in", size = "rows", fill = "normal" }
// optiml: args.rstd = { role = "in", size = "rows", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.dx = { role = "out", size = "rows*cols" }
// optiml: args.partial = { role = "scratch", size = "((rows+15)/16)*2*cols" }
// optiml: args.dgamma = { role = "out", size = "cols" }
// optiml: args.dbeta = { role = "out", size = "cols" }
// optiml: check = [{ rows = 1, cols = 1 }, { rows = 16, cols = 33 }, { rows = 17, cols = 300 }, { rows = 70, cols = 129 }]
// optiml: time = [{ rows = 16384, cols = 1024 }, { rows = 4096, cols = 4096 }]
__global__ void ln_bwd(const float* x, const float* dy, const float* gamma, const float* mean, const float* rstd, float* dx,
                       float* partial, float* dgamma, float* dbeta, int rows, int cols) {
  __shared__ float s_a[kWarps];
  __shared__ float s_b[kWarps];
  __shared__ int s_last;
  const int tid = threadIdx.x;
  const int row0 = blockIdx.x * kRowsPerBlock;
  const int row1 = min(row0 + kRowsPerBlock, rows);
  float* sum_g = partial + (size_t)blockIdx.x * 2 * cols;
  float* sum_b = sum_g + cols;
  for (int c = tid; c < cols; c += kThreads) {
    sum_g[c] = 0.0f;
    sum_b[c] = 0.0f;
  }

  for (int r = row0; r < row1; ++r) {
    const float* xr = x + (size_t)r * cols;
    const float* gr = dy + (size_t)r * cols;
    float* dr = dx + (size_t)r * cols;
    const float mu = mean[r];
    const float rs = rstd[r];
    float a = 0.0f, b = 0.0f;
    for (int c = tid; c < cols; c += kThreads) {
      const float g = gr[c] * gamma[c];
      a += g;
      b += g * ((xr[c] - mu) * rs);
    }
    for (int o = 16; o > 0; o >>= 1) {
      a += __shfl_xor_sync(0xffffffffu, a, o);
      b += __shfl_xor_sync(0xffffffffu, b, o);
    }
    if ((tid & 31) == 0) {
      s_a[tid >> 5] = a;
      s_b[tid >> 5] = b;
    }
    __syncthreads();
    a = 0.0f;
    b = 0.0f;
    for (int w = 0; w < kWarps; ++w) {
      a += s_a[w];
      b += s_b[w];
    }
    a /= (float)cols;
    b /= (float)cols;
    for (int c = tid; c < cols; c += kThreads) {
      const float d = gr[c];
      const float h = (xr[c] - mu) * rs;
      dr[c] = rs * (d * gamma[c] - a - h * b);
      sum_g[c] += d * h;
      sum_b[c] += d;
    }
    __syncthreads();  // s_a and s_b are written again for the next row
  }

  __threadfence();  // the share of this block is visible before its arrival
  __syncthreads();
  if (tid == 0) s_last = atomicAdd(&g_arrived, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!s_last) return;

  __threadfence();
  const volatile float* share = partial;
  for (int c = tid; c < cols; c += kThreads) {
    float sg = 0.0f, sb = 0.0f;
    for (unsigned int k = 0; k < gridDim.x; ++k) {
      const size_t at = (size_t)k * 2 * cols + c;
      sg += share[at];
      sb += share[at + cols];
    }
    dgamma[c] = sg;
    dbeta[c] = sb;
  }
  if (tid == 0) g_arrived = 0;
}

void ln_bwd_launch(const float* x, const float* dy, const float* gamma, const float* mean, const float* rstd, float* dx,
                   float* partial, float* dgamma, float* dbeta, int rows, int cols, cudaStream_t stream) {
  ln_bwd<<<(rows + kRowsPerBlock - 1) / kRowsPerBlock, kThreads, 0, stream>>>(x, dy, gamma, mean, rstd, dx, partial, dgamma,
                                                                              dbeta, rows, cols);
}

// Replaces dy by dx.
void ln_bwd_inplace(const float* x, float* dy, const float* gamma, const float* mean, const float* rstd, float* partial,
                    float* dgamma, float* dbeta, int rows, int cols, cudaStream_t stream) {
  ln_bwd_launch(x, dy, gamma, mean, rstd, dy, partial, dgamma, dbeta, rows, cols, stream);
}
