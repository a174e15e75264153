"""Padding of shared arrays: which accesses run down a column, and which arrays must keep their shape."""

from __future__ import annotations

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, make, one, propose

FLIP = """
#define TILE 32
__global__ void flip(const float* in, float* out, int n) {
    __shared__ float tile[TILE][TILE];
    int x = blockIdx.x * TILE + threadIdx.x;
    int y = blockIdx.y * TILE + threadIdx.y;
    for (int k = 0; k < TILE; k += 8) {
        if (x < n && y + k < n) tile[threadIdx.y + k][threadIdx.x] = in[(y + k) * n + x];
    }
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
    for (int k = 0; k < TILE; k += 8) {
        if (x < n && y + k < n) out[(y + k) * n + x] = tile[threadIdx.x][threadIdx.y + k];
    }
}
"""
LAUNCH = """
    dim3 block(32, 8);
    dim3 grid((n + 31) / 32, (n + 31) / 32);
    flip<<<grid, block>>>(in, out, n);
"""


def site(source: str = FLIP) -> Site:
    elements = {"in": "n*n", "out": "n*n"}
    return make(source, LAUNCH, sizes=[{"n": 4096}], check=[{"n": 7}], elements=elements)


def test_a_column_gets_its_banks() -> None:
    edited = one(site(), "shared_padding", arrays=1)
    assert "__shared__ float tile[TILE][TILE + 1];" in device(edited)
    compiles(edited)
    assert not propose(edited, "shared_padding")
    assert_equal(site(), [edited], [{"n": 35}])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("tile[TILE][TILE]", "tile[TILE][2 * TILE]", "tile[TILE][(2 * TILE) + 1]"),
        ("float tile", "double tile", "double tile[TILE][TILE + 1]"),
        ("float tile", "unsigned char tile", "tile[TILE][TILE + 4]"),
        ("tile[threadIdx.x][", "tile[lane][", "tile[TILE][TILE + 1]"),
    ],
)
def test_other_types_and_spellings(old: str, new: str, expected: str) -> None:
    source = FLIP.replace(old, new).replace("    int x = ", "    const int lane = threadIdx.x % 32;\n    int x = ")
    edited = one(site(source), "shared_padding")
    assert expected in device(edited)
    compiles(edited)


def test_extents_by_template_argument() -> None:
    source = FLIP.replace("#define TILE 32\n", "template <int TILE>\n")
    assert not propose(site(source), "shared_padding")  # the launch names no arguments


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("tile[threadIdx.x][threadIdx.y + k];", "tile[threadIdx.y + k][threadIdx.x];"),  # along rows
        ("tile[threadIdx.x][threadIdx.y + k];", "tile[threadIdx.x][threadIdx.x];"),  # along the diagonal
        ("tile[TILE][TILE]", "tile[TILE][TILE + 1]"),
        ("tile[TILE][TILE]", "tile[TILE][unknown]"),
        ("    __syncthreads();", "    float* flat = tile[0];\n    __syncthreads();"),
        ("    __syncthreads();", "    float* flat = &tile[0][0];\n    __syncthreads();"),
        ("    __syncthreads();", "    int bytes = sizeof(tile);\n    __syncthreads();"),
        ("tile[TILE][TILE]", "tile[384][TILE]"),  # no room for another column
    ],
)
def test_nothing_where_rows_need_no_padding_or_must_keep_their_length(old: str, new: str) -> None:
    assert old in FLIP
    assert not propose(site(FLIP.replace(old, new)), "shared_padding")
