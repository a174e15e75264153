"""Drafts of kernels whose indices stand in buffers: scattered results, rows of a sparse matrix that another buffer chooses."""

from __future__ import annotations

from pathlib import Path

from engine.spec.kernel_spec import Fill
from tests.engine.spec.tried_drafts import tried

SCATTER = """
__global__ void k(const int* to, const float* x, float* y, int n{more}) {{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n{columns}; i += gridDim.x * blockDim.x) {{ {body} }}
}}
void run(const int* to, const float* x, float* y, int n{more}) {{
    k<<<(n{columns} + 255) / 256, 256>>>(to, x, y, n{more_passed});
}}
"""


def _scatter(body: str, columns: bool = False) -> str:
    more, passed = (", int c", ", c") if columns else ("", "")
    return SCATTER.format(body=body, more=more, more_passed=passed, columns=" * c" if columns else "")


def test_indices_that_results_are_stored_at_are_a_permutation(tmp_path: Path) -> None:
    """Drawn at random some are the same: two threads wrote one element, and the kernel was called racy."""
    made = tried(_scatter("y[to[i]] = x[i];"), tmp_path)
    assert not made.missing
    assert made.spec.argument("y").size == "n"
    assert made.spec.argument("to").fill == Fill("permutation")


def test_so_are_those_of_rows(tmp_path: Path) -> None:
    made = tried(_scatter("y[to[i / c] * c + i % c] = x[i];", columns=True), tmp_path)
    assert not made.missing
    assert made.spec.argument("y").size == "n*c"
    assert made.spec.argument("to").fill == Fill("permutation")


def test_those_of_atomics_and_of_reads_are_not(tmp_path: Path) -> None:
    for body in ("atomicAdd(&y[to[i]], x[i]);", "y[i] = x[to[i]];"):
        made = tried(_scatter(body), tmp_path)
        assert not made.missing
        assert made.spec.argument("to").fill == Fill("integers", "0", "n")


def test_a_row_that_another_buffer_chooses_has_its_end_in_the_next_offset(tmp_path: Path) -> None:
    """`ptr[rows[i] + 1]`: no size of a product with one more was tried."""
    made = tried(
        """
__global__ void k(const int* rows, const int* ptr, int* degree, int n, int most) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { int row = rows[i]; int found = ptr[row + 1] - ptr[row]; degree[i] = found < most ? found : most; }
}
void run(const int* rows, const int* ptr, int* degree, int n, int most) {
    k<<<(n + 255) / 256, 256>>>(rows, ptr, degree, n, most);
}
""",
        tmp_path,
    )
    assert not made.missing
    assert made.spec.argument("ptr").size == "n + 1"
    assert made.spec.argument("ptr").fill.kind == "offsets"
    assert made.spec.argument("rows").fill == Fill("integers", "0", "n")
    last = made.spec.time[0].sizes  # offsets of 32 bits: the first timing case asked for more than these count
    assert last["n"] * last["per_segment"] < 1 << 31
