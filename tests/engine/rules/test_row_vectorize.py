from typing import Any

import pytest

from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, machine_code, make, one, propose

NORM = """
__global__ void center(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x;
    const float* in = x + row * cols;
    float* out = y + row * cols;
    float sum = 0.0f;
    for (int j = threadIdx.x; j < cols; j += blockDim.x) {
        sum += in[j] * in[j];
    }
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    for (int j = threadIdx.x; j < cols; j += blockDim.x) {
        out[j] = in[j] * sum;
    }
}
"""
LAUNCH = "    center<<<rows, 256>>>(x, y, rows, cols);"
SIZES = {
    "sizes": [{"rows": 4096, "cols": 4096}],
    "check": [{"rows": 3, "cols": 129}],
    "elements": {"x": "rows*cols", "y": "rows*cols"},
}


def test_all_loops_over_the_row_together() -> None:
    edited = one(make(NORM, LAUNCH, **SIZES), "row_vectorize", width=4)
    text = device(edited)
    assert text.count("j4 < whole / 4; j4 += blockDim.x") == 2
    assert text.count("const int whole = aligned ? cols / 4 * 4 : 0;") == 1
    assert "reinterpret_cast<FloatPack4*>(out)[j4] = out_pack;" in text
    assert "(reinterpret_cast<size_t>(in) | reinterpret_cast<size_t>(out)) % 16 == 0" in text
    assert "for (int j = whole + threadIdx.x; j < cols; j += blockDim.x) {" in text
    assert "LDG.E.128" in machine_code(edited)
    assert edited.configs == make(NORM, LAUNCH, **SIZES).configs
    compiles(edited)


def test_unroll_pragma_over_the_loop_goes() -> None:
    source = NORM.replace("    for (int j", "    #pragma unroll 4\n    for (int j", 1)
    edited = one(make(source, LAUNCH, **SIZES), "row_vectorize", width=4)
    assert "#pragma unroll 4" not in device(edited)
    compiles(edited)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("out[j] = in[j] * sum", "out[j + 1] = out[j] * sum"),  # another element of what is stored
        ("j += blockDim.x", "j += 2"),  # not how the block shares the row
        ("int j = threadIdx.x", "int j = threadIdx.x + 1"),
        ("out[j] = in[j] * sum;", "out[j] = in[j]; break;"),
        ("sum += in[j] * in[j];", "sum = in[j];"),  # the last one wins: depends on who takes which element
    ],
)
def test_nothing_for_other_loops(old: str, new: str) -> None:
    assert not propose(make(NORM.replace(old, new), LAUNCH, **SIZES), "row_vectorize")


def test_nothing_where_a_thread_reads_back_what_it_stored() -> None:
    source = NORM.replace("}\n}", "}\n    if (threadIdx.x < cols) out[threadIdx.x] += sum;\n}")
    assert not propose(make(source, LAUNCH, **SIZES), "row_vectorize")


def test_thread_that_walks_its_own_row() -> None:
    source = NORM.replace("threadIdx.x; j < cols; j += blockDim.x", "0; j < cols; ++j")
    edited = one(make(source, LAUNCH, **SIZES), "row_vectorize", width=2)
    assert "for (int j = whole; j < cols; ++j) {" in device(edited)
    compiles(edited)


FOUR = """
__global__ void scores(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x, col = 4 * threadIdx.x;
    const float* from = x + row * cols + col;
    float* to = y + row * cols + col;
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        if (col + j < cols) {
            to[j] = 2.0f * j;
        }
    }
    y[row] = sum;
}
"""


@pytest.mark.parametrize(
    "body",
    [
        "if (col + j < cols) { to[j] = 2.0f * j; }",  # beyond the row stand elements of other threads, or none at all
        "if (col + j >= cols) { continue; } to[j] = 2.0f * j;",
        "if (col + j < cols) { to[j] += 2.0f * j; }",
        "col + j < cols ? to[j] = 2.0f * j : sum += 1.0f;",
        "if (col + j < cols) { sum += from[j]; }",
        "sum += col + j < cols ? from[j] : 0.0f;",
        "if (col + j < cols && from[j] > 0.0f) { sum += 1.0f; }",
        "switch (col + j < cols) { case 1: sum += from[j]; }",
    ],
)
def test_nothing_where_not_every_iteration_reaches_the_element(body: str) -> None:
    source = FOUR.replace("        if (col + j < cols) {\n            to[j] = 2.0f * j;\n        }", f"        {body}")
    assert body in source
    assert not propose(make(source, "    scores<<<rows, 64>>>(x, y, rows, cols);", **SIZES), "row_vectorize")


def test_elements_reached_in_every_iteration_may_also_be_used_under_a_condition() -> None:
    source = NORM.replace("sum += in[j] * in[j];", "if (in[j] > 0.0f) { sum += in[j]; }")
    edited = one(make(source, LAUNCH, **SIZES), "row_vectorize", width=4)
    assert "if (in_pack.at[k] > 0.0f) { sum += in_pack.at[k]; }" in device(edited)
    # The loop before has read them all.
    source = NORM.replace("out[j] = in[j] * sum;", "out[j] = j < row ? in[j] : sum;")
    assert "out_pack.at[k] = j < row ? in_pack.at[k] : sum;" in device(
        one(make(source, LAUNCH, **SIZES), "row_vectorize", width=4)
    )


