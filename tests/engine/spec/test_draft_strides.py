"""Strides, pitches and views of other people's kernels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.spec.draft import draft
from engine.spec.size_gaps import Reach, no_size
from engine.spec.strides import Numbers, strides
from tests.engine.spec.drafts import program, tried


def test_strides_in_bytes_by_ggml_s_names(tmp_path: Path) -> None:
    made = tried(
        """
__global__ void k(const float* x, float* dst, int nb00, int nb01, int nb02, int ne10, int ne11, int ne12, float sf) {
    int i = threadIdx.x + blockIdx.x * blockDim.x;
    if (i >= ne10 * ne11 * ne12) return;
    int i0 = i % ne10, i1 = i / ne10 % ne11, i2 = i / (ne10 * ne11);
    dst[i] = sf * *(const float*)((const char*)x + i2 * nb02 + i1 * nb01 + i0 * nb00);
}
void run(const float* x, float* dst, int nb00, int nb01, int nb02, int ne10, int ne11, int ne12, float sf) {
    k<<<(ne10 * ne11 * ne12 + 255) / 256, 256>>>(x, dst, nb00, nb01, nb02, ne10, ne11, ne12, sf);
}
""",
        tmp_path,
    )
    assert made.missing == ()
    assert [made.spec.argument(f"nb0{i}").value for i in range(3)] == ["4", "4*ne10", "4*ne10*ne11"]
    assert (made.spec.argument("x").size, made.spec.argument("dst").size) == ("ne10*ne11*ne12", "ne10*ne11*ne12")


def test_strides_in_elements_by_ggml_s_names() -> None:
    names = ["ne0", "ne1", "ne2", "s1", "s2", "ne01", "s01", "s02"]
    found = strides(Numbers(names, ["ne0", "ne1", "ne2", "ne01"]))
    assert found == {"s1": "ne0", "s2": "ne0*ne1", "s01": "ne0", "s02": "ne0*ne01"}
    assert strides(Numbers(["s1", "n"], ["n"])) == {}  # nothing says what it is a stride of
    assert strides(Numbers(["s0", "s1", "ne00", "ne01"], ["ne00", "ne01"])) == {}  # the shifts of a roll
    of_other = strides(Numbers(["s1", "s2", "ne00", "ne01"], ["ne00", "ne01"], scaling=["s1", "s2"]))
    assert of_other == {"s1": "ne00", "s2": "ne00*ne01"}
    every = [*(f"ne0{i}" for i in range(4)), *(f"s{i}" for i in ("01", "02", "03", 1, 2, 3))]
    assert strides(Numbers(every, every, scaling=every))["s3"] == "ne00*ne01*ne02"


@pytest.mark.parametrize(
    ("names", "sizes", "found"),
    [
        # Outermost first, by letters; the innermost is an element where its letter says so.
        ("stride_b stride_h stride_d", "b h d", {"stride_b": "h*d", "stride_h": "d", "stride_d": "1"}),
        ("k_stride_n k_stride_h", "nnz num_heads dim", {"k_stride_n": "num_heads*dim", "k_stride_h": "dim"}),
        ("k_stride_n k_stride_h", "nnz num_heads m", {
            "k_stride_n": "num_heads*max(nnz, max(num_heads, m))", "k_stride_h": "max(nnz, max(num_heads, m))"}),
        ("stride_b stride_h o_stride_b o_stride_h", "b h",
         {"stride_b": "h*max(b, h)", "stride_h": "max(b, h)", "o_stride_b": "h*max(b, h)", "o_stride_h": "max(b, h)"}),
        ("q_stride_n q_stride_h", "num_q_heads num_kv_heads", {
            "q_stride_n": "num_q_heads*max(num_q_heads, num_kv_heads)", "q_stride_h": "max(num_q_heads, num_kv_heads)"}),
        ("stride_in_n stride_in_h", "heads", {"stride_in_n": "heads*heads", "stride_in_h": "heads"}),
        ("row_stride col_stride", "rows cols", {"row_stride": "cols", "col_stride": "1"}),
        # By words, the innermost first.
        ("stride_row stride_channel stride_sample", "ncols nrows nchannels", {
            "stride_row": "ncols", "stride_channel": "nrows*ncols", "stride_sample": "nchannels*nrows*ncols"}),
        ("stride_row stride_channel_x", "n nrows", {"stride_row": "max(n, nrows)", "stride_channel_x": "nrows*max(n, nrows)"}),
        # A dimension that nothing counts is as long as the longest.
        ("a_stride_0 a_stride_1", "n", {"a_stride_0": "n*n", "a_stride_1": "n"}),
        # Single ones, in camel case as well.
        ("srcStep dstPitch ldb stride_dst", "n", {"srcStep": "n", "dstPitch": "n", "ldb": "n", "stride_dst": "n"}),
        # None of memory: of a loop, in time, of a window.
        ("start_step time_step steps step_size window_stride_x window_stride_y", "n", {}),
    ],
)  # fmt: skip
def test_strides_by_the_words_of_their_names(names: str, sizes: str, found: Mapping[str, str]) -> None:
    buffers = {"src": 1, "dst": 1}
    assert strides(Numbers(names.split(), sizes.split(), buffers)) == found


def test_pitches_count_bytes_where_the_kernel_does() -> None:
    given = Numbers(["pitch", "dst_step", "stride_src"], ["w"], {"src": 4, "dst": 8}, ["dst_step"], bytewise=True)
    assert strides(given) == {"pitch": "w*8", "dst_step": "w*8", "stride_src": "w"}


def test_rows_of_a_pitch_in_bytes(tmp_path: Path) -> None:
    made = tried(
        """
