"""Functions of half precision that files define themselves: the names that CUDA's own headers leave free."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.spec.tried_drafts import tried

OWN = """
#include <{header}.h>
static __device__ __forceinline__ {type} max({type} a, {type} b) {{ return __hgt(a, b) ? a : b; }}
static __device__ __forceinline__ {type} min({type} a, {type} b) {{ return __hlt(a, b) ? a : b; }}
__global__ void k(const {type}* x, {type}* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = min(max(x[i], {type}(-0.5f)), {type}(0.5f));
}}
void run(const {type}* x, {type}* y, int n) {{ k<<<(n + 255) / 256, 256>>>(x, y, n); }}
"""


@pytest.mark.parametrize(("header", "type"), [("cuda_fp16", "__half"), ("cuda_bf16", "__nv_bfloat16")])
def test_a_file_may_define_its_own_min_and_max(tmp_path: Path, header: str, type: str) -> None:
    """ "redefinition of 'half min(half, half)'": CUDA has `__hmin` alone."""
    assert not tried(OWN.format(header=header, type=type), tmp_path).missing


RAW = """
#include <{header}.h>
__global__ void k(const {type}* x, {type}* y, unsigned short* z, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    {type}_raw bits = x[i];
    z[i] = bits.x;
    bits.x ^= 0x8000;
    y[i] = {type}(bits);
}}
void run(const {type}* x, {type}* y, unsigned short* z, int n) {{ k<<<(n + 255) / 256, 256>>>(x, y, z, n); }}
"""


@pytest.mark.parametrize(("header", "type"), [("cuda_fp16", "__half"), ("cuda_bf16", "__nv_bfloat16")])
def test_the_bits_of_a_number_are_a_struct_with_x(tmp_path: Path, header: str, type: str) -> None:
    """ "'using __half_raw = struct __half' has no member named 'x'"."""
    assert not tried(RAW.format(header=header, type=type), tmp_path).missing


def test_halves_of_pytorch_compute_with_floats(tmp_path: Path) -> None:
    code = """
#include <ATen/ATen.h>
__global__ void k(const at::Half* x, float* y, float by, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + by / 8.0f;
}
void run(const at::Half* x, float* y, float by, int n) { k<<<(n + 255) / 256, 256>>>(x, y, by, n); }
"""
    assert not tried(code, tmp_path).missing
