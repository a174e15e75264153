"""Kernels that call functions which macros of the file make, under names that stand nowhere in full."""

from __future__ import annotations

from pathlib import Path

from tests.engine.spec.tried_drafts import tried

PASTED = """
#define MAKE(NAME)                                         \\
  template <typename T>                                    \\
  __device__ __forceinline__ T Take##NAME(T a, T b) {      \\
    return OP(a, b);                                       \\
  }
#define OP(a, b) (a < b ? b : a)
MAKE(Larger)
#undef OP

#define OP(a, b) (a + b)
MAKE(Sum)
#undef OP

inline __device__ int other(int a) { return a + 1; }
template <>
__device__ __forceinline__ double TakeSum<double>(double a, double b) { return b + a; }
__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = TakeSum(x[i], 2.0f) + TakeLarger(x[i], 0.5f);
}
void run(const float* x, float* y, int n) { k<<<(n + 255) / 256, 256>>>(x, y, n); }
"""


def test_functions_of_pasted_names_are_there(tmp_path: Path) -> None:
    """ "expected initializer before '<' token": what the macros make was left out of the slice, the specialisation was not."""
    assert not tried(PASTED, tmp_path).missing
