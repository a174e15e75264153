import re
from typing import Any

import pytest

from engine.rewrite.site import Site
from engine.rules import proposals
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, machine_code, make, one, propose

ROWS = """
__device__ __forceinline__ float half_of(float v) { return 0.5f * v; }
__global__ void shift(float* x, const float* bias, int rows, int cols) {
    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
        int at = blockIdx.x * cols + i;
        // the bias is one for all rows
        x[at] = half_of(x[at]) + bias[i];
    }
}
"""
ROWS_LAUNCH = "    shift<<<rows, 64>>>(x, bias, rows, cols);"
ROWS_SIZES: dict[str, Any] = {
    "sizes": [{"rows": 4096, "cols": 1024}],
    "check": [{"rows": 1, "cols": 1}, {"rows": 3, "cols": 129}],
    "elements": {"x": "rows*cols", "bias": "cols"},
}
GRID = """
__global__ void add(float* out, const float* bias, size_t n, int width) {
    const size_t step = static_cast<size_t>(blockDim.x) * gridDim.x;
    for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        const int column = i % width;
        out[i] += bias[column];
    }
}
"""
GRID_LAUNCH = "    add<<<4, 64>>>(out, bias, n, width);"
GRID_SIZES: dict[str, Any] = {
    "sizes": [{"n": 1 << 24, "width": 128}],
    "check": [{"n": 1, "width": 1}, {"n": 1003, "width": 7}],
    "elements": {"out": "n", "bias": "width"},
}
PACKS = """
#include <cuda_fp16.h>
__global__ void add(__half* x, const __half* bias, int rows, int cols) {
    __half2* pairs = (__half2*)x;
    const __half2* other = reinterpret_cast<const __half2*>(bias);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
        pairs[blockIdx.x * cols + i] = __hadd2(pairs[blockIdx.x * cols + i], other[i]);
    }
}
"""
PACKS_LAUNCH = "    add<<<rows, 32>>>(x, bias, rows, cols);"


def rows(work: str = "x[at] = half_of(x[at]) + bias[i];", **changed: str) -> Site:
    source = ROWS.replace("x[at] = half_of(x[at]) + bias[i];", work)
    for old, new in changed.items():
        source = source.replace(old, new)
    return make(source, ROWS_LAUNCH, **ROWS_SIZES)


def test_the_loads_of_four_iterations_stand_before_their_stores() -> None:
    site = rows()
    edited = one(site, "batch_loads", factor=4)
    text = device(edited)
    assert "float x_value[4], bias_value[4];" in text
    assert "x_value[k] = x[at];" in text
    assert "x[at] = half_of(x_value[k]) + bias_value[k];" in text
    assert "x[at] = half_of(x[at]) + bias[i];" in text  # what is left over
    assert text.count("// the bias is one for all rows") == 2
    compiles(edited)
    sizes = [{"rows": 3, "cols": n} for n in (1, 63, 65, 257, 1000)]
    assert_equal(site, [after(site, p) for p in propose(site, "batch_loads")], sizes, tolerance=0, races=True)


def test_the_machine_code_has_the_loads_in_flight_together() -> None:
    """The compiler keeps the order of accesses to one array: it cannot tell that two rounds never meet."""

    def most(code: str) -> int:
        """Loads without a store between them, at most."""
        kinds = "".join(re.findall(r"\b(LDG|STG)\b", code)).replace("LDG", "l").replace("STG", "s")
        return max(map(len, kinds.split("s")))

    site = rows()
    assert most(machine_code(site)) <= 5  # x of one round, the bias of four
    assert most(machine_code(one(site, "batch_loads", factor=4))) >= 8


def test_a_sum_in_place_in_a_loop_of_the_grid() -> None:
    site = make(GRID, GRID_LAUNCH, **GRID_SIZES)
    edited = one(site, "batch_loads", factor=2)
    assert "out[i] = out_value[k] + bias_value[k];" in device(edited)
    assert "bias_value[k] = bias[column];" in device(edited)
    compiles(edited)
    sizes = [{"n": n, "width": 7} for n in (1, 255, 257, 1003, 4001)]
    assert_equal(site, [edited, one(site, "batch_loads", factor=8)], sizes, tolerance=0)


def test_packs_that_the_author_chose() -> None:
    sizes: dict[str, Any] = {"sizes": [{"rows": 4096, "cols": 1024}], "check": [{"rows": 2, "cols": 6}]}
    site = make(PACKS, PACKS_LAUNCH, **sizes, elements={"x": "2*rows*cols", "bias": "2*cols"})
    edited = one(site, "batch_loads", factor=4)
    assert "__half2 pairs_value[4], other_value[4];" in device(edited)
    compiles(edited)
    wide = one(site, "row_vectorize", width=4)
    both = one(wide, "batch_loads", factor=2)
    assert machine_code(both).count("LDG.E.128") >= 6
    assert_equal(site, [edited, wide, both], [{"rows": 2, "cols": n} for n in (2, 62, 130, 516)], tolerance=0)


