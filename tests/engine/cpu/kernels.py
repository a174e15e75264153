"""Honest kernels as people write them, each with data and the right answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.model import LaunchConfig
from tests.engine.cpu.conftest import launch

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Honest:
    text: str
    kernel: str
    launch: LaunchConfig
    arguments: list[tuple[str, Any, Any]]
    expected: dict[str, Array]
    tolerance: float = 1e-5
    orders: tuple[int, ...] = field(default=(0, 1, 2, 3))


def _words(values: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    """Pairs of numbers of 16 bits, as words."""
    halves = values.astype(np.float16).view(np.uint16) if kind == "f16" else values.view(np.uint32) >> 16
    return halves.astype(np.uint16).view(np.uint32)


def _normal(n: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def _n(value: int) -> Any:
    return np.int32(value)


TREE = """
__global__ void tree(const float* __restrict__ x, float* out, int n) {
  __shared__ float s[128];
  int t = threadIdx.x;
  int i = blockIdx.x * blockDim.x + t;
  s[t] = i < n ? x[i] : 0.0f;
  __syncthreads();
  for (int k = blockDim.x / 2; k > 0; k >>= 1) {
    if (t < k) s[t] += s[t + k];
    __syncthreads();
  }
  if (t == 0) atomicAdd(out, s[0]);
}
"""

WARP = """
__inline__ __device__ float warp_sum(float v) {
  for (int d = 16; d > 0; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
  return v;
}
__inline__ __device__ float block_sum(float v) {
  static __shared__ float part[32];
  int lane = threadIdx.x % warpSize, w = threadIdx.x / warpSize;
  v = warp_sum(v);
  if (lane == 0) part[w] = v;
  __syncthreads();
  v = threadIdx.x < blockDim.x / warpSize ? part[lane] : 0;
  if (w == 0) v = warp_sum(v);
  return v;
}
__global__ void rows(const float* x, float* y, int cols) {
  float v = 0;
  for (int c = threadIdx.x; c < cols; c += blockDim.x) v += x[blockIdx.x * cols + c];
  v = block_sum(v);
  if (threadIdx.x == 0) y[blockIdx.x] = v;
}
"""

WARP_SYNCHRONOUS = """
__global__ void ws(const float* x, float* y) {
  __shared__ volatile float s[64];
  int t = threadIdx.x;
  s[t] = x[blockIdx.x * 64 + t];
  __syncthreads();
  if (t < 32) {
    s[t] += s[t + 32]; __syncwarp();
    for (int k = 16; k > 0; k >>= 1) {
      float v = s[t + k]; __syncwarp();
      if (t < k) s[t] += v;
      __syncwarp();
    }
    if (t == 0) y[blockIdx.x] = s[0];
  }
}
"""

MATMUL = """
#define TILE 16
__global__ void mm(const float* A, const float* B, float* C, int m, int n, int k) {
  __shared__ float a[TILE][TILE], b[TILE][TILE + 1];
  int row = blockIdx.y * TILE + threadIdx.y, col = blockIdx.x * TILE + threadIdx.x;
  float acc = 0.f;
  for (int t = 0; t < (k + TILE - 1) / TILE; ++t) {
    int ac = t * TILE + threadIdx.x, br = t * TILE + threadIdx.y;
    a[threadIdx.y][threadIdx.x] = row < m && ac < k ? A[row * k + ac] : 0.f;
    b[threadIdx.y][threadIdx.x] = br < k && col < n ? B[br * n + col] : 0.f;
    __syncthreads();
    for (int i = 0; i < TILE; ++i) acc += a[threadIdx.y][i] * b[i][threadIdx.x];
    __syncthreads();
  }
  if (row < m && col < n) C[row * n + col] = acc;
}
"""

EARLY = """
__global__ void early(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  extern __shared__ float s[];
  s[threadIdx.x] = x[i];
  __syncthreads();
  int other = threadIdx.x ^ 1;
  int last = n - blockIdx.x * blockDim.x;
  y[i] = x[i] + (other < last ? s[other] : 0.0f);
}
"""

HISTOGRAM = """
__global__ void histogram(const int* x, unsigned* bins, int n) {
  __shared__ unsigned local[16];
  if (threadIdx.x < 16) local[threadIdx.x] = 0;
  __syncthreads();
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&local[x[i]], 1);
  __syncthreads();
  if (threadIdx.x < 16) atomicAdd(bins + threadIdx.x, local[threadIdx.x]);
}
"""

LAST_BLOCK = """
__device__ unsigned int arrived = 0;
__global__ void last(const float* x, float* part, float* out, int n) {
  __shared__ float s[64];
  __shared__ bool am_last;
  int t = threadIdx.x, i = blockIdx.x * 64 + t;
  s[t] = i < n ? x[i] : 0;
  __syncthreads();
  for (int k = 32; k > 0; k >>= 1) { if (t < k) s[t] += s[t + k]; __syncthreads(); }
  if (t == 0) {
    part[blockIdx.x] = s[0];
    __threadfence();
    unsigned ticket = atomicInc(&arrived, gridDim.x);
    am_last = ticket == gridDim.x - 1;
  }
  __syncthreads();
  if (am_last) {
    float v = 0;
    for (int b = t; b < gridDim.x; b += 64) v += part[b];
    s[t] = v;
    __syncthreads();
    for (int k = 32; k > 0; k >>= 1) { if (t < k) s[t] += s[t + k]; __syncthreads(); }
    if (t == 0) { out[0] = s[0]; arrived = 0; }
  }
}
"""

IN_PLACE = """
__global__ void relu(float* x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = fmaxf(x[i], 0.f);
}
"""

TILE_GROUP = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
template <int T>
__global__ void groups(const float* x, float* y, int cols) {
  auto block = cg::this_thread_block();
  cg::thread_block_tile<T> tile = cg::tiled_partition<T>(block);
  int row = blockIdx.x * tile.meta_group_size() + tile.meta_group_rank();
  float v = -INFINITY;
  for (int c = tile.thread_rank(); c < cols; c += tile.size()) v = fmaxf(v, x[row * cols + c]);
  v = cg::reduce(tile, v, cg::greater<float>{});
  if (tile.thread_rank() == 0) y[row] = v;
}
"""

