"""Kernels made wrong in one place must be caught in every run, by a finding or by its result.

Each is run in four orders of threads and blocks, and looked at for races, which costs half a second each time, in two of them:
forwards and shuffled. With OPTIML_MUTANT_RUNS=20 in twenty.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.engine.cpu.conftest import Kernel, Make, launch
from tests.engine.cpu.kernels import Honest, honest

KERNELS = honest()
RUNS = tuple(range(int(os.environ.get("OPTIML_MUTANT_RUNS", "4"))))
RACE_RUNS = (0, 2) if len(RUNS) == 4 else RUNS


def mutate(h: Honest, old: str, new: str, make: Make, count: int = 1) -> Kernel:
    assert h.text.count(old) >= 1, "the mutant would be the original"
    return make(h.text.replace(old, new, count), h.kernel, h.launch, h.arguments)


def caught_by_run(kernel: Kernel, h: Honest) -> list[bool]:
    result = []
    for run in kernel.runs(RUNS):
        wrong = any(
            not np.allclose(run.outputs[name], expected, rtol=h.tolerance, atol=h.tolerance)
            for name, expected in h.expected.items()
            if name in run.outputs
        )
        result.append(bool(run.findings) or wrong)
    return result


# name of the kernel, what is replaced, by what, the finding that must be there, the line it must name
FOUND = [
    ("tree", "__shared__ float s[128]", "__shared__ float s[127]", "shared_out_of_bounds", 6),
    ("tree", "i < n ?", "i <= n ?", "out_of_bounds", 6),
    ("tree", "x[i] :", "x[i - 1] :", "out_of_bounds", 6),
    ("tree", "    if (t < k) s[t] += s[t + k];\n    __syncthreads();\n",
     "    if (t < k) { s[t] += s[t + k];\n    __syncthreads(); }\n", "barrier_divergence", 10),
    ("tiled matmul", "float a[TILE][TILE]", "float a[TILE][TILE - 1]", "shared_out_of_bounds", 0),
    ("tiled matmul", "row < m && ac < k", "ac < k", "out_of_bounds", 9),
    ("tiled matmul", "if (row < m && col < n) C", "if (col < n) C", "out_of_bounds", 15),
    ("in place", "if (i < n) ", "", "out_of_bounds", 4),
    ("early return", "if (i >= n) return;\n", "\n", "out_of_bounds", 6),
    ("histogram", "threadIdx.x < 16) atomicAdd", "threadIdx.x <= 16) atomicAdd", "shared_out_of_bounds", 8),
    ("warp shuffles", "static __shared__ float part[32]", "static __shared__ float part[2]", "shared_out_of_bounds", 10),
    ("double buffer", "T tile[2][B]", "T tile[2][B - 1]", "shared_out_of_bounds", 0),
    ("vectors", "if (i < n)", "if (i <= n)", "out_of_bounds", 4),
    ("vectors", "y[i] = v", "((float4*)x)[i] = v", "input_written", 4),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "old", "new", "kind", "line"), FOUND, ids=[f"{f[0]}: {f[3]} {i}" for i, f in enumerate(FOUND)]
)
def test_found_in_every_run(name: str, old: str, new: str, kind: str, line: int, make: Make) -> None:
    kernel = mutate(KERNELS[name], old, new, make)
    for run in kernel.runs(RUNS):
        found = [f for f in run.findings if f.kind == kind]
        assert found, run.findings
        assert line == 0 or found[0].line == line


WRONG = [
    ("warp shuffles", "d = 16", "d = 8"),
    ("warp shuffles", "v, d)", "v, d + 1)"),
    ("tile group", "cg::greater", "cg::less"),
    ("tree", "t + k]", "t + k - 1]"),
    ("early return", "threadIdx.x ^ 1", "threadIdx.x"),
    ("tiled matmul", "ac < k ?", "ac < k - 1 ?"),
]


@pytest.mark.parametrize(("name", "old", "new"), WRONG)
def test_wrong_or_found_in_every_run(name: str, old: str, new: str, make: Make) -> None:
    h = KERNELS[name]
    assert all(caught_by_run(mutate(h, old, new, make), h))


RACES = [
    ("tree", "  __syncthreads();\n  for", "  for", "s"),  # the barrier after filling
    ("tree", "    if (t < k) s[t] += s[t + k];\n    __syncthreads();", "    if (t < k) s[t] += s[t + k];", "s"),
    ("tree", "atomicAdd(out, s[0])", "*out += s[0]", "out"),
    ("tiled matmul", "    __syncthreads();\n    for", "    for", ""),
    ("tiled matmul", "* b[i][threadIdx.x];\n    __syncthreads();", "* b[i][threadIdx.x];", ""),
    ("histogram", "atomicAdd(&local[x[i]], 1)", "local[x[i]] += 1", "local"),
    (
        "histogram",
        "atomicAdd(bins + threadIdx.x, local[threadIdx.x])",
        "bins[threadIdx.x] += local[threadIdx.x]",
        "bins",
    ),
    ("histogram", "local[threadIdx.x] = 0;\n  __syncthreads();", "local[threadIdx.x] = 0;", "local"),
    ("last block", "    __threadfence();\n", "\n", "part"),
    ("last block", "    __threadfence();\n", "    __threadfence_block();\n", "part"),
    ("warp shuffles", "  __syncthreads();\n", "\n", "part"),
    ("warp synchronous", "s[t] += v;\n      __syncwarp();", "s[t] += v;", "s"),
    ("double buffer", "    __syncthreads();\n  }", "  }", "tile"),
    ("early return", "  __syncthreads();\n", "\n", "s"),
    ("spin lock", "    if (atomicCAS(&lock, 0, 1) == 0) {", "    {", "counter"),
]


@pytest.mark.parametrize(("name", "old", "new", "array"), RACES, ids=[f"{r[0]} {i}" for i, r in enumerate(RACES)])
def test_race_found_in_every_run(name: str, old: str, new: str, array: str, make: Make) -> None:
    kernel = mutate(KERNELS[name], old, new, make)
    for all_found in kernel.races_by_order(RACE_RUNS):
        found = [f for f in all_found if f.kind == "race"]
        assert found, all_found
        assert not array or array in {f.array for f in found}
        assert all(f.line > 0 for f in found)


def test_a_fence_of_a_block_orders_what_a_flag_in_shared_memory_hands_on(make: Make) -> None:
    text = """__global__ void flagged(float* y) {
  __shared__ float value;
  __shared__ int ready;
  if (threadIdx.x == 0) ready = 0;
  __syncthreads();
  if (threadIdx.x == 0) {
    value = 3.0f;
    __threadfence_block();
    atomicExch(&ready, 1);
  } else if (threadIdx.x == 32) {
    while (atomicAdd(&ready, 0) == 0) {}
    y[blockIdx.x] = value;
  }
}"""
    kernel = make(text, "flagged", launch(2, 64), [("y", "out", np.zeros(2, np.float32))])
    assert not [found for found in kernel.races() if found.kind == "race"]
    (run,) = kernel.runs((0,))
    assert run.outputs["y"].tolist() == [3.0, 3.0]


def test_a_race_in_a_later_launch_is_found_behind_one_of_many_threads(make: Make) -> None:
    text = """
__global__ void fill(float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = 1.0f;
}
__global__ void total(const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) *out += y[i];
}
"""
    n = np.int32(2048)
    arguments = [
        ("y", "inout", np.zeros(2048, np.float32)),
        ("out", "inout", np.zeros(1, np.float32)),
        ("n", "scalar", n),
    ]
    steps = [("y", "n"), ("y", "out", "n")]
    kernel = make(text, ["fill", "total"], [launch(8, 256), launch(8, 256)], arguments, steps)
    assert "out" in {f.array for f in kernel.races((0,)) if f.kind == "race"}
