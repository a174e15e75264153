"""Comments about statements that a rewrite removed go with them; all others stay byte for byte."""

from __future__ import annotations

import pytest

from engine.cuda.stale_comments import without_stale_comments
from engine.model import Program

KERNEL = """\
// One row for each block.
__global__ void k(const float* x, float* y, int n) {
    // one thread per element
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;  // the tail
    // load
    float v = x[i];
    // clamp
    v = fmaxf(v, 0.0f);
    y[i] = v;  // store the result
}
"""


def cleaned(after: str, before: str = KERNEL) -> str:
    programs = [Program({"k.cu": text.encode()}, "k.cu") for text in (before, after)]
    return without_stale_comments(*programs).files["k.cu"].decode()


def edited(*changes: tuple[str, str]) -> str:
    text = KERNEL
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize(
    ("changes", "gone"),
    [
        ([("    float v = x[i];\n", ""), ("fmaxf(v,", "fmaxf(x[i],")], "    // load\n"),  # the next comment stays
        ([("float v = x[i];", "float4 quad = reinterpret_cast<const float4*>(x)[i];")], "    // load\n"),
        ([("blockIdx.x * blockDim.x + threadIdx.x", "blockIdx.x")], "    // one thread per element\n"),
        ([("y[i] = v;", "__stcs(reinterpret_cast<float4*>(y) + lane, quad);")], "  // store the result"),
    ],
)
def test_the_comment_of_a_removed_statement_goes(changes: list[tuple[str, str]], gone: str) -> None:
    after = edited(*changes)
    assert cleaned(after) == after.replace(gone, "")
    crlf = cleaned(after.replace("\n", "\r\n"), KERNEL.replace("\n", "\r\n"))
    assert crlf == after.replace(gone, "").replace("\n", "\r\n")


@pytest.mark.parametrize(
    "changes",
    [
        [],
        [("float v = x[i];", "float v = __ldg(&x[i]);")],
        [("float v = x[i];", "#pragma unroll\n    float v = x[i];")],
        [("const float* x, float* y, int n", "const float* __restrict__ x, float* __restrict__ y, int n")],
        [("v = fmaxf(v, 0.0f);", "v = fmaxf(v, 0.f);")],
        [("    y[i] = v;", "    // ours\n    y[i] = v;")],
        [("// clamp", "/* clamp\n       below */"), ("v = fmaxf(v, 0.0f);", "y[2 * i] = v * v;")],
        [("// clamp", "// optiml: clamp"), ("v = fmaxf(v, 0.0f);", "y[2 * i] = v * v;")],
    ],
)
def test_all_others_stay(changes: list[tuple[str, str]]) -> None:
    after = edited(*changes)
    assert cleaned(after) == after


def test_of_two_alike_that_of_the_removed_statement_goes() -> None:
    before = "__device__ void f() {\n    __syncthreads();  // tile is full\n    g();\n    __syncthreads();  // tile is read\n}\n"
    after = before.replace("    __syncthreads();  // tile is read\n", "    h(1, 2, 3);  // tile is read\n")
    assert cleaned(after, before) == after.replace("h(1, 2, 3);  // tile is read", "h(1, 2, 3);")


@pytest.mark.parametrize(
    "text", ["", "}}}}", "{ // a", "/* open", "// end", '"//" // x\n', "\\\n// x\\\ny\n", "a // b /* c\n"]
)
def test_odd_texts_are_no_trouble(text: str) -> None:
    for before, after in ((text, KERNEL), (KERNEL, text), (text, text + "x")):
        assert cleaned(after, before) == after