__global__ void k(const float* src, float* dst, int srcPitch, int dstPitch, int w, int h) {
    int x = threadIdx.x + blockIdx.x * blockDim.x, y = threadIdx.y + blockIdx.y * blockDim.y;
    if (x >= w || y >= h) return;
    *(float*)((char*)dst + y * dstPitch + x * 4) = 2 * *(const float*)((const char*)src + y * srcPitch + x * 4);
}
void run(const float* s, float* d, int sp, int dp, int w, int h) {
    k<<<dim3((w + 15) / 16, (h + 15) / 16), dim3(16, 16)>>>(s, d, sp, dp, w, h);
}
""",
        tmp_path,
    )
    assert made.missing == ()
    assert made.spec.argument("srcPitch").value == "w*4"
    assert (made.spec.argument("src").size, made.spec.argument("dst").size) == ("w*h", "w*h")


def test_a_reason_names_the_strides_that_trials_assumed() -> None:
    ended = "reads 16 bytes at x[1], an address that is not a multiple of 16 (line 4)"
    reach = Reach(tried=True, ended=ended, assumed=("alpha", "stride_x", "c.rows_step_"))
    assert no_size("x", reach, "", False) == (
        f"trial runs end early: the kernel {ended} where 'stride_x', 'c.rows_step_' are as assumed"
    )
    assert no_size("x", Reach(tried=True, ended=ended, assumed=("alpha",)), "", False).endswith("(line 4)")


VIEW = """
struct View { unsigned char* data; int pitch;
    __device__ unsigned char* row(int y) const { return data + y * pitch; }
    __device__ unsigned char& operator()(int y, int x) const { return data[y * pitch + x]; } };
__global__ void k(View x, View y, int w, int h, int across, int down, int side, int shift) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y * blockDim.y + threadIdx.y;
    if (i >= w || j >= h) return;
    int a = i / side, b = j / side;
    b = ::min(b, down - 1);
    y(j, i) = x(b * across + ::min(a, across - 1), i) + x.row(j)[i + shift];
}
"""


def test_what_clamps_an_index_or_scales_one_of_a_view_is_a_size() -> None:
    made = draft(program(VIEW), "k")
    assert {a.size_name for a in made.spec.arguments if a.role == "scalar" and not a.value} >= {
        "across",
        "down",
        "shift",
    }


def test_extents_of_the_result_by_ggml_s_names_are_those_of_the_first_source(tmp_path: Path) -> None:
    code = """
__global__ void k(const char* x, char* y, long ne0, long ne1, long nb01, long nb02) {
    const float* from = (const float*)(x + blockIdx.x * nb01 + blockIdx.y * nb02);
    float* to = (float*)(y + blockIdx.x * ne0 * 4 + blockIdx.y * ne1 * ne0 * 4);
    for (long i = threadIdx.x; i < ne0; i += blockDim.x) to[i] = 2 * from[i];
}
void run(const char* x, char* y, long ne0, long ne1, long ne01, long ne02, long nb01, long nb02) {
    dim3 blocks(ne01, ne02);
    k<<<blocks, 64>>>(x, y, ne0, ne1, nb01, nb02);
}
"""
    made = tried(code, tmp_path)
    assert made.spec.argument("ne1").value == "ne01"
    assert [made.spec.argument(n).value for n in ("nb01", "nb02")] == ["4*ne0", "4*ne0*ne01"]
    assert made.spec.argument("y").size == "4*ne0*ne01*ne02"


def test_what_moves_a_pointer_that_is_handed_on_is_a_size() -> None:
    code = """
__device__ void each(const float* x, float* y) { *y = 2 * *x; }
__global__ void k(const float* x, float* y, int n, int rows, int cols) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int r = i / cols, c = i % cols, at = c * rows + r;
    each(x + i, y + at);
}
void run(const float* x, float* y, int n, int rows, int cols) { k<<<(n + 255) / 256, 256>>>(x, y, n, rows, cols); }
"""
    assert {*draft(program(code), "k").spec.time[0].sizes} == {"n", "rows", "cols"}
