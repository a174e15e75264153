"""Buffers of other people's kernels: their lengths, which are written, constants that host code fills."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from engine.spec.draft import OriginalRuns, draft
from tests.engine.spec.drafts import program, read_back, tried


def test_a_buffer_read_where_data_say_is_as_large_as_another(tmp_path: Path) -> None:
    made = tried(
        """
__global__ void k(const float* x, const float* cdf, const float* u, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { int at = 0; for (int j = 0; j < n; j++) { if (cdf[j] >= u[i]) { at = j; break; } } y[i] = x[at]; }
}
void run(const float* x, const float* c, const float* u, float* y, int n) { k<<<(n + 255) / 256, 256>>>(x, c, u, y, n); }
""",
        tmp_path,
    )
    assert not made.missing
    assert made.spec.argument("x").size == "n"
    assert "args.x" in next(line for line in made.text.splitlines() if "the end is not touched" in line)


def test_sums_of_pytorch_are_atomic() -> None:
    code = """
__global__ void k(const float* x, float* y, int n) { int i = threadIdx.x; if (i < n) gpuAtomicAdd(y, x[i]); }
void run(const float* x, float* y, int n) { k<<<1, n>>>(x, y, n); }
"""
    made = draft(program(code), "k")
    assert not made.spec.deterministic
    assert made.spec.argument("y").fill.kind == "constant"


IN_PLACE = """
__device__ void change(float* x, int i) {{ if (x[i] > 1e6f) x[i] = 0; }}
__global__ void k(float* x, int n) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) {{ {body} }} }}
void run(float* x, int n) {{ k<<<(n + 255) / 256, 256>>>(x, n); }}
"""


def test_a_store_that_no_trial_reaches_is_still_a_store(tmp_path: Path) -> None:
    made = tried(IN_PLACE.format(body="if (x[i] > 1e6f) x[i] *= 2;"), tmp_path)
    assert made.spec.argument("x").role == "inout"
    assert not [gap for gap in made.missing if gap.startswith("an output")]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("change(x, i);", "the kernel wrote to no buffer in any trial"),
        ("if (x[i] > 1e6f) __trap();", "the kernel writes to no buffer"),
    ],
)
def test_writes_in_functions_are_not_ruled_out_by_trials(body: str, told: str, tmp_path: Path) -> None:
    (gap,) = tried(IN_PLACE.format(body=body), tmp_path).missing
    assert gap == f"an output: {told} that it is given, so nothing can be compared"


def test_a_buffer_may_have_so_many_elements_for_each_block_of_whole_ones() -> None:
    code = """
__global__ void k(const void* x, float* y) { y[blockIdx.x * 64 + threadIdx.x] = ((const char*)x)[blockIdx.x * 18 + threadIdx.x % 18]; }
void run(const void* x, float* y, long n) { const int blocks = n / 256; k<<<blocks, 64>>>(x, y); }
"""

    def probe(sizes: Mapping[str, int]) -> dict[str, int]:
        blocks = sizes["n"] // 256
        return {"x": 18 * blocks, "y": 64 * blocks} if blocks else {}

    made = draft(program(code), "k", runs=OriginalRuns(probe=probe))
    assert not made.missing
    assert {a.name: (a.type, a.size) for a in made.spec.arguments} == {
        "x": ("uint8", "18*(n/256)"),
        "y": ("float", "64*(n/256)"),
    }


CONSTANTS = """
struct Shape { int rows; int cols; const float* bias; };
namespace img {
__constant__ int planes;
__constant__ float scale, taps[3], given[4] = {1, 2, 3, 4};
__constant__ int c_n;
__constant__ Shape shape;
__device__ void each(const float* x, float* y, int i) {
    for (int p = 0; p < planes; ++p) y[i + p * c_n] = scale * x[i + p * c_n] * given[p & 3] + taps[i % 3];
}
__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) each(x, y, i);
}
__global__ void by_shape(float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int r = 0; r < shape.rows; ++r) if (i < shape.cols) y[r * shape.cols + i] = shape.bias[i] + r;
}
void run(const float* x, float* y, int n, int count, float s, const float* t) {
    cudaMemcpyToSymbol(planes, &count, sizeof(int));
    cudaMemcpyToSymbol(c_n, &n, sizeof(int));
    k<<<(n + 255) / 256, 256>>>(x, y, n);
    by_shape<<<(n + 255) / 256, 256>>>(y);
}
}
"""


def test_constants_that_host_code_fills_are_inputs(tmp_path: Path) -> None:
    made = tried(CONSTANTS, tmp_path, "img::k")
    assert made.missing == ()
    spec = read_back(program(CONSTANTS), made, "comments")
    assert spec.arguments == made.spec.arguments
    planes, taps, scale, c_n = (spec.argument(n) for n in ("planes", "taps", "scale", "c_n"))
    # Sizes, by the names of what the host copies: `n` is the kernel's own.
    assert (planes.value, planes.symbol) == ("count", "img::planes")
    assert c_n.value == "n"
    assert (taps.role, taps.size) == ("in", "3")
    assert scale.value == "0.75"
    assert "given" not in made.text
    assert (spec.argument("x").size, spec.argument("y").size) == ("n*count", "n*count")
    assert 'args.taps = { fill = "normal" }  # assumed: host code fills it' in made.text


def test_the_fields_of_a_struct_in_constant_memory_are_inputs(tmp_path: Path) -> None:
    made = tried(CONSTANTS.replace("by_shape<<<(n + 255)", "by_shape<<<(shape_cols + 255)"), tmp_path, "img::by_shape")
    assert [gap for gap in made.missing if "launch" not in gap] == []
    sizes = {a.name: (a.role, a.size or a.value) for a in made.spec.arguments if "." in a.name}
    assert sizes["shape.rows"] == ("scalar", "rows")
    assert sizes["shape.bias"] == ("in", "cols")
    assert made.spec.argument("y").size == "rows*cols"


def test_a_constant_that_nothing_can_fill_is_named(tmp_path: Path) -> None:
    code = """
