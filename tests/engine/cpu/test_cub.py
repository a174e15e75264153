"""CUB's primitives of a block and of a warp on the CPU: what they compute, their barriers, and storage that is used again too early."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cpu.features import unsupported
from tests.engine.cpu.conftest import Make, launch

N = 128
X = np.random.default_rng(3).integers(-50, 50, 4 * N).astype(np.int32)

HEAD = "#include <cub/cub.cuh>\n"
BODY = """
template <int THREADS> __global__ void k(const int* x, int* y) {
  __shared__ typename cub::NAME<int, THREADS>::TempStorage temp;
  int i = threadIdx.x, out = 0, all = 0;
  int v[4] = { x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3] }, w[4] = {};
  USE
}
"""
FOUR = X.reshape(N, 4)
FIRST = X[0::4]


def code(name: str, use: str) -> str:
    use = use.replace("EACH", "for (int j = 0; j < 4; ++j) y[4 * i + j] = w[j];")
    return HEAD + BODY.replace("NAME", name).replace("USE", use)


CASES = {
    "sum": ("BlockReduce", "out = cub::BlockReduce<int, THREADS>(temp).Sum(v[0]); if (i == 0) y[0] = out;", [FIRST.sum()]),
    "some": ("BlockReduce", "out = cub::BlockReduce<int, THREADS>(temp).Sum(v[0], 5); if (!i) y[0] = out;", [FIRST[:5].sum()]),
    "items": ("BlockReduce", "out = cub::BlockReduce<int, THREADS>(temp).Sum(v); if (!i) y[0] = out;", [X.sum()]),
    "max": ("BlockReduce", "out = cub::BlockReduce<int, THREADS>(temp).Reduce(v[0], cub::Max()); if (!i) y[0] = out;", [FIRST.max()]),
    "own": (
        "BlockReduce",
        "out = cub::BlockReduce<int, THREADS>(temp).Reduce(v[0], [](int a, int b) { return a < b ? a : b; }, 7); if (!i) y[0] = out;",
        [FIRST[:7].min()],
    ),
    "inclusive": ("BlockScan", "cub::BlockScan<int, THREADS>(temp).InclusiveSum(v[0], out, all); y[i] = out + all;",
                  np.cumsum(FIRST) + FIRST.sum()),
    "exclusive": ("BlockScan", "cub::BlockScan<int, THREADS>(temp).ExclusiveSum(v[0], out); y[i] = out;",
                  np.cumsum(FIRST) - FIRST),
    "exclusive items": ("BlockScan", "cub::BlockScan<int, THREADS>(temp).ExclusiveSum(v, w, all); EACH",
                        np.cumsum(X) - X),
    "inclusive items": ("BlockScan", "cub::BlockScan<int, THREADS>(temp).InclusiveSum(v, w); EACH",
                        np.cumsum(X)),
    "running max": ("BlockScan", "cub::BlockScan<int, THREADS>(temp).ExclusiveScan(v[0], out, -99, cub::Max()); y[i] = out;",
                    np.concatenate([[-99], np.maximum.accumulate(FIRST)[:-1]])),
    "with prefix": (
        "BlockScan",
        "struct P { int t; __device__ int operator()(int a) { int old = t; t += a; return old; } } p{7};"
        " cub::BlockScan<int, THREADS>(temp).InclusiveSum(v[0], out, p); y[i] = out;",
        np.cumsum(FIRST) + 7,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_block(name: str, make: Make) -> None:
    primitive, use, wanted = CASES[name]
    kernel = make(
        code(primitive, use), f"k<{N}>", launch(1, N), [("x", "in", X), ("y", "inout", np.zeros(4 * N, np.int32))]
    )
    for run in kernel.runs():
        assert run.findings == ()
        assert run.outputs["y"][: len(wanted)].tolist() == list(wanted)
    assert kernel.races() == ()


WARPS = (
    HEAD
    + """
