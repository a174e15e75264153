"""What a run reports, by what is wrong with it; and what is legal and must not be reported."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine.cpu import CpuMachine, Unsupported, unsupported
from engine.errors import CompileError
from engine.spec.kernel_spec import KernelSpec, Step
from tests.engine.cpu.conftest import Make, launch
from tests.engine.cpu.kernels import MATMUL, honest
from tests.spent import spent

N = np.int32(64)


def data(n: int = 64) -> Any:
    return np.arange(n, dtype=np.float32)


def simple(make: Make, body: str, *, block: int = 64, shared: int = 0, before: str = "") -> Any:
    text = f"{before}\n__global__ void k(const float* x, float* y, int n) {{\n  int t = threadIdx.x;\n{body}\n}}\n"
    arguments = [("x", "in", data()), ("y", "out", np.zeros(64, np.float32)), ("n", "scalar", N)]
    return make(text, "k", launch(1, block, shared), arguments)


BROKEN = {
    "hang": ("  while (x[0] == 0) y[t] = 1;", "timeout"),
    "assertion": ("  assert(t < 63);\n  y[t] = 1;", "assert"),
    "misaligned": ("  y[t] = 0;\n  float2 v = reinterpret_cast<const float2*>(x + 1)[0];\n  y[t] = v.x + v.y;", "misaligned"),
    "null": ("  float* p = nullptr;\n  if (n == 64) p[t] = 1;", "out_of_bounds"),
    "wild": ("  y[(long long)t << 36] = 1;", "out_of_bounds"),
    "far": ("  y[t] = x[t + 100000000];", "out_of_bounds"),
    "unwritten output": ("  y[t] += x[t];", "uninitialised"),
    "unwritten shared": ("  __shared__ float s[64];\n  y[t] = s[t];", "uninitialised"),
    "read-only after a write": ("  y[t] = x[t];\n  y[t] = 2 * __ldg(y + t);", "stale_read"),
    "read-only after another thread's write": ("  y[t] = x[t];\n  __syncthreads();\n  float v = __ldg(y + 63 - t);\n  __syncthreads();\n"
                                               "  y[t] = v;", "stale_read"),
    "read-only by instruction": (
        "  y[t] = x[t];\n  float v;\n  asm(\"ld.global.nc.f32 %0, [%1];\" : \"=f\"(v) : \"l\"(y + t));\n  y[t] = v;", "stale_read",
    ),
    "input written": ("  const_cast<float*>(x)[t] = 1;", "input_written"),
    "dynamic too small": ("  extern __shared__ float s[];\n  s[t] = x[t];", "shared_out_of_bounds"),
    "division": ("  y[t] = t / (n - 64);", "crash"),
    "two barriers": ("  if (t < 32) __syncthreads();\n  else\n    __syncthreads();\n  y[t] = 1;", "barrier_divergence"),
    "skipped at the end": ("  y[t] = 1;\n  if (t < 5) {\n    __syncthreads();\n  }", "barrier_divergence"),
    "skipped, then returned": ("  if (t < 5) {\n    __syncthreads();\n  }\n  y[t] = 1;\n  if (t >= 5) return;\n  y[t] = 2;",
                               "barrier_divergence"),
    "uneven trips": ("  for (int i = 0; i <= t % 2; ++i) {\n    __syncthreads();\n  }\n  y[t] = 1;", "barrier_divergence"),
    "in a device function": ("  if (t < 5) f();\n  y[t] = 1;", "barrier_divergence"),
    "half a warp": ("  if (t < 16) y[t] = __shfl_sync(0xffffffffu, x[t], 0);\n  __syncthreads();\n  y[t] = 1;", "deadlock"),
    "mask without itself": ("  y[t] = __shfl_sync(0xffffu, x[t], 0);", "barrier_divergence"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_is_reported_in_every_order(name: str, make: Make) -> None:
    body, kind = BROKEN[name]
    kernel = simple(make, body, before="__device__ void f() { __syncthreads(); }")
    for run in kernel.runs((0, 1, 2, 3), deadline_s=0.2 if kind == "timeout" else 20):
        assert kind in {f.kind for f in run.findings}, run.findings


def test_an_input_that_is_left_out_has_no_address(make: Make) -> None:
    kernel = simple(make, "  y[t] = x != nullptr ? x[t] : -1;")
    (run,) = kernel.machine.run_many(kernel.binary, [replace(kernel.job(), null=("x",))], deadline_s=20)
    assert not run.findings
    assert (run.outputs["y"] == -1).all()
    kernel = simple(make, "  y[t] = x[t];")
    (run,) = kernel.machine.run_many(kernel.binary, [replace(kernel.job(), null=("x",))], deadline_s=20)
    assert {finding.kind for finding in run.findings} == {"out_of_bounds"}


LEGAL = {
    "return above": "  if (t >= 40) return;\n  __syncthreads();\n  y[t] = x[t];",
    "return above, one line": "  if (t >= 40) return; __syncthreads(); y[t] = x[t];",
    "return in braces": "  if (t < 40) {\n    y[t] = 1;\n  } else {\n    return;\n  }\n  __syncthreads();",
    "return in the loop": "  for (int i = 0; i < 4; ++i) {\n    __syncthreads();\n    if (t >= 60 - i) return;\n  }\n  y[t] = 1;",
    "return above, barrier in a device function": "  if (t >= 40) return;\n  f();\n  y[t] = 1;",
    "uniform branch": "  if (n > 5) {\n    __syncthreads();\n  }\n  y[t] = 1;",
    "uniform loop": "  for (int i = 0; i < n; ++i) {\n    __syncthreads();\n  }\n  y[t] = 1;",
    "reductions at a barrier": "  int c = __syncthreads_count(t < 5);\n  y[t] = c + __syncthreads_or(t == 3);",
    "half a warp by mask": "  if (t < 16) y[t] = __shfl_sync(0xffffu, x[t], 0); else y[t] = 0;\n  __syncthreads();",
    "full mask after others left": "  if (t >= 16) return;\n  y[t] = __shfl_xor_sync(0xffffffffu, x[t], 1);",
    "lambda with a return": "  auto g = [&](int i) {\n    if (i > 3) return;\n    y[t] = i;\n  };\n  g(t); __syncthreads(); y[t] = 1;",
}


@pytest.mark.parametrize("name", LEGAL)
def test_is_not_reported(name: str, make: Make) -> None:
    kernel = simple(make, LEGAL[name], before="__device__ void f() { __syncthreads(); }")
    for run in kernel.runs((0, 1, 2, 3)):
        assert run.findings == ()
    assert kernel.races((0,)) == ()


def test_barriers_are_named_by_their_lines(make: Make) -> None:
    kernel = simple(make, "  y[t] = 1;\n  if (t < 5) {\n    __syncthreads();\n  }")
    (finding,) = kernel.runs((0,))[0].findings
    assert finding.line == 6
    assert "line 6" in finding.message


def test_deadlock_is_seen_at_once(make: Make) -> None:
    started = time.monotonic()
    runs = simple(make, BROKEN["half a warp"][0]).runs((0,), deadline_s=100)
    assert runs[0].findings[0].kind == "deadlock"
    assert time.monotonic() - started < 60


def test_finding_says_where(make: Make) -> None:
    kernel = make(
        "__global__ void k(float* y) {\n  y[blockIdx.x * 32 + threadIdx.x + 1] = 1.0f;\n}\n", "k", launch(4, 32),
        [("y", "out", np.zeros(128, np.float32))],
    )  # fmt: skip
    (finding,) = kernel.runs((0,))[0].findings
    assert (finding.kind, finding.array, finding.index, finding.line) == ("out_of_bounds", "y", 128, 2)
    assert finding.thread == (31, 0, 0)
    assert finding.block == (3, 0, 0)
    assert "y[128], which has 128 elements" in finding.message


def test_line_is_the_caller_of_our_headers(make: Make) -> None:
    kernel = simple(make, "  y[t] = 0;\n  atomicAdd(&y[t + 1],\n            1.0f);")
    (finding,) = [f for f in kernel.runs((0,))[0].findings if f.kind == "out_of_bounds"]
    assert finding.line in (5, 6)


def test_steps_run_in_order(make: Make) -> None:
    text = """
