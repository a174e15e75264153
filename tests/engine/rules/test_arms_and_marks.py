"""Elements that each arm of an `if` stores, rows shared by blocks of two dimensions, and marks that do nothing."""

import pytest

from engine.rules.normal_form.normal_form import normal_form
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_normal_form import ROWS, SMALL, found, plain
from tests.engine.rules.workbench import device, make, propose

DIAGONAL = """
#define UNUSED(x) (void)(x)
__global__ void diagonal(const float* x, float* y, int rows, int cols) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * cols) {
        return;
    }
    const int col = i % cols;
    const int row = i / cols;
    const int at = row * cols + col;
    if (col == row) {
        y[at] = x[row];
    } else {
        y[at] = 0.5f;
    }
    UNUSED(rows);
    (void)cols;
}
"""
DIAGONAL_LAUNCH = "    diagonal<<<(rows * cols + 127) / 128, 128>>>(x, y, rows, cols);"
DIAGONAL_ROWS = {**ROWS, "elements": {"x": "rows", "y": "rows*cols"}}


def test_element_that_both_arms_store_is_a_part_of_a_vector() -> None:
    site = make(DIAGONAL, DIAGONAL_LAUNCH, **DIAGONAL_ROWS)
    assert "UNUSED(rows)" not in plain(site)
    assert "(void)cols" not in plain(site)
    edited = found(site, "vectorize")
    assert edited
    assert "y_pack;" in device(edited[0])  # stored as a whole, not loaded before
    assert_equal(site, edited, SMALL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    } else {\n        y[at] = 0.5f;\n    }", "    }"),
        ("y[at] = 0.5f;", "y[at] += 0.5f;"),
        ("y[at] = 0.5f;", "y[at + 1] = 0.5f;"),
        ("y[at] = 0.5f;", "if (col > row) { y[at] = 0.5f; }"),
    ],
)
def test_element_that_some_run_does_not_store_is_none(old: str, new: str) -> None:
    assert not found(make(DIAGONAL.replace(old, new), DIAGONAL_LAUNCH, **DIAGONAL_ROWS), "vectorize")


def test_macros_that_do_something_are_no_marks() -> None:
    source = DIAGONAL.replace("(void)(x)", "(void)(y[0] = x)")
    form = normal_form(make(source, DIAGONAL_LAUNCH, **DIAGONAL_ROWS))
    assert form is None or "UNUSED(rows);" in device(form.site)


PLANE = """
__global__ void plane(const float* x, const float* bias, float* y, int rows, int cols) {
    const int threads = blockDim.x * blockDim.y;
    const int thread = threadIdx.x + threadIdx.y * blockDim.x;
    const float* from = x + blockIdx.x * cols;
    float* to = y + blockIdx.x * cols;
    if (bias != nullptr) {
        for (int c = thread; c < cols; c += threads) {
            if (rows > 3) {
                to[c] = from[c] + bias[c];
            } else {
                to[c] = from[c] - bias[c];
            }
        }
    } else {
        for (int c = thread; c < cols; c += threads) {
            to[c] = from[c];
        }
    }
}
"""
PLANE_LAUNCH = "    plane<<<rows, dim3(32, 4)>>>(x, bias, y, rows, cols);"
PLANE_ROWS = {**ROWS, "elements": {"x": "rows*cols", "y": "rows*cols", "bias": "cols"}}


def test_rows_of_blocks_of_two_dimensions_in_arms_become_vectors() -> None:
    site = make(PLANE, PLANE_LAUNCH, **PLANE_ROWS)
    edited = found(site, "row_vectorize")
    assert len({device(e) for e in edited}) == len(edited) >= 2
    assert_equal(site, edited, [*SMALL, {"rows": 2, "cols": 640}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "threadIdx.x + threadIdx.y * blockDim.x",
            "threadIdx.y + threadIdx.x * blockDim.x",
        ),  # some threads do the same
        ("blockDim.x * blockDim.y", "blockDim.x"),
        ("    } else {\n        for (", "    }\n    {\n        for ("),  # both loops run
    ],
)
def test_rows_that_the_threads_share_in_another_way_stay(old: str, new: str) -> None:
    assert not propose(make(PLANE.replace(old, new), PLANE_LAUNCH, **PLANE_ROWS), "row_vectorize")
