"""Tiles of a product that a mask empties: which masks are recognised, which are not, and that the results stay the same."""

from __future__ import annotations

import re

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, machine_code, make, one, propose

ELEMENTS = {"q": "n*dim", "k": "n*dim", "out": "n*n"}
LAUNCH = """
    dim3 block(16, 16);
    dim3 grid((n + 15) / 16, (n + 15) / 16);
    scores<<<grid, block>>>(q, k, out, n, dim, reach);
"""
SCORES = """
__global__ void scores(const float* q, const float* k, float* out, int n, int dim, int reach) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= n || col >= n) {
        return;
    }
    float sum = 0.0f;
    for (int d = 0; d < dim; ++d) {
        sum += q[row * dim + d] * k[col * dim + d];
    }
    USE
}
"""
BRANCH = """
__global__ void scores(const float* q, const float* k, float* out, int n, int dim, int reach) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < n && col < n) {
        float score = -10000.0f;
        if (CONDITION) {
            float sum = 0.0f;
            for (int d = 0; d < dim; ++d) {
                sum += q[row * dim + d] * k[col * dim + d];
            }
            score = sum * 0.125f;
        }
        out[row * n + col] = score;
    }
}
"""
ALWAYS = "out[row * n + col] = sum;"
# The code and the condition that a block of tiles has for its depth.
CASES = {
    "causal": (BRANCH.replace("CONDITION", "col <= row"), "first_col <= last_row"),
    "ahead": (BRANCH.replace("CONDITION", "!(row >= col)"), "first_row < last_col"),
    "window": (
        BRANCH.replace("CONDITION", "col <= row && row - col < reach"),
        "first_col <= last_row && first_row - last_col < reach",
    ),
    "offset": (BRANCH.replace("CONDITION", "row + reach > 2 * col + 3"), "last_row + reach > 2 * first_col + 3"),
    "guard": (
        SCORES.replace("row >= n ||", "row >= n || col > row + reach ||").replace("USE", ALWAYS),
        "first_col <= last_row + reach",
    ),
    "choice": (SCORES.replace("USE", "out[row * n + col] = col > row ? -1.0f : sum * 2.0f;"), "first_col <= last_row"),
    "flag": (
        SCORES.replace("USE", "out[row * n + col] = (reach && col > row) ? -1.0f : sum * 2.0f;"),
        "(!reach || first_col <= last_row)",
    ),
    "either": (BRANCH.replace("CONDITION", "col <= row || reach > 3"), "(reach > 3 || first_col <= last_row)"),
    "instead": (
        SCORES.replace("USE", "sum *= 0.5f;\n    // ahead\n    if (col > row) sum = -1e9f;\n    " + ALWAYS),
        "first_col <= last_row",
    ),
    "renamed": (
        SCORES.replace("USE", "float s = sum * 0.5f;\n    if (row < col) { s = -1e9f; }\n    out[row * n + col] = s;"),
        "last_row >= first_col",
    ),
}
TILINGS = (
    {"bm": 32, "tm": 2},
    {"bm": 16},
    {"bm": 64, "tm": 4, "buffers": 2},
    {"bm": 128, "copies": 1, "tensor": 0},
    {"bm": 64, "bn": 128, "tn": 4, "tensor": 1},
)


def site_of(code: str) -> Site:
    return make(
        code,
        LAUNCH,
        sizes=({"n": 1024, "dim": 64, "reach": 100},),
        check=({"n": 1, "dim": 1, "reach": 1}, {"n": 33, "dim": 7, "reach": 5}),
        elements=ELEMENTS,
    )


def depth(site: Site) -> str:
    found = re.search(r"const int depth = (.*) \? dim : 0;", device(one(site, "matmul_tile", bm=64, tm=4, buffers=2)))
    return found[1] if found else ""


@pytest.mark.parametrize("case", CASES)
def test_blocks_without_a_used_result_have_no_depth(case: str) -> None:
    code, expected = CASES[case]
    assert depth(site_of(code)) == expected


@pytest.mark.parametrize("case", CASES)
def test_the_results_stay_the_same(case: str) -> None:
    site = site_of(CASES[case][0])
    # What a mask empties does not depend on the tiling: every tiling meets two masks.
    wanted = TILINGS if case in ("window", "flag") else TILINGS[:1]
    edited = [after(site, p) for values in wanted for p in propose(site, "matmul_tile", **values)]
    assert len(edited) == len(wanted)
    for candidate in edited:
        compiles(candidate)
    sizes = [{"n": 1, "dim": 1, "reach": 1}, {"n": 33, "dim": 7, "reach": 0}, {"n": 150, "dim": 20, "reach": 11}]
    assert_equal(site, edited, sizes)


def test_no_races_with_an_empty_tile() -> None:
    site = site_of(CASES["causal"][0])
    assert_equal(site, [one(site, "matmul_tile", bm=32, tm=2)], [{"n": 70, "dim": 9, "reach": 0}], races=True)


def test_the_inner_loop_stays_as_it_is() -> None:
    """No barrier and no test is added to the loop over tiles: a block without results has none of its iterations."""
    plain = site_of(SCORES.replace("USE", ALWAYS))
    masked = site_of(CASES["causal"][0])
    codes = [
        machine_code(one(s, "matmul_tile", bm=128, bk=16, tm=8, tn=8, square=1, copies=0)) for s in (plain, masked)
    ]
    for instruction in ("FFMA", "BAR", "LDS", "LDG"):
        assert len({len(re.findall(rf"\b{instruction}\b", code)) for code in codes}) == 1, instruction


@pytest.mark.parametrize(
    "code",
    [
        SCORES.replace("USE", ALWAYS),
        SCORES.replace("USE", "out[row * n + col] = sum;\n    if (col <= row) { out[col * n + row] = sum; }"),
        SCORES.replace("USE", "out[row * n + col] = col <= row ? sum : sum * 2.0f;"),
        SCORES.replace("USE", "if (col <= row) { sum = 0.0f; } else { sum += 1.0f; }\n    " + ALWAYS),
        SCORES.replace("USE", "if (col > row) sum = sum - 1.0f;\n    " + ALWAYS),
        SCORES.replace("USE", "if (sum > 0.0f && col > row) sum = 0.0f;\n    " + ALWAYS),
        BRANCH.replace("CONDITION", "col <= row || q[0] > 0.0f"),
        BRANCH.replace("CONDITION", "col * row < reach"),
        BRANCH.replace("CONDITION", "col % 2 < row"),
        BRANCH.replace("CONDITION", "col != row"),
        BRANCH.replace("CONDITION", "row - col < reach").replace("int reach", "unsigned int reach"),
        BRANCH.replace("CONDITION", "row - col < reach").replace("int col =", "unsigned int col ="),
    ],
)
def test_what_no_corner_decides_is_computed(code: str) -> None:
    site = site_of(code)
    assert propose(site, "matmul_tile")
    assert depth(site) == ""
