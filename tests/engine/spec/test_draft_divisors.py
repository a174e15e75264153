"""Drafts of kernels that divide by a multiplication and a shift which the host prepares."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.arith import evaluate_int
from tests.engine.spec.drafts import program, read_back
from tests.engine.spec.tried_drafts import tried

DIVIDED = """
static const uint3 prepare(unsigned long long d64) {{
    unsigned d = (unsigned)d64, l = 0;
    while (l < 32 && (1u << l) < d) ++l;
    return make_uint3((unsigned)((1ull << 32) * ((1ull << l) - d) / d + 1), l, d);
}}
static __device__ __forceinline__ unsigned quotient(unsigned n, const uint3 by) {{
    const unsigned high = __umulhi(n, by.x);
    return (high + n) >> by.y;
}}
static __device__ __forceinline__ unsigned rest(unsigned n, const uint3 by) {{ return n - quotient(n, by) * by.z; }}
__global__ void k(const float* x, const float* bias, float* y, const int n, const uint3 {name}{more}) {{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n * {name}.z) y[i] = x[i] + bias[rest(i, {name})] + quotient(i, {name});
}}
void run(const float* x, const float* bias, float* y, int n, int cols{more}) {{
    const uint3 fast = prepare((unsigned){divisor});
    k<<<(n * {blocks} + 255) / 256, 256>>>(x, bias, y, n, fast{passed});
}}
"""


@pytest.mark.parametrize(
    ("divisor", "more", "passed", "size", "extent"),
    [
        ("cols", "", "", "cols", "cols"),
        ("cols", ", int width", ", cols", "width", "width"),  # by the name that the kernel has for it
        ("table[1]", ", int cols", ", cols", "by_fd_divisor", "by_fd_divisor"),
    ],
)
def test_a_prepared_divisor_is_a_size(
    tmp_path: Path, divisor: str, more: str, passed: str, size: str, extent: str
) -> None:
    """All three numbers were 1: a quotient of half, which no program passes."""
    code = DIVIDED.format(name="by_fd", divisor=divisor, more=more, passed=passed, blocks="cols")
    made = tried(code, tmp_path)
    assert not made.missing
    assert made.spec.argument("bias").size == extent
    values = {lane: made.spec.argument(f"by_fd.{lane}").value for lane in "xyz"}
    for d in (1, 2, 3, 7, 8, 100, 4097, 1 << 20):
        by, shift, own = (evaluate_int(values[lane], {size: d}) for lane in "xyz")
        assert own == d
        assert 0 < by < 1 << 32
        for n in (0, 1, d - 1, d, d + 1, 5 * d - 1, 123_456, (1 << 31) - 1):
            assert ((n * by >> 32) + n) >> shift == n // d
    read = read_back(program(code), made, "comments")
    assert read.argument("by_fd.x").offset == 0
    assert read.argument("by_fd.z").offset == 8


def test_three_numbers_that_nothing_divides_by_are_none(tmp_path: Path) -> None:
    code = DIVIDED.format(name="by", divisor="cols", more="", passed="", blocks="cols").replace(
        "(high + n) >> by.y", "high + by.y"
    )
    made = tried(code, tmp_path)
    assert made.spec.argument("by").value == "1"
