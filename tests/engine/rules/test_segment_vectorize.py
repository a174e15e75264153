"""Vectors in loops over segments: what matches, what must not, and that ends within a vector stay exact."""

from __future__ import annotations

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, machine_code, make, one, propose

SUM = """
__device__ float total(float value) {
    for (int o = 16; o > 0; o /= 2) value += __shfl_xor_sync(0xffffffffu, value, o);
    return value;
}
__global__ void sparse(const int* offsets, const float* values, const float* x, float* y, int rows) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (row < rows) {
        float sum = 0.0f;
        for (int e = offsets[row] + lane; e < offsets[row + 1]; e += 32) {
            sum += values[e] * x[e % 7];
        }
        sum = total(sum);
        if (lane == 0) {
            y[row] = sum;
        }
    }
}
"""
LAUNCH = "    sparse<<<(rows + 3) / 4, 128>>>(offsets, values, x, y, rows);"
# Segments of 0 to 210 elements that begin anywhere, which random offsets would not be.
ENDS = {"offsets[row] +": "row * row * 37 % 300 +", "offsets[row + 1]": "row * row * 37 % 300 + row * 31 % 211"}


def site_of(source: str = SUM, launch: str = LAUNCH) -> Site:
    elements = {"offsets": "rows + 1", "values": "512", "x": "7", "y": "rows"}
    return make(source, launch, sizes=[{"rows": 65536}], check=[{"rows": 3}, {"rows": 61}], elements=elements)


def computed(source: str = SUM) -> str:
    for old, new in ENDS.items():
        assert old in source
        source = source.replace(old, new)
    return source


def test_a_warp_on_a_row_of_a_sparse_matrix() -> None:
    edited = one(site_of(), "segment_vectorize", width=4)
    text = device(edited)
    assert "const int begin = offsets[row], end = offsets[row + 1];" in text
    assert "for (int e4 = (begin >> 2) + lane; e4 * 4 < end; e4 += 32) {" in text
    assert "if (aligned && e4 * 4 >= begin && e4 * 4 + 4 <= end) {" in text
    assert "sum += values_pack.at[k] * x[e % 7];" in text
    assert "LDG.E.128" in machine_code(edited)
    compiles(edited)
    assert not propose(edited, "segment_vectorize")
    assert not propose(edited, "row_vectorize")


@pytest.mark.parametrize("rows", [1, 9, 61])
def test_elements_outside_the_segment_are_left_alone(rows: int) -> None:
    site = site_of(computed())
    edited = [after(site, p) for p in propose(site, "segment_vectorize")]
    assert [p.parameters["width"] for p in propose(site, "segment_vectorize")] == [4, 2]
    assert_equal(site, edited, ({"rows": rows},))


def test_the_last_segment_ends_where_the_array_does() -> None:
    source = (
        computed().replace("row * row * 37 % 300 + row * 31 % 211", "509").replace("row * row * 37 % 300", "497 + row")
    )
    elements = {"offsets": "1", "values": "509", "x": "7", "y": "rows"}
    site = make(source, LAUNCH, check=[{"rows": 5}], sizes=[{"rows": 5}], elements=elements)
    edited = one(site, "segment_vectorize", width=4)
    assert "end = 509;" in device(edited)
    assert_equal(site, [edited], ({"rows": 5},))


STORED = """
__global__ void scale(const float* x, float* y, int rows, int len) {
    const int first = blockIdx.x * len;
    __shared__ float most[32];
    float own = 0.0f;
    for (int e = first + threadIdx.x; e < first + len; e += blockDim.x) {
        own = fmaxf(own, x[e]);
    }
    for (int o = 16; o > 0; o /= 2) own = fmaxf(own, __shfl_xor_sync(0xffffffffu, own, o));
    if (threadIdx.x % 32 == 0) most[threadIdx.x / 32] = own;
    __syncthreads();
    own = most[0];
    for (int w = 1; w < blockDim.x / 32; ++w) own = fmaxf(own, most[w]);
    for (int e = first + threadIdx.x; e < first + len; e += blockDim.x) {
        y[e] = x[e] * own;
    }
}
"""


