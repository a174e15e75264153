"""Filtering rows by warps before insertion into sorted lists: what matches, what must not, and that the results stay the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal, results
from tests.engine.rules.workbench import after, compiles, device, host, machine_code, make, one, propose

SIZES: dict[str, Any] = {
    "sizes": [{"rows": 4096, "cols": 256}],
    "check": [{"rows": 1, "cols": 9}, {"rows": 7, "cols": 129}],
    "elements": {"x": "rows*cols", "values": "rows*8", "indices": "rows*8"},
}
LAUNCH = "    topk<<<(rows + 63) / 64, 64>>>(x, values, indices, rows, cols);"
# The moved flag keeps equals in their order.
FLAG = """
#define K 8
__global__ void topk(const float* x, float* values, int* indices, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) {
        return;
    }
    float best[K];
    int where[K];
    for (int k = 0; k < K; ++k) {
        best[k] = -3.4e38f;
        where[k] = -1;
    }
    #pragma unroll 4
    for (int c = 0; c < cols; ++c) {
        float value = x[row * cols + c];
        int index = c;
        bool moved = false;
        for (int k = 0; k < K; ++k) {
            if (moved || value > best[k]) {
                moved = true;
                float pushed = best[k];
                int from = where[k];
                best[k] = value;
                where[k] = index;
                value = pushed;
                index = from;
            }
        }
    }
    for (int k = 0; k < K; ++k) {
        values[row * K + k] = best[k];
        indices[row * K + k] = where[k];
    }
}
"""
# From the end of the list, of integers, below a pointer to the row; two lists' lengths, of which one is no power of two.
SHIFT = """
__global__ void topk(const int* __restrict__ x, int* values, int* indices, int rows, int cols) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        const int* line = x + row * cols;
        int kept[5], at[5];
        #pragma unroll
        for (int i = 0; i < 5; i++) { kept[i] = -100; at[i] = 0; }
        for (int c = 0; c < cols; c++) {
            const int v = line[c];
            if (v <= kept[4]) continue;
            int j = 4;
            while (j > 0 && kept[j - 1] < v) {
                kept[j] = kept[j - 1];
                at[j] = at[j - 1];
                --j;
            }
            kept[j] = v;
            at[j] = c + 1;
        }
        for (int i = 0; i < 5; i++) { values[row * 8 + i] = kept[i]; indices[row * 8 + i] = at[i]; }
    }
}
"""
# The nearest, whose distance has several loads; the first worse one gives way.
NEAREST = """
__global__ void topk(const float* x, const float* y, float* values, int* indices, int rows, int cols) {
    int q = threadIdx.x + blockIdx.x * blockDim.x;
    if (q >= rows) return;
    float near[4] = {3.0e38f, 3.0e38f, 3.0e38f, 3.0e38f};
    int who[4] = {-1, -1, -1, -1};
    for (int p = 0; p < cols; p++) {
        float dx = x[2 * q] - y[2 * p];
        float dy = x[2 * q + 1] - y[2 * p + 1];
        float d = dx * dx + dy * dy;
        for (int j = 0; j < 4; ++j) {
            if (d < near[j]) {
                for (int m = 3; m > j; --m) {
                    near[m] = near[m - 1];
                    who[m] = who[m - 1];
                }
                near[j] = d;
                who[j] = p;
                break;
            }
        }
    }
    for (int j = 0; j < 4; ++j) { values[q * 8 + j] = near[j]; indices[q * 8 + j] = who[j]; }
}
"""
# Each one displaced goes on to the next place; equals may change places.
SWAPS = """
__global__ void topk(const double* x, double* values, int rows, int cols) {
    unsigned int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    double best[3];
    for (int k = 0; k < 3; ++k) best[k] = -1.0e300;
    for (unsigned int c = 0; c < cols; ++c) {
        double v = x[row * cols + c];
        for (int k = 0; k < 3; ++k) {
            if (v > best[k]) { double t = best[k]; best[k] = v; v = t; }
        }
    }
    for (int k = 0; k < 3; ++k) values[row * 8 + k] = best[k];
}
"""
CASES: dict[str, tuple[str, str]] = {
    "flag": (FLAG, LAUNCH),
    "shift": (SHIFT, LAUNCH),
    "nearest": (NEAREST, LAUNCH.replace("x, v", "x, y, v")),
    "swaps": (SWAPS, LAUNCH.replace("values, indices", "values")),
}


def site_of(case: str, old: str = "", new: str = "", newline: str = "\n") -> Site:
    code, launch = CASES[case]
    assert old in code
    elements = SIZES["elements"]
    if case == "nearest":
        elements = elements | {"x": "2*rows", "y": "2*cols"}
    return make(code.replace(old, new), launch, newline=newline, **{**SIZES, "elements": elements})


def test_a_warp_reads_the_rows_of_its_threads() -> None:
    edited = one(site_of("flag"), "topk_filter", each=8, rows=2, ahead=0)
    code = device(edited)
    assert "marks[64][8 + 4];" in code
    assert "__shared__ float stored[64][64 + 4];" in code
    assert "float value = slot < 8 ? stored[threadIdx.x][slot * 8 + word] : x[row * cols + c];" in code
    assert "if (row < rows && c < cols) {\n                        float value = x[row * cols + c];" in code
    assert "values2[j][e] > floor && values2[j][e] >= best2[j]" in code
    assert (
        "    }\n    if (row >= rows) {\n        return;\n    }\n    for (int k = 0; k < K; ++k) {\n        values"
        in code
    )
    assert "#pragma unroll 4" not in code
    assert host(edited) == host(site_of("flag"))
    assert not propose(edited, "topk_filter")


def test_the_smallest_are_kept_by_minima() -> None:
    code = device(one(site_of("nearest"), "topk_filter", each=8, rows=2, ahead=0))
    assert "float dx = x[2 * q] - y[2 * p];" in code
    assert "= fminf(best[j2], values2[j2][e]);" in code
    assert "values2[j2][e] < floor && values2[j2][e] <= best[j2]" in code


def one_of(site: Site, **values: int) -> Site:
    """The site after the rule with figures that are no proposal's."""
    from engine.rules import families

    (family,) = [f for f in families(site) if f.rule == "topk_filter"]
    proposal = family.make(values)
    assert proposal is not None
    return after(site, proposal)