__global__ void k(const int* x, int* y) {
  __shared__ cub::WarpReduce<int>::TempStorage temp[4];
  __shared__ cub::WarpScan<int, 8>::TempStorage scan[16];
  int i = threadIdx.x, out, all;
  int sum = cub::WarpReduce<int>(temp[i / 32]).Sum(x[i]);
  if (i % 32 == 0) y[i / 32] = sum;
  cub::WarpScan<int, 8>(scan[i / 8]).ExclusiveSum(x[i], out, all);
  y[4 + i] = out; y[132 + i] = all;
}
"""
)


def test_warps(make: Make) -> None:
    kernel = make(WARPS, "k", launch(1, N), [("x", "in", X[:N]), ("y", "inout", np.zeros(4 + 2 * N, np.int32))])
    eights = X[:N].reshape(16, 8)
    wanted = [*X[:N].reshape(4, 32).sum(1), *(np.cumsum(eights, 1) - eights).ravel(), *np.repeat(eights.sum(1), 8)]
    for run in kernel.runs():
        assert run.findings == ()
        assert run.outputs["y"].tolist() == wanted
    assert kernel.races() == ()


LOADS = (
    HEAD
    + """
__global__ void k(const int* x, int* y, int n) {
  using Load = cub::BlockLoad<int, 128, 4, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
  using Store = cub::BlockStore<int, 128, 4, cub::BLOCK_STORE_STRIPED>;
  __shared__ union { Load::TempStorage load; Store::TempStorage store; } temp;
  int v[4];
  Load(temp.load).Load(x, v, n, -1);
  __syncthreads();
  Store(temp.store).Store(y, v);
}
"""
)


def test_loads_and_stores(make: Make) -> None:
    arguments = [("x", "in", X[:300]), ("y", "out", np.zeros(4 * N, np.int32)), ("n", "scalar", np.int32(300))]
    padded = np.concatenate([X[:300], np.full(4 * N - 300, -1)]).reshape(N, 4)
    for run in make(LOADS, "k", launch(1, N), arguments).runs():
        assert run.findings == ()
        assert run.outputs["y"].tolist() == padded.T.ravel().tolist()


def test_storage_that_is_used_again_without_a_barrier_is_a_race(make: Make) -> None:
    use = "using R = cub::BlockReduce<int, THREADS>; int a = R(temp).Sum(v[0]); SYNC int b = R(temp).Sum(v[1]); if (!i) y[0] = a + b;"
    arguments = [("x", "in", X), ("y", "inout", np.zeros(4, np.int32))]
    racy = make(code("BlockReduce", use.replace("SYNC", "")), f"k<{N}>", launch(1, N), arguments)
    assert {f.kind for f in racy.races()} == {"race"}
    right = make(code("BlockReduce", use.replace("SYNC", "__syncthreads();")), f"k<{N}>", launch(1, N), arguments)
    assert right.races() == ()
    assert right.runs()[0].outputs["y"][0] == FOUR[:, 0].sum() + FOUR[:, 1].sum()


def test_a_block_that_does_not_call_it_together_is_told(make: Make) -> None:
    use = "if (i < 64) { out = cub::BlockReduce<int, THREADS>(temp).Sum(v[0]); y[0] = out; }"
    kernel = make(
        code("BlockReduce", use), f"k<{N}>", launch(1, N), [("x", "in", X), ("y", "inout", np.zeros(4, np.int32))]
    )
    assert {f.kind for run in kernel.runs() for f in run.findings} & {"barrier_divergence", "deadlock", "uninitialised"}


def test_functions_of_the_file_are_not_said_to_be_cubs() -> None:
    code = "using namespace cub;\ntemplate <int N> __device__ void DeviceShift(float* x) {}\n"
    code += "__global__ void k(float* x) { DeviceShift<4>(x); BlockRadixSort<float, 128>(); }\n"
    assert unsupported(code) == ("CUB's BlockRadixSort",)
