"""Loops and elements in normal form: counted by hand, counted through the whole array, named by variables and pointers."""

import pytest

from engine.rules.normal_form.normal_form import normal_form
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_normal_form import ROWS, SMALL, found, plain
from tests.engine.rules.workbench import device, make

BY_HAND = """
__global__ void by_hand(const float* x, float* y, int n) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    int stride = gridDim.x * blockDim.x;
    while (i < n) {
        y[i] = 2.0f * x[i];
        i += stride;
    }
}
"""
BY_HAND_LAUNCH = "    by_hand<<<132, 128>>>(x, y, n);"


def test_while_loop_counts_as_a_for_loop() -> None:
    site = make(BY_HAND, BY_HAND_LAUNCH)
    assert "for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += stride) {" in plain(site)
    edited = found(site, "row_vectorize")
    assert edited
    assert_equal(site, edited, [{"n": 1}, {"n": 20003}])


def test_for_loop_without_a_variable_of_its_own() -> None:
    source = BY_HAND.replace("while (i < n) {", "for (; i < n; i += stride) {").replace("        i += stride;\n", "")
    site = make(source, BY_HAND_LAUNCH)
    assert "for (int i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += stride) {" in plain(site)
    assert_equal(site, found(site, "row_vectorize"), [{"n": 20003}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    }\n}", "    }\n    y[0] = i;\n}"),  # used behind the loop
        ("        y[i] =", "        if (x[i] < 0.0f) continue;\n        y[i] ="),  # which would not go on
        ("    while", "    stride = stride + i;\n    while"),  # used before it
        ("int i = threadIdx.x +", "float i = threadIdx.x +"),
    ],
)
def test_while_loop_stays_where_its_variable_is_more_than_a_counter(old: str, new: str) -> None:
    form = normal_form(make(BY_HAND.replace(old, new), BY_HAND_LAUNCH))
    assert form is None or "while (i < n)" in device(form.site)


SEGMENT = """
__global__ void segment(const float* x, const float* bias, float* y, int rows, int cols) {
    int first = blockIdx.x * cols;
    int start = first + threadIdx.x;
    int end = first + cols;
    for (int i = start; i < end; i += blockDim.x) {
        y[i] = x[i] + bias[i - first];
    }
}
"""
SEGMENT_LAUNCH = "    segment<<<rows, 64>>>(x, bias, y, rows, cols);"
SEGMENT_ROWS = {**ROWS, "elements": {"x": "rows*cols", "y": "rows*cols", "bias": "cols"}}


def test_loop_through_the_array_counts_from_its_segment() -> None:
    site = make(SEGMENT, SEGMENT_LAUNCH, **SEGMENT_ROWS)
    text = plain(site)
    assert "for (int j = threadIdx.x; j < cols; j += blockDim.x) {" in text
    assert "y[first + j] = x[first + j] + bias[j];" in text
    edited = found(site, "row_vectorize")
    assert edited
    assert_equal(site, edited, SMALL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("int end = first + cols;", "int end = rows * cols;"),  # the length would hang on the block
        ("int end = first + cols;", "int end = first - cols;"),
        ("y[i] = x[i]", "first += 0; y[i] = x[i]"),
    ],
)
def test_loop_without_a_segment_of_its_own_stays(old: str, new: str) -> None:
    form = normal_form(make(SEGMENT.replace(old, new), SEGMENT_LAUNCH, **SEGMENT_ROWS))
    assert form is None or "int i = start;" in device(form.site)


SUMMED = """
__global__ void summed(const float* x, const float* bias, float* y, int rows, int cols) {
    int offset = blockIdx.x * cols;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        int at = offset + c;
        y[at] = x[at] + bias[c] + WHERE;
    }
}
"""
SUMMED_LAUNCH = "    summed<<<rows, 64>>>(x, bias, y, rows, cols);"


def test_index_by_a_variable_of_the_loop_is_its_sum() -> None:
    site = make(SUMMED.replace("WHERE", "1.0f"), SUMMED_LAUNCH, **SEGMENT_ROWS)
    text = plain(site)
    assert "y[offset + c] = x[offset + c] + bias[c] + 1.0f;" in text
    assert "int at" not in text
    edited = found(site, "row_vectorize")
    assert edited
    assert_equal(site, edited, SMALL)


@pytest.mark.parametrize(
    ("where", "kept"),
    [("at", "int at = offset + c;"), ("x[at % 2]", "x[at % 2]")],
)
def test_variables_that_are_more_than_an_index_stay(where: str, kept: str) -> None:
    text = plain(make(SUMMED.replace("WHERE", where), SUMMED_LAUNCH, **SEGMENT_ROWS))
    assert kept in text
    assert "y[offset + c]" in text


def test_sums_with_what_changes_in_the_loop_stay() -> None:
    source = SUMMED.replace("WHERE", "1.0f").replace("int at = offset + c;", "int at = offset + c; offset += 0;")
    form = normal_form(make(source, SUMMED_LAUNCH, **SEGMENT_ROWS))
    assert form is None or "int at = offset + c;" in device(form.site)


POINTED = """
__global__ void pointed(const float* x, const float* bias, float* y, int rows, int cols) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows * cols) {
        int row = i / cols;
        int col = i % cols;
        float* to = y + row * cols + col;
        const float* from = &x[row * cols + col];
        const float* add = bias + col;
        *to = *from + *add;
    }
}
"""
POINTED_LAUNCH = "    pointed<<<(rows * cols + 127) / 128, 128>>>(x, bias, y, rows, cols);"