HALF = """
#include <cuda_fp16.h>
__global__ void axpy(const half2* x, const half2* y, half2* z, half a, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n) return;
  z[i] = __hfma2(__half2half2(a), x[i], y[i]);
}
"""

BFLOAT = """
#include <cuda_bf16.h>
__global__ void twice(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + x[i];
}
"""

TENSOR = """
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;
__global__ void tensor(const half* a, const half* b, float* c, int k) {
  __shared__ __align__(32) float patch[2][256];
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
  wmma::fill_fragment(sum, 1.0f);
  for (int at = 0; at < k; at += 16) {
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> left;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> right;
    wmma::load_matrix_sync(left, a + threadIdx.x / 32 * 16 * k + at, k);
    wmma::load_matrix_sync(right, b + at, k);
    wmma::mma_sync(sum, left, right, sum);
  }
  for (int e = 0; e < sum.num_elements; ++e) sum.x[e] *= 2.0f;
  wmma::store_matrix_sync(patch[threadIdx.x / 32], sum, 16, wmma::mem_row_major);
  __syncwarp();
  for (int e = threadIdx.x % 32; e < 256; e += 32) c[threadIdx.x / 32 * 256 + e] = patch[threadIdx.x / 32][e];
}
"""

# TF32 keeps ten bits of the mantissa: what is dropped is a second factor.
TF32 = """
#include <mma.h>
namespace wmma = nvcuda::wmma;
__global__ void tf32(const float* a, const float* b, float* c, int parts) {
  wmma::fragment<wmma::matrix_a, 16, 16, 8, wmma::precision::tf32, wmma::col_major> left, rest;
  wmma::fragment<wmma::matrix_b, 16, 16, 8, wmma::precision::tf32, wmma::row_major> right;
  wmma::fragment<wmma::accumulator, 16, 16, 8, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  wmma::load_matrix_sync(left, a, 16);
  wmma::load_matrix_sync(right, b, 16);
  for (int e = 0; e < left.num_elements; ++e) {
    rest.x[e] = left.x[e] - __uint_as_float(__float_as_uint(left.x[e]) & 0xffffe000u);
  }
  wmma::mma_sync(sum, left, right, sum);
  if (parts == 2) wmma::mma_sync(sum, rest, right, sum);
  wmma::store_matrix_sync(c, sum, 16, wmma::mem_col_major);
}
"""

