"""Floats that are added atomically, however a kernel comes to it: a draft has to declare that its output may differ."""

from __future__ import annotations

import pytest

from engine.cuda.parse import parse
from engine.model import Program
from engine.spec.atomic_adds import atomic_adds
from engine.spec.draft import draft

_HELPERS = """
#define ADD(p, v) atomicAdd((p), (v))
#define COUNT_AND_ADD(n, p, v) do { atomicAdd(n, 1); ADD(p, v); } while (0)
__device__ void put(float* to, int i, float v) { atomicAdd(&to[i], v); }
__device__ void twice(int i, float* there, float v) { put(there, i, v); put(there, i, v); }
__device__ double own(double* address, double v) {
    unsigned long long* bits = (unsigned long long*)address;
    unsigned long long old = *bits, assumed;
    do { assumed = old; old = atomicCAS(bits, assumed, __double_as_longlong(v + __longlong_as_double(assumed))); } while (assumed != old);
    return __longlong_as_double(old);
}
__device__ float largest(float* address, float v) {
    int* bits = (int*)address;
    int old = *bits, assumed;
    do { assumed = old; old = atomicCAS(bits, assumed, __float_as_int(fmaxf(v, __int_as_float(assumed)))); } while (assumed != old);
    return __int_as_float(old);
}
"""


def program(
    body: str, parameters: str = "const float* x, float* y, double* d, int* count, const int* to, int n"
) -> Program:
    text = f"{_HELPERS}__global__ void k({parameters}) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) {{ {body} }} }}"
    return Program({"k.cu": text.encode()}, "k.cu")


@pytest.mark.parametrize(
    ("body", "added"),
    [
        ("atomicAdd(&y[to[i]], x[i]);", {"y"}),
        ("gpuAtomicAdd(y + to[i] * n + i, x[i]);", {"y"}),  # as apex's index_mul_2d has it
        ("at::native::fastAtomicAdd(y, to[i], n, x[i], true);", {"y"}),
        ("float* row = y + to[i] * n; float* cell = &row[3]; atomicAdd(cell, x[i]);", {"y", "row", "cell"}),
        ("put(y, to[i], x[i]);", {"y"}),
        ("twice(to[i], y + 1, x[i]);", {"y"}),
        ("ADD(&y[to[i]], x[i]);", {"y"}),
        ("COUNT_AND_ADD(count, y + to[i], x[i]);", {"count", "y"}),
        ("own(&d[to[i]], x[i]);", {"d"}),
        ("largest(&y[to[i]], x[i]);", set()),
        ("cuda::atomic_ref<float>(y[to[i]]).fetch_add(x[i]);", {"y"}),
        ('asm volatile("red.global.add.f32 [%0], %1;" :: "l"(y + i), "f"(x[i]));', {"y"}),
        ("atomicMax(&count[to[i]], (int)x[i]);", set()),
        ("atomicAdd(&count[(int)x[i]], 1);", {"count"}),
        ("__shared__ float sum; atomicAdd(&sum, x[i]); __syncthreads(); y[i] = sum;", {"sum"}),
        ("y[to[i]] = x[i];", set()),
    ],
)
def test_what_is_added_to(body: str, added: set[str]) -> None:
    made = program(body)
    found = atomic_adds(made, parse(made.data, "k.cu").kernel("k"))
    assert found & {"x", "y", "d", "count", "to", "row", "cell", "sum"} == added


@pytest.mark.parametrize(
    ("body", "deterministic"),
    [
        ("gpuAtomicAdd(y + to[i] * n + i, x[i]);", False),
        ("twice(to[i], y, x[i]);", False),
        ("COUNT_AND_ADD(count, y + to[i], x[i]);", False),
        ("__shared__ float sum[32]; atomicAdd(&sum[to[i]], x[i]); __syncthreads(); y[i] = sum[i];", False),
        ("__shared__ int sum[32]; atomicAdd(&sum[to[i]], 1); __syncthreads(); y[i] = sum[i];", True),
        ("largest(&y[to[i]], x[i]);", True),
        ("atomicAdd(&count[(int)x[i]], 1);", True),
    ],
)
def test_a_draft_declares_it(body: str, deterministic: bool) -> None:
    """apex's index_mul_2d_grad_grad_float was drafted without, and the GPU refused the spec: its output differed from run to run."""
    made = draft(program(body), "k")
    assert made.spec.deterministic is deterministic
    assert ("deterministic = false" in made.text) is not deterministic


def test_a_helper_in_a_header_counts() -> None:
    files = {
        "k.cu": b'#include "add.cuh"\n__global__ void k(const float* x, float* y, int n) { add(y, x[threadIdx.x]); }'
    }
    files["add.cuh"] = b"template <typename T> __device__ void add(T* p, T v) { atomicAdd(p, v); }"
    made = Program(files, "k.cu")
    assert atomic_adds(made, parse(made.data, "k.cu").kernel("k")) == {"y"}


def test_functions_and_macros_that_name_each_other_end() -> None:
    text = """
#define A(p) B(p)
#define B(p) A(p)
__device__ void f(float* p, int n); __device__ void g(float* p, int n) { if (n) f(p, n - 1); atomicAdd(p, 1.f); }
__device__ void f(float* p, int n) { if (n) g(p, n - 1); A(p); }
__global__ void k(float* y, int n) { f(y, n); A(y); }
"""
    made = Program({"k.cu": text.encode()}, "k.cu")
    assert atomic_adds(made, parse(made.data, "k.cu").kernel("k")) <= {"y"}