def test_elements_by_pointers_are_those_of_the_array() -> None:
    site = make(POINTED, POINTED_LAUNCH, **SEGMENT_ROWS)
    assert "y[row * cols + col] = x[row * cols + col] + bias[col];" in plain(site)
    edited = found(site, "vectorize")
    assert edited
    assert_equal(site, edited, SMALL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("*to = *from", "from += 0; *to = *from"),
        ("const float* from = &x", "const float* from = (const float*)&x"),
        ("*to = *from", "if (rows > 5) { col = col + 0; } *to = *from"),
        ("*from + *add", "from[0] + *add + (from == x ? 1.0f : 0.0f)"),
    ],
)
def test_pointers_that_are_more_than_an_element_stay(old: str, new: str) -> None:
    form = normal_form(make(POINTED.replace(old, new), POINTED_LAUNCH, **SEGMENT_ROWS))
    assert form is None or "const float* from" in device(form.site)


PREPARED = """
__global__ void prepared(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int at;
    float factor;
    at = n - 1 - i;  // from the end
    factor = 0.5f;
    if (at % 3 == 0) {
        factor = 2.0f;
    }
    if (i < n) {
        y[i] = factor * x[i] + x[at];
    }
}
"""
PREPARED_LAUNCH = "    prepared<<<(n + 127) / 128, 128>>>(x, y, n);"


@pytest.mark.parametrize("early", [False, True])
def test_what_is_worked_out_before_the_guard_stands_behind_it(early: bool) -> None:
    source = PREPARED
    if early:
        source = source.replace("    if (i < n) {\n", "    if (i >= n) return;\n").replace(
            "x[at];\n    }\n", "x[at];\n"
        )
    site = make(source, PREPARED_LAUNCH)
    text = plain(site)
    guard = "if (i >= n) return;" if early else "if (i < n) {"
    assert text.index(guard) < text.index("at = n - 1 - i;  // from the end") < text.index("factor = 0.5f;")
    edited = [*found(site, "vectorize"), *found(site, "coarsen")]
    assert len(edited) > 4
    assert_equal(site, edited, [{"n": 1003}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("factor = 0.5f;", "factor = 0.5f; y[0] = 0.0f;"),  # stores
        ("factor = 0.5f;", "factor = 0.5f; if (n < 0) return;"),
        ("if (i < n)", "if (at >= 0)"),  # the guard needs it
    ],
)
def test_what_does_more_than_compute_stays_before_the_guard(old: str, new: str) -> None:
    form = normal_form(make(PREPARED.replace(old, new), PREPARED_LAUNCH))
    text = device(form.site) if form is not None else PREPARED.replace(old, new)
    assert text.index("at = n - 1 - i;") < text.index("        y[i] = factor")
    assert text.index("factor = 0.5f;") < text.index("y[i] = factor")
    assert "    if (at >= 0) {\n        y[i]" in text or "at >= 0" not in new


WIDE = """
__global__ void wide(const float* x, float* y, long long n) {
    const long long thread = (long long)blockIdx.x * (long long)blockDim.x + (long long)threadIdx.x;
    const long long threads = (long long)blockDim.x * (long long)gridDim.x;
    for (long long i = thread; i < n; i += threads) {
        y[i] = 2.0f * x[i];
    }
}
"""


@pytest.mark.parametrize(
    "launch", ["    wide<<<132, 128>>>(x, y, n);", "    auto chosen = wide;\n    chosen<<<132, 128>>>(x, y, n);"]
)
def test_grid_stride_loop_in_64_bits_by_any_launch_that_can_be_read(launch: str) -> None:
    site = make(WIDE.replace("long long n", "int n"), launch)
    edited = found(site, "row_vectorize")
    assert edited
    assert_equal(site, edited, [{"n": 1}, {"n": 20003}])


def test_launch_through_a_pointer_that_passes_one_buffer_twice() -> None:
    launch = "    auto chosen = wide;\n    chosen<<<132, 128>>>(y, y, n);"
    assert not found(make(WIDE.replace("long long n", "int n"), launch), "row_vectorize")


def test_terms_that_bind_less_than_a_sum_keep_their_parentheses() -> None:
    source = SEGMENT.replace("int first = blockIdx.x * cols;", "int first = 0;").replace(
        "first + ", "(blockIdx.x << 6) + "
    )
    source = source.replace("+ cols;", "+ 64;").replace("bias[i - first]", "bias[threadIdx.x]")
    site = make(source, SEGMENT_LAUNCH, **{**SEGMENT_ROWS, "elements": {"x": "64*rows", "y": "64*rows", "bias": "64"}})
    text = plain(site)
    assert "for (int j = threadIdx.x; j < 64; j += blockDim.x) {" in text
    assert "y[(blockIdx.x << 6) + j] = x[(blockIdx.x << 6) + j]" in text
    pointed = POINTED.replace("bias + col;", "bias + (col & -1);").replace("+ *add", "+ add[0] + *add - *add")
    site = make(pointed, POINTED_LAUNCH, **SEGMENT_ROWS)
    assert "bias[(col & -1) + 0]" in plain(site)