# Lanes hold elements as PTX says: 16 x 8 times 8 x 8, both row after row, added to twos.
TF32_PTX = """
__global__ void product(const float* a, const float* b, float* c) {
  const int row = threadIdx.x / 4, column = threadIdx.x % 4;
  unsigned left[4], right[2];
  for (int e = 0; e < 4; ++e) left[e] = __float_as_uint(a[(row + e % 2 * 8) * 8 + column + e / 2 * 4]);
  for (int e = 0; e < 2; ++e) right[e] = __float_as_uint(b[(column + e * 4) * 8 + row]);
  float sum[4] = {2.0f, 2.0f, 2.0f, 2.0f};
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
  for (int e = 0; e < 4; ++e) c[(row + e / 2 * 8) * 8 + column * 2 + e % 2] = sum[e];
}
"""

# As TF32_PTX, with pairs of elements: 16 x 16 times 16 x 8, the second column after column.
PAIRS_PTX = """
__global__ void product(const unsigned* a, const unsigned* b, float* c) {
  const int row = threadIdx.x / 4, column = threadIdx.x % 4;
  unsigned left[4], right[2];
  for (int e = 0; e < 4; ++e) left[e] = a[(row + e % 2 * 8) * 8 + column + e / 2 * 4];
  for (int e = 0; e < 2; ++e) right[e] = b[row * 8 + column + e * 4];
  float sum[4] = {};
  asm("mma.sync.aligned.m16n8k16.row.col.f32.KIND.KIND.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right[0]), "r"(right[1]));
  for (int e = 0; e < 4; ++e) c[(row + e / 2 * 8) * 8 + column * 2 + e % 2] = sum[e];
}
"""

DOUBLE_BUFFER = """
template <typename T, int B>
__global__ void window(const T* __restrict__ x, T* __restrict__ y, int tiles) {
  __shared__ alignas(16) T tile[2][B];
  int t = threadIdx.x;
  tile[0][t] = x[t];
  __syncthreads();
  T sum = 0;
  for (int k = 0; k < tiles; ++k) {
    if (k + 1 < tiles) tile[(k + 1) & 1][t] = x[(k + 1) * B + t];
    sum += tile[k & 1][(t + 1) % B];
    __syncthreads();
  }
  y[t] = sum;
}
"""

SPIN = """
__device__ int lock = 0;
__global__ void guarded(int* counter) {
  bool done = false;
  while (!done) {
    if (atomicCAS(&lock, 0, 1) == 0) {
      __threadfence();
      *counter += 1;
      __threadfence();
      atomicExch(&lock, 0);
      done = true;
    }
  }
}
"""

ACTIVE = """
__global__ void compact(const int* x, int* count, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n && x[i] > 0) {
    unsigned active = __activemask();
    int leader = __ffs(active) - 1;
    if ((threadIdx.x & 31) == leader) atomicAdd(count, __popc(active));
  }
}
"""

VECTORS = """
__global__ void scale(const float4* x, float4* y, float s, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { float4 v = __ldg(&x[i]); v.x *= s; v.y *= s; v.z *= s; v.w *= s; y[i] = v; }
}
"""

RUNTIME_TYPES = """
namespace device {
struct Caller { cudaStream_t stream; cudaEvent_t done; float factor; };
cudaError_t twice_of(const float* x, float* y, int n, cudaStream_t stream = 0);
__device__ float by(float x, cudaStream_t = nullptr) { return x * Caller{nullptr, nullptr, 2.0f}.factor; }
__global__ void twice(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = by(x[i]);
}
}
"""

UNION = """
struct Pair { float value; int index; };
__global__ void argmax(const float* x, int* where, int n) {
  __shared__ Pair best[64];
  __shared__ union { float f[64]; int i[64]; } scratch;
  __shared__ int winner, votes;
  int t = threadIdx.x;
  Pair mine{-1e30f, 0};
  for (int i = t; i < n; i += 64) if (x[i] > mine.value) mine = Pair{x[i], i};
  best[t] = mine;
  scratch.f[t] = mine.value;
  if (t == 0) winner = votes = 0;
  __syncthreads();
  if (t == 0) for (int k = 1; k < 64; ++k) if (best[k].value > best[winner].value) winner = k;
  __syncthreads();
  if (scratch.f[t] == best[winner].value) atomicAdd(&votes, 1);
  __syncthreads();
  if (t == 0) { where[0] = best[winner].index; where[1] = votes; }
}
"""