@pytest.mark.parametrize(("keep", "most"), [(0, 120), (1, 135)])
def test_a_row_takes_few_instructions(keep: int, most: int) -> None:
    """256 elements of a row take a warp 118 instructions, where insertion took each thread some 40 for each element."""
    text = machine_code(one_of(site_of("flag"), each=8, rows=2, ahead=0, keep=keep))
    loop = text[text.index("LDG") : text.rindex("STS")]
    assert len(re.findall(r"/\*[0-9a-f]{4}\*/", loop)) < 2 * most
    assert len(re.findall(r"\bLDG", loop)) == 16
    assert len(re.findall(r"\bSHFL", loop)) == 2 * 15
    assert not re.search(r"\b(?:LDL|STL)\b", text)


@pytest.mark.parametrize("case", CASES)
def test_the_results_stay_the_same(case: str) -> None:
    site = site_of(case, newline="\r\n" if case == "flag" else "\n")
    edited = [after(site, p) for p in propose(site, "topk_filter")]
    assert len(edited) == 6
    for candidate in edited:
        compiles(candidate)
    sizes = [{"rows": 1, "cols": 1}, {"rows": 33, "cols": 9}, {"rows": 70, "cols": 31}, {"rows": 40, "cols": 600}]
    assert_equal(site, edited, sizes, tolerance=0.0, races=True)


def test_infinities_and_nan_are_treated_alike() -> None:
    site = site_of("flag", "float value = x[row * cols + c];", "float value = sqrtf(x[row * cols + c]);")
    edited = one(site, "topk_filter", each=8, rows=4)
    for infinite in ("", "x"):
        before, now = (results(s, {"rows": 35, "cols": 300}, infinite=infinite) for s in (site, edited))
        assert all(np.array_equal(before[name], now[name], equal_nan=True) for name in before)


