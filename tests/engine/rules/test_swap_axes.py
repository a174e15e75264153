"""Exchanged thread axes: where the fast index runs along .y, and where the axes must stay."""

from __future__ import annotations

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, host, make, one, propose

BLEND = """
__global__ void blend(const float* a, const float* b, float* out, int rows, int cols) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    int c = blockIdx.y * blockDim.y + threadIdx.y;
    if (r < rows && c < cols) {
        out[r * cols + c] = a[r * cols + c] + b[c];
    }
}
"""
LAUNCH = """
    dim3 block(16, 16);
    dim3 grid((rows + 15) / 16, (cols + 15) / 16);
    blend<<<grid, block>>>(a, b, out, rows, cols);
"""


def site(source: str = BLEND, launch: str = LAUNCH, rows: int = 4096) -> Site:
    elements = {"a": "rows*cols", "b": "cols", "out": "rows*cols"}
    sizes, check = [{"rows": rows, "cols": 2000}], [{"rows": 7, "cols": 129}]
    return make(source, launch, sizes=sizes, check=check, elements=elements)


def test_the_kernel_and_its_launch_change_together() -> None:
    edited = one(site(), "swap_axes", x=32, y=16)  # a million rows need no more blocks in y than there can be
    assert "int r = blockIdx.y * blockDim.y + threadIdx.y;" in device(edited)
    assert "int c = blockIdx.x * blockDim.x + threadIdx.x;" in device(edited)
    assert edited.configs[0].block == (32, 16, 1)
    assert edited.configs[0].grid == (63, 256, 1)
    assert "(cols + 31) / 32" in host(edited)
    compiles(edited)
    assert not propose(edited, "swap_axes")
    assert_equal(site(), [edited], [{"rows": 41, "cols": 70}])


def test_a_constant_stays_with_its_variable() -> None:
    source = "#define TILE 16\n" + BLEND.replace("blockDim.y", "TILE").replace("blockDim.x", "TILE")
    (proposal,) = propose(site(source), "swap_axes")
    assert proposal.parameters == {"x": 16, "y": 16}
    compiles(one(site(source), "swap_axes"))


def test_an_early_return_and_a_loop_over_the_other_operand() -> None:
    source = """
__global__ void blend(const float* a, const float* b, float* out, int rows, int cols) {
    int r = blockIdx.x * blockDim.x + threadIdx.x, c = blockIdx.y * blockDim.y + threadIdx.y;
    if (r >= rows || c >= cols) return;
    float sum = 0.0f;
    for (int k = 0; k < cols; ++k) sum += a[r * cols + k] * b[c];
    out[c + r * cols] = sum;
}
"""
    compiles(one(site(source), "swap_axes", x=32, y=16))


def test_a_transpose_rather_stores_along_rows_than_loads() -> None:
    loads_along = BLEND.replace("out[r * cols + c] = a[r * cols + c] + b[c]", "out[r * cols + c] = a[c * rows + r]")
    stores_along = BLEND.replace("out[r * cols + c] = a[r * cols + c] + b[c]", "out[c * rows + r] = a[r * cols + c]")
    (first, *_) = propose(site(loads_along), "swap_axes", x=32)
    assert first.prior < 0.3  # a guess beside one that is sure
    assert not propose(site(stores_along), "swap_axes")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("r * cols + c", "c * rows + r"),  # coalesced as it is
        ("out[r * cols + c]", "out[(r * cols + c) / 2]"),
        ("out[r * cols + c]", "out[threadIdx.y]"),
        ("+ b[c]", "+ __shfl_xor_sync(0xffffffffu, b[c], 1)"),
        ("+ b[c]", "+ b[blockDim.x]"),
        ("r < rows && c < cols", "r < rows"),  # nobody says how far c goes
        ("int c = blockIdx.y", "int c = 1 + blockIdx.y"),
    ],
)
def test_nothing_where_nothing_is_won_or_threads_know_their_place(old: str, new: str) -> None:
    source = BLEND.replace("    if", "    // the work\n    if")
    assert old in source
    replaced = source.replace(old, new)
    if new.startswith("out[(r"):  # one access that cannot be told beside two that can
        replaced = replaced.replace("a[r * cols + c] + b[c]", "1.0f")
    assert not propose(site(replaced), "swap_axes")


def test_nothing_where_the_other_axis_cannot_hold_as_many_blocks() -> None:
    assert not propose(site(rows=1 << 21), "swap_axes", y=8)
