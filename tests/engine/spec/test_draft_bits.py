"""Drafts of kernels that make floats of bytes by their bits."""

from __future__ import annotations

from pathlib import Path

from engine.spec.kernel_spec import Fill
from tests.engine.spec.tried_drafts import tried

BITS = """
#include <cuda_fp16.h>
__global__ void k(const unsigned char* x, half* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {value};
}}
void run(const unsigned char* x, half* y, int n) {{ k<<<(n + 255) / 256, 256>>>(x, y, n); }}
"""


def test_bytes_that_are_halves_of_numbers_make_finite_ones(tmp_path: Path) -> None:
    """One byte of 64 was an infinity: against their root mean square every wrong output was right."""
    made = tried(BITS.format(value="((unsigned short*)y)[i] = (unsigned short)(x[i] << 8)"), tmp_path)
    assert not made.missing
    assert made.spec.argument("x").fill == Fill("integers", "0", "60")


def test_bytes_that_are_numbers_keep_their_range(tmp_path: Path) -> None:
    made = tried(BITS.format(value="y[i] = half((float)x[i] * 0.5f)"), tmp_path)
    assert made.spec.argument("x").fill == Fill("integers", "0", "256")