def test_elements_reached_under_a_condition_alone_stay_single_beside_vectors() -> None:
    source = NORM.replace("sum += in[j] * in[j];", "sum += 1.0f;").replace("in[j] * sum", "j < row ? in[j] : sum")
    text = device(one(make(source, LAUNCH, **SIZES), "row_vectorize", width=4))
    assert "out_pack.at[k] = j < row ? in[j] : sum;" in text
    assert "in_pack" not in text


BEST = """
__global__ void best(const float* x, float* y, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float most[2] = {-1e30f, -1e30f};
    for (int c = 0; c < cols; ++c) {
        float value = x[row * cols + c];
        for (int k = 0; k < 2; ++k) {
            if (value > most[k]) {
                float held = most[k];
                most[k] = value;
                value = held;
            }
        }
    }
    y[row] = most[0] + most[1];
}
"""
BEST_LAUNCH = "    best<<<(rows + 127) / 128, 128>>>(x, y, rows, cols);"


def test_a_thread_may_loop_over_each_element_of_its_row() -> None:
    sizes = [{"rows": 3, "cols": 129}, {"rows": 130, "cols": 64}]
    site = make(BEST, BEST_LAUNCH, **{**SIZES, "check": sizes, "elements": {"x": "rows*cols", "y": "rows"}})
    edited = one(site, "row_vectorize", width=4)
    assert "float value = x_pack.at[k2];" in device(edited)
    assert_equal(site, [edited], sizes, tolerance=0.0)
    compiles(edited)


def test_lanes_that_share_a_row_do_not() -> None:
    looped = NORM.replace("sum += in[j] * in[j];", "for (int k = 0; k < 2; ++k) sum += in[j] * in[j];")
    site = make(looped, LAUNCH, **SIZES)
    edited = [device(after(site, p)) for p in propose(site, "row_vectorize")]
    assert edited
    loop = looped[looped.index("    for (int j") : looped.index("    for (int j", looped.index("sum +="))]
    assert all(loop in text for text in edited)


PARTIAL = """
__global__ void partial(const float* x, float* y, int n) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int i = t; i < n; i += blockDim.x * gridDim.x) {
        sum += x[i];
    }
    y[t] = sum;
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[t] = sum;", "atomicAdd(&y[0], sum);"),
        (
            "y[t] = sum;",
            "for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);\n    y[t / 32] = sum;",
        ),
        ("        sum += x[i];", "        y[i] = x[i];"),
    ],
)
def test_each_threads_own_result_keeps_its_elements(old: str, new: str) -> None:
    launch = "    partial<<<32, 256>>>(x, y, n);"
    assert not propose(make(PARTIAL, launch, elements={"y": "n + 8192"}), "row_vectorize")
    together = PARTIAL.replace(old, new)
    assert propose(make(together.replace("    y[t] = sum;\n", ""), launch, elements={"y": "n + 8192"}), "row_vectorize")


HALVES = """
__global__ void halves(const float* x, float* y, int rows, int cols) {
    const int n = 4;
    const float* from = x + (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    float* to = y + blockIdx.x * blockDim.x * 8 + threadIdx.x * 4;
    for (int l = 0; l < n; ++l) {
        to[l] = from[l];
        to[l + 128] = -from[l];
    }
}
"""


def test_two_results_that_are_apart_by_more_than_the_loop() -> None:
    sizes = {
        "sizes": [{"rows": 4096, "cols": 4096}],
        "check": [{"rows": 2, "cols": 128}],
        "elements": {"x": "rows*cols", "y": "2*rows*cols"},
    }
    launch = "    halves<<<rows * cols / 128, 32>>>(x, y, rows, cols);"
    site = make(HALVES, launch, **sizes)
    edited = one(site, "row_vectorize", width=4)
    assert "reinterpret_cast<FloatPack4*>(to + 128)[l4] = to_pack2;" in device(edited)
    assert_equal(site, [edited], [{"rows": 2, "cols": 128}])
    for other in ("to[l + 3]", "to[l + rows]"):  # one may store what the other has stored
        assert not propose(make(HALVES.replace("to[l + 128]", other), launch, **sizes), "row_vectorize")


@pytest.mark.parametrize(("header", "pair"), [("cuda_fp16.h", "half2"), ("cuda_bf16.h", "__nv_bfloat162")])
def test_vectors_of_pairs_are_one_access(header: str, pair: str) -> None:
    """A pair of halves has a copy constructor of its own, so that a struct of four was copied by four accesses: nothing was gained."""
    source = f"""
#include <{header}>
__global__ void add({pair}* x, const {pair}* bias, int cols) {{
    for (int i = threadIdx.x; i < cols; i += blockDim.x) {{
        x[blockIdx.x * cols + i] = __hadd2(x[blockIdx.x * cols + i], bias[i]);
    }}
}}
"""
    sizes: dict[str, Any] = {"sizes": [{"rows": 4096, "cols": 512}], "check": [{"rows": 3, "cols": 9}]}
    elements = {"x": "rows*cols", "bias": "cols"}
    site = make(source, "    add<<<rows, 64>>>(x, bias, cols);", **sizes, elements=elements, host="int rows")
    for width, instruction in ((4, "128"), (2, "64")):
        edited = one(site, "row_vectorize", width=width)
        code = machine_code(edited)
        assert code.count(f"LDG.E.{instruction}") >= 2
        assert code.count(f"STG.E.{instruction}") >= 1
        assert "% " + str(4 * width) + " == 0" in device(edited)
        if pair == "half2":
            compiles(edited)