__constant__ float* table;
__global__ void k(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = table[i];
}
void run(float* y, int n) { k<<<(n + 255) / 256, 256>>>(y, n); }
"""
    (gap,) = draft(program(code), "k").missing
    assert "'table'" in gap
    assert "host code fills" in gap
    assert not gap.key


def test_a_trial_that_ends_early_says_where(tmp_path: Path) -> None:
    made = tried(
        """
__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[(long long)i << 40];
}
void run(const float* x, float* y, int n) { k<<<(n + 255) / 256, 256>>>(x, y, n); }
""",
        tmp_path,
    )
    said = " ".join(made.missing)
    assert "'x': trial runs end early: the kernel reads memory outside all arrays (line 4)" in said


def test_a_buffer_that_is_read_first_for_some_inputs_is_read_and_written(tmp_path: Path) -> None:
    made = tried(
        """
__global__ void k(float* scale, const float* found, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) scale[i] = found[i] > 0.0f ? 1.0f : (found[i] < 0.0f ? scale[i] * 2.0f : 3.0f);
}
void run(float* scale, const float* found, int n) { k<<<(n + 255) / 256, 256>>>(scale, found, n); }
""",
        tmp_path,
    )
    assert not made.missing
    assert made.spec.argument("scale").role == "inout"


BEYOND = """
__global__ void k(const float* x, float* y, int n, int c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > n) return;
    for (int j = 0; j < c; ++j) y[i * c + j] = x[i * c + j] + 1;
}
void run(const float* x, float* y, int n, int c) { k<<<(n + 255) / 256, 256>>>(x, y, n, c); }
"""


def test_a_guard_that_lets_one_thread_too_many_through_is_named(tmp_path: Path) -> None:
    (gap,) = tried(BEYOND, tmp_path).missing
    assert gap == (
        "the kernel goes beyond its buffers: 'i > n' (line 4) lets i == n through, and no allocation is seen with room for that;"
        " fix the kernel: write 'i >= n'"
    )
    assert not gap.key


def test_room_that_the_host_allocates_is_no_mistake(tmp_path: Path) -> None:
    roomy = BEYOND + "void make(float** x, int n, int c) { cudaMalloc(x, (n + 1) * c * sizeof(float)); }\n"
    made = tried(roomy, tmp_path)
    assert made.missing == ()
    assert made.spec.argument("y").size == "(n + 1)*c"


def test_a_guard_beside_a_tighter_one_is_no_mistake(tmp_path: Path) -> None:
    made = tried(BEYOND.replace("for (int j", "if (i < n) for (int j"), tmp_path)
    assert made.missing == ()
    assert made.spec.argument("y").size == "n*c"


def test_a_buffer_that_no_trial_touches_may_be_null(tmp_path: Path) -> None:
    code = """
template <bool SCALED> __global__ void k(const float* x, const float* scale, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = SCALED ? x[i] * scale[i + blockIdx.y] : -x[i];
}
void run(const float* x, float* y, int n) { k<false><<<(n + 255) / 256, 256>>>(x, SCALE, y, n); }
"""
    made = tried(code.replace("SCALE,", "nullptr,"), tmp_path)
    assert made.missing == ()
    scale = made.spec.argument("scale")
    assert (scale.size, scale.fill.kind) == ("1", "constant")
    assert "assumed: not given" in made.text
    # What another instance is launched with says nothing.
    other = code.replace("SCALE,", "x,").replace(
        "{ k<false>", "{ if (n < 0) k<true><<<1, 1>>>(x, nullptr, y, n); k<false>"
    )
    assert "the size of 'scale': no trial run touches it" in tried(other, tmp_path, "k<false>").missing


def test_outputs_are_looked_at_where_some_checks_go_beyond_a_buffer(tmp_path: Path) -> None:
    made = tried(
        """
__global__ void k(const int* ids, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, at;
    if (i >= n) return;
    at = ids[i];
    y[i] = logf(-1.f - fabsf(x[at])) + x[i];
}
void run(const int* ids, const float* x, float* y, int n) { k<<<(n + 255) / 256, 256>>>(ids, x, y, n); }
""",
        tmp_path,
    )
    (gap,) = made.missing
    assert gap.startswith("suitable inputs: with random ones most of 'y' is no number in the checks")


def test_an_element_that_a_function_takes_by_reference_may_be_written() -> None:
    """A kernel that leaves its results by references of a function "writes to no buffer"."""
    code = """
__device__ void split(float v, float &low, float& high, const float& kept) { low = v * kept; high = v; }
__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) split(x[i], y[i], y[i + n], x[0]);
}
void run(const float* x, float* y, int n) { k<<<(n + 255) / 256, 256>>>(x, y, n); }
"""
    made = draft(program(code), "k")
    assert [(a.name, a.role) for a in made.spec.arguments if a.role != "scalar"] == [("x", "in"), ("y", "inout")]
    assert not any("writes to no buffer" in gap for gap in made.missing)