def test_a_block_stores_several_loops_over_one_segment() -> None:
    elements = {"x": "rows*len", "y": "rows*len"}
    site = make(
        STORED, "    scale<<<rows, 64>>>(x, y, rows, len);", sizes=[{"rows": 512, "len": 1000}],
        check=[{"rows": 3, "len": 129}], elements=elements,
    )  # fmt: skip
    edited = one(site, "segment_vectorize", width=4)
    text = device(edited)
    assert text.count("const int begin = first, end = first + len;") == 1
    assert text.count("for (int e4 = (begin >> 2) + threadIdx.x; e4 * 4 < end; e4 += blockDim.x) {") == 2
    assert "reinterpret_cast<FloatPack4*>(y)[e4] = y_pack;" in text
    assert_equal(site, [edited], ({"rows": 3, "len": 129}, {"rows": 5, "len": 3}, {"rows": 2, "len": 64}), races=True)


ALONE = """
__global__ void sparse(const int* offsets, const int* columns, const float* values, const float* x, float* y, int rows) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < rows) {
        float sum = 0.0f;
        const int last = offsets[row + 1];
        for (int e = offsets[row]; e < last; ++e) {
            sum = sum * 0.5f + values[e] * x[columns[e] & 7];
        }
        y[row] = sum;
    }
}
"""


def test_a_thread_keeps_the_order_of_its_segment() -> None:
    """What it makes of each element depends on those before."""
    elements = {"offsets": "rows + 1", "columns": "512", "values": "512", "x": "8", "y": "rows"}
    launch = "    sparse<<<(rows + 63) / 64, 64>>>(offsets, columns, values, x, y, rows);"
    site = make(ALONE, launch, sizes=[{"rows": 65536}], check=[{"rows": 61}], elements=elements)
    edited = one(site, "segment_vectorize", width=4)
    assert "for (int e4 = begin >> 2; e4 * 4 < end; ++e4) {" in device(edited)
    assert not propose(edited, "segment_vectorize")
    known = {
        "offsets[row];": "row * row * 37 % 300 + 0 * offsets[row];",
        "offsets[row + 1]": "row * row * 37 % 300 + row * 31 % 211 + 0 * offsets[0]",
    }
    source = ALONE
    for old, new in known.items():
        assert old in source
        source = source.replace(old, new)
    site = make(source, launch, sizes=[{"rows": 65536}], check=[{"rows": 61}], elements=elements)
    edits = [after(site, p) for p in propose(site, "segment_vectorize")]
    assert len(edits) == 2
    assert_equal(site, edits, ({"rows": 61},), tolerance=0.0)


@pytest.mark.parametrize(
    ("old", "new"), [("e = offsets[row]", "e = row"), ("last = offsets[row + 1]", "last = row + 4")]
)
def test_nothing_for_a_thread_between_other_ends(old: str, new: str) -> None:
    assert old in ALONE
    elements = {"offsets": "rows + 1", "columns": "512", "values": "512", "x": "8", "y": "rows"}
    launch = "    sparse<<<(rows + 63) / 64, 64>>>(offsets, columns, values, x, y, rows);"
    site = make(ALONE.replace(old, new), launch, sizes=[{"rows": 65536}], check=[{"rows": 61}], elements=elements)
    assert not propose(site, "segment_vectorize")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("e += 32", "e += 64"),  # not how the warp shares the row
        ("offsets[row] + lane", "lane"),  # a row that begins at 0: `row_vectorize`
        ("values[e] *", "values[e + e] *"),
        ("sum += values[e] * x[e % 7];", "sum = values[e];"),  # the last one wins: depends on who takes which element
        ("sum += values[e] * x[e % 7];", "sum += values[e]; if (sum > 9.0f) break;"),
        ("sum += values[e] * x[e % 7];", "for (int k = 0; k < rows; ++k) sum += values[e];"),
    ],
)
def test_nothing_for_other_loops(old: str, new: str) -> None:
    assert old in SUM
    assert not propose(site_of(SUM.replace(old, new)), "segment_vectorize")


def test_nothing_where_one_buffer_may_be_two_arrays() -> None:
    launch = "    sparse<<<(rows + 3) / 4, 128>>>(offsets, y, x, y, rows);"
    assert not propose(site_of(launch=launch), "segment_vectorize")