def test_after_vectors_along_the_row() -> None:
    site = rows("x[blockIdx.x * cols + i] = half_of(x[blockIdx.x * cols + i]) + bias[i];")
    wide = one(site, "row_vectorize", width=4)
    edited = one(wide, "batch_loads", factor=2)  # not of what the vectors leave over
    assert not propose(edited, "batch_loads")
    assert machine_code(edited).count("LDG.E.128") >= 4
    assert_equal(site, [edited], [{"rows": 3, "cols": n} for n in (4, 7, 512, 1000)], tolerance=1e-6)


def test_two_rows_of_one_array_by_one_thread() -> None:
    """`cuda_vector_add_kernel` of exllamav2: a thread goes down a column, and rows are apart by a parameter."""
    source = """
__global__ void add(float* x, const float* v, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols) return;
    int end = min((int)(blockIdx.y + 1) * 16, rows);
    float s = v[c];
    for (int r = blockIdx.y * 16; r < end; ++r) {
        float* at = x + r * cols + c;
        *at = *at + s;
    }
}
"""
    launch = "    add<<<dim3((cols + 31) / 32, (rows + 15) / 16), 32>>>(x, v, rows, cols);"
    sizes: dict[str, Any] = {"sizes": [{"rows": 4096, "cols": 4096}], "check": [{"rows": 3, "cols": 5}]}
    site = make(source, launch, **sizes, elements={"x": "rows*cols", "v": "cols"})
    edited = one(site, "batch_loads", factor=4)
    compiles(edited)
    assert_equal(site, [edited], [{"rows": n, "cols": 33} for n in (1, 15, 16, 31, 53)], tolerance=0)


VIEW = """
class View {
public:
    float* data;
    const int height;
    const int width;
    __device__ View(float* data, const int height, const int width) : data(data), height(height), width(width) { }
    __device__ float item(int row, int column) const { return data[row * width + column]; }
    __device__ float* item_ptr(int row, int column) { return &data[row * width + column]; }
    __device__ int counted(int row) { ++row; return row; }
};
__global__ void add(float* x, float* v, int rows, int cols) {
    View all(x, rows, cols);
    View one(v, 1, cols);
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols) return;
    float s = one.item(0, c);
    for (int r = blockIdx.y; r < rows - 1; r += gridDim.y) {
        float* at = all.item_ptr(r + 1, c);
        *at = *at + s;
    }
}
"""


def test_through_methods_that_only_name_elements() -> None:
    """`MatrixView_half_rw` of exllamav2: its kernels name every element so, and no rule saw which."""
    launch = "    add<<<dim3((cols + 31) / 32, 2), 32>>>(x, v, rows, cols);"
    sizes: dict[str, Any] = {"sizes": [{"rows": 4096, "cols": 4096}], "check": [{"rows": 3, "cols": 5}]}
    site = make(VIEW, launch, **sizes, elements={"x": "rows*cols", "v": "cols"})
    first = proposals(site, only=["batch_loads"])[0]
    edited = after(site, first)
    assert "x[(r + 1) * cols + c] = x_value[k] + s;" in device(edited)
    assert "float s = v[0 * cols + c];" in device(edited)
    assert "View all" not in device(edited)
    compiles(edited)
    assert_equal(site, [edited], [{"rows": n, "cols": 33} for n in (1, 2, 9, 31)], tolerance=0)
    for old, new in (
        ("data[row * width", "data[++row * width"),
        ("int c = ", "cols += 0; int c = "),
        ("*at + s", "*at + all.counted(r)"),
    ):
        assert not proposals(
            make(VIEW.replace(old, new), launch, **sizes, elements={"x": "rows*cols", "v": "cols"}),
            only=["batch_loads"],
        )


@pytest.mark.parametrize(
    "work",
    [
        "x[at] = bias[i];",  # nothing that a store holds back
        "x[at + 1] = x[at] + bias[i];",  # the next round reads it
        "x[(int)bias[i]] += 1.0f;",  # two rounds may meet
        "x[blockIdx.x] += bias[i];",  # they do
        "x[at / 2] += bias[i];",
        "int c = i % 2 ? 0 : 1; x[at + c] = x[at + c] + bias[i];",
        "for (int c = 0; c < 2; ++c) x[at + c] = x[at + c] + bias[i];",
        "x[at] = 0.0f; x[at] = x[at] + bias[i];",  # stored before it is loaded
        "if (i > 3) x[at] += bias[i];",  # may lie beyond the end
        "if (x[at] > 0.0f) break; x[at] = bias[i];",
        "at += 1; x[at] = x[at] + bias[i];",
        "atomicAdd(&x[at], bias[i]);",
        "x[at] = x[at] + bias[i]; __syncwarp();",
        "float* p = x + at; p += 1; *p = *p + 1.0f;",
    ],
)
def test_nothing_where_rounds_may_meet_or_nothing_is_gained(work: str) -> None:
    assert not propose(rows(work), "batch_loads")


def test_nothing_where_the_other_array_may_be_the_same() -> None:
    launch = ROWS_LAUNCH.replace("(x, bias", "(x, x")
    edited = propose(make(ROWS, launch, **ROWS_SIZES), "batch_loads")
    assert all("bias_value" not in device(after(make(ROWS, launch, **ROWS_SIZES), p)) for p in edited)