CLASSES = """
__global__ void classes(const float* x, int* y) {
    int i = threadIdx.x;
    if (i < 6) {
        y[i] = isfinite(x[i]) + 2 * isinf(x[i]) + 4 * isnan(x[i]) + 8 * (signbit(x[i]) != 0);
    }
}
"""
ODD = np.array([-1.0, np.inf, -np.inf, 0.0, -0.0, 1e-40], np.float32)


def honest() -> dict[str, Honest]:
    """The kernels by name."""
    x = _normal(1000)
    rows = _normal(7 * 129, 1)
    a, b = _normal(33 * 20, 2), _normal(20 * 18, 3)
    digits = np.random.default_rng(4).integers(0, 16, 1000).astype(np.int32)
    h = (np.arange(64) / 16).astype(np.float16)
    signs = np.random.default_rng(5).integers(-1, 2, 200).astype(np.int32)
    bf = (_normal(50).view(np.uint32) >> 16).astype(np.uint16)
    wide = (bf.astype(np.uint32) << 16).view(np.float32)
    left, right = np.round(_normal(32 * 48, 6) * 8).astype(np.float16), np.round(x[: 16 * 48] * 8).astype(np.float16)
    product = left.reshape(32, 48).astype(np.float32) @ right.reshape(16, 48).astype(np.float32).T
    pairs = np.round(_normal(384, 9) * 8).astype(np.float32)
    pairs[:16] *= np.float32(2.0**-24)  # below half precision's normal numbers
    whole, fine = np.round(x[:128] * 8).astype(np.float32), rows[:128]
    coarse = (fine.view(np.uint32) & 0xFFFFE000).view(np.float32)
    sums = [f.reshape(8, 16).T @ whole.reshape(8, 16) for f in (coarse, fine)]
    partner = x[:200].copy()
    for i in range(200):
        j = i ^ 1
        partner[i] += x[j] if j < 200 else 0
    return {
        "tree": Honest(TREE, "tree", launch(8, 128), [("x", "in", x), ("out", "inout", np.zeros(1, np.float32)),
                       ("n", "scalar", _n(1000))], {"out": np.array([x.sum()])}, 1e-4),
        "warp shuffles": Honest(WARP, "rows", launch(7, 96), [("x", "in", rows), ("y", "out", np.zeros(7, np.float32)),
                                ("cols", "scalar", _n(129))], {"y": rows.reshape(7, 129).sum(1)}, 1e-4),
        "warp synchronous": Honest(WARP_SYNCHRONOUS, "ws", launch(4, 64), [("x", "in", x[:256]),
                                   ("y", "out", np.zeros(4, np.float32))], {"y": x[:256].reshape(4, 64).sum(1)}, 1e-4),
        "tiled matmul": Honest(MATMUL, "mm", launch((2, 3, 1), (16, 16, 1)), [("A", "in", a), ("B", "in", b),
                               ("C", "out", np.zeros(33 * 18, np.float32)), ("m", "scalar", _n(33)),
                               ("n", "scalar", _n(18)), ("k", "scalar", _n(20))],
                               {"C": (a.reshape(33, 20) @ b.reshape(20, 18)).ravel()}, 1e-4),
        "early return": Honest(EARLY, "early", launch(2, 128, 512), [("x", "in", x[:200]),
                               ("y", "out", np.zeros(200, np.float32)), ("n", "scalar", _n(200))], {"y": partner}),
        "histogram": Honest(HISTOGRAM, "histogram", launch(3, 96), [("x", "in", digits),
                            ("bins", "inout", np.zeros(16, np.uint32)), ("n", "scalar", _n(1000))],
                            {"bins": np.bincount(digits, minlength=16)}),
        "last block": Honest(LAST_BLOCK, "last", launch(9, 64), [("x", "in", x[:550]), ("part", "out", np.zeros(9, np.float32)),
                             ("out", "out", np.zeros(1, np.float32)), ("n", "scalar", _n(550))],
                             {"out": np.array([x[:550].sum()])}, 1e-4),
        "classes of numbers": Honest(CLASSES, "classes", launch(1, 32), [("x", "in", ODD), ("y", "out", np.zeros(6, np.int32))],
                                     {"y": np.array([9, 2, 10, 1, 9, 1], np.int32)}),
        "in place": Honest(IN_PLACE, "relu", launch(4, 256), [("x", "inout", x.copy()), ("n", "scalar", _n(1000))],
                           {"x": np.maximum(x, 0)}),
        "tile group": Honest(TILE_GROUP, "groups<8>", launch(2, 32), [("x", "in", x[: 8 * 100]),
                             ("y", "out", np.zeros(8, np.float32)), ("cols", "scalar", _n(100))],
                             {"y": x[:800].reshape(8, 100).max(1)}),
        "half": Honest(HALF, "axpy", launch(1, 64), [("x", "in", h), ("y", "in", h), ("z", "out", np.zeros(64, np.float16)),
                       ("a", "scalar", np.float16(2)), ("n", "scalar", _n(32))], {"z": (h * np.float16(3)).astype(np.float16)}),
        "bfloat16": Honest(BFLOAT, "twice", launch(1, 64), [("x", "in", bf), ("y", "out", np.zeros(50, np.uint16)),
                           ("n", "scalar", _n(50))], {"y": ((wide * 2).view(np.uint32) >> 16).astype(np.uint16)}),
        "tensor cores": Honest(TENSOR, "tensor", launch(1, 64), [("a", "in", left), ("b", "in", right),
                               ("c", "out", np.zeros(512, np.float32)), ("k", "scalar", _n(48))],
                               {"c": (product + 1).ravel() * 2}),
        **{f"TF32 in {parts}": Honest(TF32, "tf32", launch(1, 32), [("a", "in", fine), ("b", "in", whole),
                               ("c", "out", np.zeros(256, np.float32)), ("parts", "scalar", _n(parts))],
                               {"c": sums[parts - 1].T.ravel()}) for parts in (1, 2)},
        "TF32 in PTX": Honest(TF32_PTX, "product", launch(1, 32), [("a", "in", fine), ("b", "in", whole[:64]),
                              ("c", "out", np.zeros(128, np.float32))],
                              {"c": (coarse.reshape(16, 8) @ whole[:64].reshape(8, 8) + 2).ravel()}),
        **{f"{kind} in PTX": Honest(PAIRS_PTX.replace("KIND", kind), "product", launch(1, 32), [
                              ("a", "in", _words(pairs[:256], kind)), ("b", "in", _words(pairs[256:], kind)),
                              ("c", "out", np.zeros(128, np.float32))],
                              {"c": (pairs[:256].reshape(16, 16) @ pairs[256:].reshape(8, 16).T).ravel()}) for kind in ("f16", "bf16")},
        "double buffer": Honest(DOUBLE_BUFFER, "window<float, 64>", launch(1, 64), [("x", "in", x[:640]),
                                ("y", "out", np.zeros(64, np.float32)), ("tiles", "scalar", _n(10))],
                                {"y": np.roll(x[:640].reshape(10, 64).sum(0), -1)}, 1e-4),
        "spin lock": Honest(SPIN, "guarded", launch(3, 64), [("counter", "inout", np.zeros(1, np.int32))],
                            {"counter": np.array([192])}),
        "active mask": Honest(ACTIVE, "compact", launch(4, 64), [("x", "in", signs), ("count", "inout", np.zeros(1, np.int32)),
                              ("n", "scalar", _n(200))], {"count": np.array([(signs > 0).sum()])}),
        "vectors": Honest(VECTORS, "scale", launch(4, 64), [("x", "in", x), ("y", "out", np.zeros(1000, np.float32)),
                          ("s", "scalar", np.float32(2)), ("n", "scalar", _n(250))], {"y": 2 * x}),
        "types of the runtime": Honest(RUNTIME_TYPES, "device::twice", launch(4, 256), [("x", "in", x),
                                       ("y", "out", np.zeros(1000, np.float32)), ("n", "scalar", _n(1000))], {"y": 2 * x}),
        "structs and unions": Honest(UNION, "argmax", launch(1, 64), [("x", "in", x), ("where", "out", np.zeros(2, np.int32)),
                                     ("n", "scalar", _n(1000))], {"where": np.array([x.argmax(), 1])}),
    }  # fmt: skip
