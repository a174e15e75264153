from __future__ import annotations

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import compiles, device, machine_code, make, one, propose

LINE = """
#define RADIUS 4
__global__ void line(const float* x, const float* taps, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) {
        return;
    }
    float sum = 0.0f;
    #pragma unroll
    for (int k = -RADIUS; k <= RADIUS; ++k) {
        int j = i + k;
        if (j >= 0 && j < n) {
            sum += taps[k + RADIUS] * x[j];
        }
    }
    y[i] = sum;
}
"""
PLANE = """
constexpr int R = 2;
__global__ void plane(const float* x, const float* taps, float* y, int n, int m) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (col >= m || row >= n) return;
    float sum = 0.0f;
    for (int r = 0; r < 2 * R + 1; r++) {
        for (int s = 0; s < 2 * R + 1; s++) {
            int ty = row - R + r, tx = col + s - R;
            if (ty < 0 || ty >= n || tx < 0 || m <= tx) continue;
            sum += x[ty * m + tx] * taps[r * (2 * R + 1) + s];
        }
    }
    y[row * m + col] = sum;
}
"""
SIZES = ({"n": 1}, {"n": 5}, {"n": 300})


def line(source: str = LINE) -> Site:
    launch = "    line<<<(n + 63) / 64, 64>>>(x, taps, y, n);"
    return make(source, launch, elements={"taps": "9"}, check=SIZES)


def plane() -> Site:
    source = PLANE
    launch = "    plane<<<dim3((m + 15) / 16, (n + 7) / 8), dim3(16, 8)>>>(x, taps, y, n, m);"
    sizes = ({"n": 1, "m": 1}, {"n": 19, "m": 37})
    return make(
        source, launch, elements={"taps": "25", "x": "n*m", "y": "n*m"}, check=sizes, sizes=({"n": 64, "m": 64},)
    )


def test_a_copy_of_the_loop_without_tests() -> None:
    edited = one(line(), "interior")
    expected = """
    if (i - 4 >= 0 && i + 4 < n) {
        #pragma unroll
        for (int k = -RADIUS; k <= RADIUS; ++k) {
            int j = i + k;
            sum += taps[k + RADIUS] * x[j];
        }
    } else {
        #pragma unroll
        for (int k = -RADIUS; k <= RADIUS; ++k) {
            int j = i + k;
            if (j >= 0 && j < n) {"""
    assert expected in device(edited)
    compiles(edited)
    assert not propose(edited, "interior")


def test_same_results() -> None:
    site = line()
    assert_equal(site, [one(site, "interior")], SIZES, tolerance=0, races=True)


def test_two_loops_and_a_test_that_goes_on() -> None:
    site = plane()
    edited = one(site, "interior")
    assert "if (" in device(edited)
    (condition,) = (text.strip() for text in device(edited).splitlines() if ">= 0 &&" in text)
    assert condition == "if (row - 2 + 0 >= 0 && row - 2 + 4 < n && col + 0 - 2 >= 0 && m > col + 4 - 2) {"
    assert device(edited).count("continue;") == 1
    compiles(edited)
    assert_equal(site, [edited], [case.sizes for case in site.spec.check], tolerance=0, races=True)


def test_several_results_per_thread() -> None:
    """`unroll_jam` numbers them by an array, in which a counter does not enter linearly: each has tests of its own."""
    launch = "    line<<<(n + 63) / 64, 64>>>(x, taps, y, n);"
    site = make(LINE, launch, elements={"taps": "9"}, check=SIZES)
    jammed = one(site, "unroll_jam", factor=2)
    edited = one(jammed, "interior")
    assert "if (i[0] - 4 >= 0 && i[1] - 4 >= 0 && i[0] + 4 < n && i[1] + 4 < n) {" in device(edited)
    compiles(edited)
    assert_equal(site, [edited], SIZES, tolerance=0, races=True)


@pytest.mark.parametrize(
    "value",
    ["j >= 0 && j < n ? x[j] : 0.0f", "(0 <= i + k && i + k < n) ? x[i + k] : x[i]", "(j < n && -1 < j) ? x[j] : 1.0f"],
)
def test_values_under_a_condition(value: str) -> None:
    start, end = LINE.index("        if (j >= 0"), LINE.index("    }\n    y[i]")
    site = line(LINE[:start] + f"        sum += taps[k + RADIUS] * ({value});\n" + LINE[end:])
    edited = one(site, "interior")
    assert device(edited).count("?") == 1
    assert_equal(site, [edited], SIZES, tolerance=0)


NESTED = """
__global__ void nested(const int* x, const int* taps, int* y, int width, int n, int m) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int sum = 0, first = row - width / 2;
    for (int r = 0; r < width; r++)
        for (int s = 0; s < width; s++)
            if (first + r >= 0 && first + r < n) {
                if (col - width / 2 + s >= 0 && col - width / 2 + s < m)
                    sum += x[(first + r) * m + col - width / 2 + s] * taps[r * width + s];
            }
    if (row < n && col < m) y[row * m + col] = sum;
}
"""


def test_parameters_bound_the_loops_and_tests_are_nested() -> None:
    launch = "    nested<<<dim3((m + 15) / 16, (n + 7) / 8), dim3(16, 8)>>>(x, taps, y, width, n, m);"
    check = ({"width": 0, "n": 3, "m": 3}, {"width": 1, "n": 5, "m": 2}, {"width": 5, "n": 19, "m": 37})
    elements = {"taps": "width*width", "x": "n*m", "y": "n*m"}
    site = make(NESTED, launch, elements=elements, check=check[1:], sizes=({"width": 5, "n": 64, "m": 64},))
    edited = one(site, "interior")
    assert "if (first + 0 >= 0 &&" in device(edited)
    assert "first + (width - 1) < n &&" in device(edited)
    assert "col - width / 2 + (width - 1) < m" in device(edited)
    assert device(edited).count("if (") == 4  # the copy for the border has two
    compiles(edited)
    assert not propose(edited, "interior")
    assert_equal(site, [edited], check[1:], tolerance=0, races=True)


def test_loads_without_branches_between_them() -> None:
    code = machine_code(one(line(), "interior")).split("EXIT")[1]
    assert code.count("LDG") >= 18


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int j = i + k;", "unsigned int j = i + k;"),  # below zero is a large number
        ("int i = ", "unsigned int i = "),
        ("if (j >= 0 && j < n)", "if (j >= 0 && x[j] < 1.0f)"),  # of data
        ("if (j >= 0 && j < n)", "if (j >= 0 && j != n)"),
        ("if (j >= 0 && j < n)", "if (j >= 0 || j < n)"),
        ("if (j >= 0 && j < n)", "if (j * j < n)"),  # not linear, and of nine values
        ("k <= RADIUS", "k <= taps[0]"),  # nobody knows the last one
        ("k <= RADIUS", "k <= (unsigned int)n"),
        ("int k = -RADIUS; k <= RADIUS; ++k", "int k = -RADIUS; k <= RADIUS; k += 2"),
        ("int j = i + k;", "int j = i + k; i += j;"),
        ("int j = i + k;", "int j = i + k; __syncthreads();"),  # threads of both copies would wait for each other
        ("x[j];\n        }", "x[j];\n        } else { sum += 1.0f; }"),
    ],
)
def test_other_tests_stay(old: str, new: str) -> None:
    assert old in LINE
    assert not propose(line(LINE.replace(old, new)), "interior")