__global__ void a(const float* x, float* t, int n) { int i = threadIdx.x; if (i < n) t[i] = 2 * x[i]; }
__global__ void b(const float* t, float* y, int n) { int i = threadIdx.x; if (i < n) y[i] = __ldg(t + n - 1 - i); }
"""
    kernel = make(
        text, ["a", "b"], [launch(1, 64), launch(1, 96)],
        [("x", "in", data()), ("t", "out", np.zeros(64, np.float32)), ("y", "out", np.zeros(64, np.float32)), ("n", "scalar", N)],
        [["x", "t", "n"], ["t", "y", "n"]],
    )  # fmt: skip
    run = kernel.runs((0,))[0]
    assert run.findings == ()
    np.testing.assert_array_equal(run.outputs["y"], 2 * data()[::-1])
    assert kernel.races((0,)) == ()


def test_counts_what_a_gpu_pays_for(make: Make) -> None:
    text = """
__global__ void k(const float* x, const float4* v, float* y) {
  __shared__ float s[32][32];
  int t = threadIdx.x;
  s[t][0] = x[t * 32];
  __syncwarp();
  y[t] = s[0][t & 0] + v[t].x;
  float4 q = v[t];
  y[t] += q.x + q.y;
  __syncthreads();
}
"""
    zeros = np.zeros(128, np.float32)
    kernel = make(
        text, "k", launch(1, 32), [("x", "in", data(1024)), ("v", "in", zeros), ("y", "out", np.zeros(32, np.float32))]
    )
    run = kernel.machine.run_many(kernel.binary, [kernel.job(0, True)])[0]
    assert run.counts is not None
    (counts,) = run.counts.kernels
    sites = {(s.line, s.space, s.kind, s.array): s for s in counts.sites}
    strided = sites[5, "global", "load", "x"]
    assert (strided.requests, strided.lanes, strided.passes) == (1, 32, 32)
    assert (strided.cache_lines, strided.block_bytes) == (32, 32 * 32)
    assert sites[5, "shared", "store", ""].passes == 32  # one bank takes every lane's word
    wide = sites[8, "global", "load", "v"]
    assert (wide.width_bytes, wide.requests, wide.passes) == (16, 1, 16)
    assert (wide.cache_lines, wide.block_bytes) == (4, 16 * 32)
    assert counts.barriers == 1
    assert counts.unique_load_bytes == (32 + 16) * 32
    assert counts.unique_store_bytes == 128
    assert counts.block_load_bytes == counts.unique_load_bytes  # one block


def test_counts_are_scaled_to_all_blocks(make: Make) -> None:
    text = "__global__ void k(const float* x, float* y) { int i = blockIdx.x * 64 + threadIdx.x; y[i] = x[i]; }"
    n = 64 * 200
    kernel = make(text, "k", launch(200, 64), [("x", "in", data(n)), ("y", "out", np.zeros(n, np.float32))])
    run = kernel.machine.run_many(kernel.binary, [kernel.job(0, True)])[0]
    assert run.counts is not None
    requests, passes, asked = run.counts.kernels[0].total("global", "load")
    assert (requests, passes, asked) == (400, 1600, n * 4)


def test_touched_is_the_extent_and_written_a_count(make: Make) -> None:
    kernel = simple(make, "  if (t < 10) y[2 * t] = x[t + 3];")
    (run,) = kernel.runs((0,))
    assert (run.touched, run.written) == ({"x": 13, "y": 19}, {"y": 10})


def test_wrong_arguments_are_named(make: Make) -> None:
    text = "__global__ void k(const float* x, float* y, int n) { y[0] = x[0] + n; }"
    kernel = make(text, "k", launch(1, 1), [("x", "in", data()), ("y", "out", data()), ("n", "scalar", np.float64(1))])
    (finding,) = kernel.runs((0,))[0].findings
    assert "argument 3" in finding.message


def test_compiler_speaks_of_the_kernels_file(machine: CpuMachine) -> None:
    spec = KernelSpec("a.cu", (Step("k", "", ()),), (), (), ())
    with pytest.raises(CompileError) as caught:
        machine.build("__global__ void k() {\n  int x = nothing;\n}\n", "dir/a.cu", spec, ["k"])
    assert "dir/a.cu:2" in caught.value.log


@pytest.mark.parametrize("path", ["/etc/passwd", "/etc/hostname", "/root/.bashrc", "/home/someone/.ssh/id_ed25519"])
def test_compiler_cannot_read_secrets(path: str, machine: CpuMachine) -> None:
    spec = KernelSpec("a.cu", (Step("k", "", ()),), (), (), ())
    with pytest.raises(CompileError) as caught:
        machine.build(f'#include "{path}"\n__global__ void k() {{}}\n', "a.cu", spec, ["k"])
    assert "No such file" in caught.value.log or "not found" in caught.value.log


@pytest.mark.parametrize("expression", ['k); system("id"); (', "k\n#include <x>", "", "k;", "k{}"])
def test_expression_is_only_a_name(expression: str, machine: CpuMachine) -> None:
    spec = KernelSpec("a.cu", (Step("k", "", ()),), (), (), ())
    with pytest.raises(CompileError):
        machine.build("__global__ void k() {}\n", "a.cu", spec, [expression])


FEATURES = {
    "using namespace nvcuda::wmma::experimental;": "tensor cores (wmma) of less than eight bits",
    "#include <cub/device/device_scan.cuh>": "CUB's device/device_scan",
    "#include <cub/cub.cuh>\nusing S = cub::BlockRadixSort<int, 32, 1>;": "CUB's BlockRadixSort",
    "#include <cub/cub.cuh>\nusing namespace cub;\nusing S = BlockHistogram<int, 32, 1, 1>;": "CUB's BlockHistogram",
    "__global__ void c();\n__global__ void k() { c<<<1, 1>>>(); }": "dynamic parallelism",
    "#define GO(f) f<<<1, 1>>>()\n__global__ void c();\n__global__ void k() { GO(c); }": "dynamic parallelism",
    "cg::this_grid().sync();": "grid synchronisation",
    "cudaTextureObject_t t": "textures",
    "__cluster_dims__(2, 1, 1)": "thread block clusters",
    "cuda::barrier<cuda::thread_scope_block> b;": "cuda::barrier or cuda::pipeline",
}


@pytest.mark.parametrize("text", FEATURES)
def test_what_cannot_run_is_named(text: str, machine: CpuMachine) -> None:
    assert unsupported(text) == (FEATURES[text],)
    spec = KernelSpec("a.cu", (Step("k", "", ()),), (), (), ())
    with pytest.raises(Unsupported) as caught:
        machine.build(text, "a.cu", spec, ["k"])
    assert caught.value.features == (FEATURES[text],)


def test_names_in_comments_and_strings_are_no_features() -> None:
    assert unsupported('// asm cub:: wmma\n/* texture<float> */ const char* s = "asm <<<";') == ()
    assert unsupported(MATMUL) == ()
    assert unsupported("#define GO(f, ...) \\\n  f<<<1, 1>>>( \\\n  __VA_ARGS__)\n__global__ void k() {}") == ()
    assert unsupported("#include <cub/cub.cuh>\nusing R = cub::BlockReduce<float, 32, cub::BLOCK_REDUCE_RAKING>;") == ()


def test_screening_is_fast_enough(make: Make, machine: CpuMachine) -> None:
    h = honest()["tiled matmul"]
    with spent() as cost:
        kernel = make(h.text, h.kernel, h.launch, h.arguments)
        kernel.runs((0, 1, 2))
    assert cost.seconds < 3


RACES = {
    "one value of a warp": (
        "s[t / 32] = 5.0f; for (int i = 0; i < 3; ++i) s[2 + t / 32] = n; y[2 * blockIdx.x + t / 32] = n;",
        False,
    ),
    "one value of two warps": ("s[0] = 5.0f;", True),
    "one value, then others": ("s[t / 32] = t / 2 * 2;", True),
    "another instruction": ("if (t & 1) s[t / 32] = 5.0f; else s[t / 32] = x[0] + 5.0f;", True),
    "of two blocks": ("y[t / 32] = n;", True),
    "updated": ("y[2 * blockIdx.x + t / 32] += 0.0f;", True),
    "read by others": ("s[t / 32] = 5.0f; y[t] = s[0];", True),
}


@pytest.mark.parametrize("name", RACES)
def test_one_value_stored_by_a_warp_at_once_is_no_race(name: str, make: Make) -> None:
    body, races = RACES[name]
    text = f"__global__ void k(const float* x, float* y, int n) {{\n  __shared__ float s[64];\n  int t = threadIdx.x;\n  {body}\n}}\n"
    arguments = [("x", "in", data()), ("y", "inout", np.zeros(64, np.float32)), ("n", "scalar", N)]
    found = make(text, "k", launch(3, 64), arguments).races((0, 1))
    assert bool(found) == races, found


def test_harmless_stores_of_hundreds_of_threads_take_no_second(make: Make, machine: CpuMachine) -> None:
    """With each report ThreadSanitizer read /proc/self/maps, thousands of lines: 10 s of a core, and the run did not end in time."""
    text = """
__global__ void k(float* y, int n) {
  __shared__ float s[64];
  for (int i = 0; i < 3; ++i) s[2 + threadIdx.x / 32] = n;
  y[2 * blockIdx.x + threadIdx.x / 32] = n;
}
"""
    arguments = [("y", "inout", np.zeros(64, np.float32)), ("n", "scalar", N)]
    kernel = make(text, "k", launch(10, 64), arguments)
    assert machine.races(kernel.binary, [kernel.job()], deadline_s=2.0) == ()


def test_a_line_of_a_header_names_the_header(make: Make) -> None:
    text = """
#line 90 "parts/store.cuh"
__device__ __noinline__ void store(float* y, int i) { y[i] = 1.0f; }
#line 4 "k.cu"
__global__ void k(float* y) { store(y, threadIdx.x + 1); }
"""
    kernel = make(text, "k", launch(1, 32), [("y", "out", np.zeros(1, np.float32))])
    (finding,) = kernel.runs((0,))[0].findings[:1]
    assert (finding.file, finding.line) == ("parts/store.cuh", 90)
    assert finding.message.endswith("which has 1 element (line 90 of parts/store.cuh)")