def test_the_next_rows_are_loaded_before_the_present_ones_are_filtered() -> None:
    edited = one(site_of("flag"), "topk_filter", each=8, rows=2, ahead=1, keep=1)
    code = device(edited)
    assert "float next[2][8];" in code
    assert "if (turn + 2 < 32) {" in code
    assert "const int row = first + turn + 2 + j;" in code
    text = machine_code(edited)
    assert not re.search(r"\b(?:LDL|STL)\b", text)
    loop = text[: text.index("VOTE")]
    assert loop.rindex("LDG") < loop.rindex("SHFL")


def test_figures_are_open_to_the_tuner() -> None:
    from engine.rules import families

    (family,) = [f for f in families(site_of("flag")) if f.rule == "topk_filter"]
    assert family.parameters == {"each": (1, 2, 4, 8, 16), "rows": (1, 2, 4, 8), "ahead": (0, 1), "keep": (0, 1)}
    assert family.make({"each": 1, "rows": 8, "ahead": 1, "keep": 1}) is not None


def test_what_is_kept_fits_into_shared_memory() -> None:
    from engine.rules import families

    wide = make(FLAG, LAUNCH.replace("63", "255").replace("64", "256"), **SIZES)
    (family,) = [f for f in families(wide) if f.rule == "topk_filter"]
    figures = {"rows": 1, "ahead": 0}
    assert [family.make({"each": each, **figures, "keep": 1}) is not None for each in (4, 8, 16)] == [
        True,
        False,
        False,
    ]
    assert family.make({"each": 8, **figures, "keep": 0}) is not None


def test_more_equals_than_the_list_holds_are_read_again() -> None:
    """All elements are equal, so that all threads have some that may enter."""
    site = site_of("flag", "float value = x[row * cols + c];", "float value = x[row * cols + c] * 0.0f + c / 300;")
    edited = [after(site, p) for p in propose(site, "topk_filter")]
    assert_equal(site, edited, ({"rows": 35, "cols": 300}, {"rows": 3, "cols": 600}), tolerance=0.0)


@pytest.mark.parametrize(
    ("case", "old", "new"),
    [
        ("flag", "value > best[k]", "value >= best[k]"),  # later equals come first: the last place changes for an equal
        ("flag", "value = pushed;", ""),  # not a list of the largest
        ("flag", "moved = true;", "moved = value > 0.0f;"),  # depends on more than the order
        ("flag", "best[k] = -3.4e38f;", "best[k] = x[k];"),  # starts with what is not known
        ("flag", "best[k] = -3.4e38f;", "best[k] = -k;"),
        ("flag", "where[k] = index;", "where[k] = where[k] + 1;"),
        ("flag", "int index = c;", "int index = c; if (value < 0.0f) { break; }"),
        ("flag", "int index = c;", "int index = c; if (value < 0.0f) { return; }"),
        ("flag", "int c = 0; c < cols", "int c = row; c < cols"),  # another range for each thread
        ("flag", "int c = 0; c < cols", "int c = 0; c < indices[0]"),
        ("flag", "int c = 0; c < cols; ++c", "int c = 0; c < cols; c += 2"),
        ("flag", "x[row * cols + c]", "x[row * cols + c] + best[0]"),  # an element that depends on the list
        ("flag", "#define K 8", "#define K 20"),  # more than half a warp
        ("flag", "int where[K];", "int where[K];\n    values[row] = 0.0f;"),  # a store before the loop
        ("flag", "int row = ", "__syncthreads();\n    int row = "),
        ("flag", "value = pushed;", "value = pushed; x[0] = value;"),
        ("shift", "if (v <= kept[4]) continue;", "if (v < kept[4]) continue;"),
        ("shift", "kept[j - 1] < v", "kept[j] < v"),
        ("nearest", "break;", ""),
    ],
)
def test_what_looks_alike_is_left_alone(case: str, old: str, new: str) -> None:
    assert not propose(site_of(case, old, new), "topk_filter")


def test_half_a_warp_is_left_alone() -> None:
    code = FLAG
    site = make(code, LAUNCH.replace("63", "47").replace("64", "48"), **SIZES)
    assert not propose(site, "topk_filter")
