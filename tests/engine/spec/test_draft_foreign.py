"""Drafts of what kernels of other repositories have in common, each in few lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from engine.arith import evaluate_int
from engine.cpu import CpuMachine
from engine.cpu.draft_probe import CpuProbe
from engine.errors import SourceError
from engine.model import LaunchConfig, Program
from engine.process.sandbox import sandbox
from engine.settings.folders import cache_folder
from engine.spec.draft import Draft, OriginalRuns, draft
from engine.spec.draft_trials import Trials, other_shapes
from engine.spec.kernel_spec import Case, Fill, KernelSpec, Step
from engine.spec.launch_config import evaluate
from engine.spec.size_gaps import Reach, no_size
from engine.spec.strides import Numbers, strides
from tests.engine.spec.drafts import program, read_back


def _tried(code: str, folder: Path, kernel: str = "k") -> Draft:
    made = draft(program(code), kernel)
    machine = CpuMachine(cache_folder() / "cpu", sandbox=sandbox(False), scratch=folder)
    probe = CpuProbe(program(code), made.spec, machine, folder)
    return draft(
        program(code),
        kernel,
        runs=OriginalRuns(probe=probe.touched, moved=probe.moved, roles=probe.roles, trials=probe),
    )


def test_a_shift_is_a_value_and_no_size(tmp_path: Path) -> None:
    made = _tried(
        """
__global__ void k(const float* x, float* y, int n, int s) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { int j = i - s; y[i] = x[j < 0 ? j + n : j]; }
}
void run(const float* x, float* y, int n, int s) { k<<<(n + 255) / 256, 256>>>(x, y, n, s); }
""",
        tmp_path,
    )
    assert not made.missing
    assert made.spec.argument("s").value == "1"
    assert made.spec.argument("x").size == "n"


def test_a_single_number_that_switches_the_kernel_off_is_zero(tmp_path: Path) -> None:
    made = _tried(
        """
__global__ void k(float* y, volatile int* noop, int n) {
    if (*noop) return;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = i;
}
void run(float* y, int* noop, int n) { k<<<(n + 255) / 256, 256>>>(y, noop, n); }
""",
        tmp_path,
    )
    assert not made.missing
    assert (made.spec.argument("noop").fill.kind, made.spec.argument("noop").fill.low) == ("constant", "0")


def test_a_buffer_read_where_data_say_is_as_large_as_another(tmp_path: Path) -> None:
    made = _tried(
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


def test_a_name_in_capitals_is_no_size_of_the_launch() -> None:
    code = "__global__ void k(float* y) { y[blockIdx.x] = 1; }\nvoid run(float* y, int r) { k<<<r / TILE, 32>>>(y); }\n"
    (gap,) = [m for m in draft(program(code), "k").missing if m.startswith("the launch")]
    assert "'TILE' is not known" in gap or "'r' is not known" in gap


def test_sums_of_pytorch_are_atomic() -> None:
    code = """
__global__ void k(const float* x, float* y, int n) { int i = threadIdx.x; if (i < n) gpuAtomicAdd(y, x[i]); }
void run(const float* x, float* y, int n) { k<<<1, n>>>(x, y, n); }
"""
    made = draft(program(code), "k")
    assert not made.spec.deterministic
    assert made.spec.argument("y").fill.kind == "constant"


ELEMENTWISE = """
__global__ void k(const float* x, float* y, int n) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = {value}; }}
void run(const float* x, float* y, int n) {{ k<<<(n + 255) / 256, 256>>>(x, y, n); }}
"""


def test_inputs_that_give_no_numbers_are_drawn_positive(tmp_path: Path) -> None:
    made = _tried(ELEMENTWISE.format(value="logf(x[i]) * sqrtf(x[(i * 7) % n]) * powf(x[(i * 5) % n], 0.3f)"), tmp_path)
    assert not made.missing
    assert (made.spec.argument("x").fill.kind, made.spec.argument("x").fill.low) == ("uniform", "0.1")
    assert "assumed: positive" in made.text


def test_no_inputs_that_give_numbers_are_asked_for(tmp_path: Path) -> None:
    made = _tried(ELEMENTWISE.format(value="logf(-1.f - fabsf(x[i]))"), tmp_path)
    (gap,) = made.missing
    assert gap == "suitable inputs: with random ones most of 'y' is no number in the checks; write a fill"
    assert gap.key == "args.x"


def test_outputs_of_one_value_are_no_draft(tmp_path: Path) -> None:
    (gap,) = _tried(ELEMENTWISE.format(value="x[i] > 1e6f ? 1.f : 0.f"), tmp_path).missing
    assert "every output is one value in all checks" in gap


IN_PLACE = """
__device__ void change(float* x, int i) {{ if (x[i] > 1e6f) x[i] = 0; }}
__global__ void k(float* x, int n) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) {{ {body} }} }}
void run(float* x, int n) {{ k<<<(n + 255) / 256, 256>>>(x, n); }}
"""


def test_a_store_that_no_trial_reaches_is_still_a_store(tmp_path: Path) -> None:
    made = _tried(IN_PLACE.format(body="if (x[i] > 1e6f) x[i] *= 2;"), tmp_path)
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
    (gap,) = _tried(IN_PLACE.format(body=body), tmp_path).missing
    assert gap == f"an output: {told} that it is given, so nothing can be compared"


def test_a_timing_case_is_sized_by_what_a_trial_accesses(tmp_path: Path) -> None:
    pairs = """
__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float s = 0;
    for (int j = 0; j < n; j++) s += x[j] * x[i];
    y[i] = s;
}
void run(const float* x, float* y, int n) { k<<<(n + 255) / 256, 256>>>(x, y, n); }
"""
    (time,) = _tried(pairs, tmp_path).spec.time
    assert 1 << 15 <= time.sizes["n"] <= 1 << 18  # 10^9 to 10^11 accesses, not 10^14
    (linear,) = _tried(ELEMENTWISE.format(value="x[i] + 1"), tmp_path).spec.time
    assert linear.sizes["n"] == 1 << 24


def test_checks_have_several_blocks_where_the_timing_case_has() -> None:
    code = """
__global__ void k(const float* x, float* y, int a, int b, int c, int d) {
    int i = blockIdx.x * 1024 + threadIdx.x;
    if (i < a && threadIdx.x < 1024) y[i] = x[i] * b * c * d;
}
void run(const float* x, float* y, int a, int b, int c, int d) { k<<<(a + 1023) / 1024, 1024>>>(x, y, a, b, c, d); }
"""
    spec = draft(program(code), "k").spec
    assert max(case.sizes["a"] for case in spec.check) > 1024


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


def test_a_parameter_that_is_a_class_is_asked_for() -> None:
    code = "template <typename T> __global__ void k(float* y) { y[threadIdx.x] = T::value; }\nvoid run(float* y) { k<<<1, 32>>>(y); }"
    missing = draft(program(code), "k").missing
    assert [gap for gap in missing if gap.key == "kernel"] == [
        "the template argument for 'typename T': write it in the kernel's name"
    ]


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
    made = _tried(CONSTANTS, tmp_path, "img::k")
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
    made = _tried(CONSTANTS.replace("by_shape<<<(n + 255)", "by_shape<<<(shape_cols + 255)"), tmp_path, "img::by_shape")
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
    made = _tried(
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


def test_inputs_that_belong_together_are_asked_for(tmp_path: Path) -> None:
    made = _tried(
        """
__global__ void k(const int* lengths, const int* starts, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int start = starts[i], word = start / 32, length = lengths[i];
    for (int j = 0; j < length / 2 + 1; ++j) atomicAdd(&y[word + j], x[i]);
}
void run(const int* l, const int* s, const float* x, float* y, int n) { k<<<(n + 255) / 256, 256>>>(l, s, x, y, n); }
""",
        tmp_path,
    )
    (gap,) = made.missing
    assert gap.startswith("suitable inputs: with random ones at each of the drafted sizes the kernel writes y[")
    assert "the contents of 'lengths', 'starts' may have to belong together" in gap
    assert gap.key == "args.lengths"


def test_a_parameter_pack_is_called_one() -> None:
    made = draft(
        program(
            "template <typename T, typename... Args> __global__ void k(T* y, int n, Args... args) { y[n] = f(args...); }"
        ),
        "k",
    )
    assert list(made.missing) == ["'args' is a parameter pack ('Args...'): a spec names single parameters"]


def test_template_arguments_come_from_what_the_host_template_is_instantiated_with() -> None:
    code = """
template <typename T, int N> __global__ void k(const T* x, T* y, int n) {
    int i = blockIdx.x * N + threadIdx.x;
    if (i < n) y[i] = x[i];
}
template <typename U, int TILE> void run(const U* x, U* y, int n) { k<U, TILE><<<(n + TILE - 1) / TILE, TILE>>>(x, y, n); }
"""
    explicit = draft(
        program(code + "template void run<unsigned char, 64>(const unsigned char*, unsigned char*, int);"), "k"
    )
    assert explicit.spec.steps[0].template_args == "unsigned char, 64"
    called = code + (
        "template <typename V> void both(const V* x, V* y, int n) { run<V, 128>(x, y, n); }\n"
        "void all(const short* x, short* y, int n) { both<short>(x, y, n); }\n"
    )
    assert draft(program(called), "k").spec.steps[0].template_args == "short, 128"
    assert draft(program(code), "k").spec.steps[0].template_args == "float, 256"  # nothing shows them: assumed


def test_shapes_in_which_a_fixed_block_races_with_itself_are_not_checked() -> None:
    class Narrow:
        """What a block of 4 x 8 threads does on rows of fewer elements: in few rows it goes beyond the buffer, in many it races."""

        def failing(self, spec: KernelSpec, cases: Sequence[Case]) -> dict[str, str]:
            return {c.name: "writes y[9]" for c in cases if c.sizes["cols"] < 8 and c.sizes["rows"] < 5}

        def racy(self, spec: KernelSpec, cases: Sequence[Case]) -> set[str]:
            return {c.name for c in cases if c.sizes["cols"] < 8}

    code = """
__global__ void k(const float* x, float* y, int rows, int cols) {
    if (threadIdx.x < rows && threadIdx.y < cols) y[threadIdx.x * cols + threadIdx.y] = x[threadIdx.x * cols + threadIdx.y];
}
void run(const float* x, float* y, int rows, int cols) { k<<<1, dim3(4, 8)>>>(x, y, rows, cols); }
"""
    spec = draft(program(code), "k").spec
    trials = cast(Trials, Narrow())
    failing = trials.failing(spec, spec.check)
    assert failing
    found = other_shapes(trials, spec, failing)
    assert found
    assert all(case.sizes["cols"] >= 8 for case in found)
    assert any(case.sizes["cols"] < 8 for case in spec.check if case.name not in failing)  # some only race


ROPE = """
__global__ void k(const float* x, const int* begin, float* y, int n, int d, int part) {
    int at = begin[blockIdx.y] + blockIdx.x;
    if (at >= begin[blockIdx.y + 1]) return;
    for (int j = threadIdx.x; j < part; j += blockDim.x) y[at * d + j] = 2 * x[at * d + j];
    for (int j = part + threadIdx.x; j < d; j += blockDim.x) y[at * d + j] = x[at * d + j];
}
void run(const float* x, const int* begin, float* y, int n, int max_len, int d, int part) {
    dim3 grid(max_len, n);
    k<<<grid, 32>>>(x, begin, y, n, d, part);
}
"""


def test_where_segments_begin_ascends_and_a_part_of_a_row_is_no_longer_than_the_row(tmp_path: Path) -> None:
    made = _tried(ROPE, tmp_path)
    assert not made.missing
    begin = made.spec.argument("begin")
    assert (begin.fill.kind, begin.fill.high, begin.size) == ("offsets", "max_len + 1", "n + 1")
    assert evaluate_int(made.spec.argument("x").size, {"n": 3, "max_len": 5, "d": 7, "part": 2}) == 105
    assert all(case.sizes["part"] <= case.sizes["d"] for case in made.spec.check)
    assert made.spec.argument("y").role == "inout"


def test_segments_that_nothing_bounds_have_a_size_of_their_own(tmp_path: Path) -> None:
    made = _tried(
        """
__global__ void k(const int* rows, const float* values, float* y, int n) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r < n) { float sum = 0; for (int e = rows[r]; e < rows[r + 1]; ++e) sum += values[e]; y[r] = sum; }
}
void run(const int* rows, const float* values, float* y, int n) { k<<<(n + 255) / 256, 256>>>(rows, values, y, n); }
""",
        tmp_path,
    )
    assert not made.missing
    assert (made.spec.argument("rows").fill.kind, made.spec.argument("rows").size) == ("offsets", "n + 1")
    assert evaluate_int(made.spec.argument("values").size, {"n": 3, "per_segment": 5}) == 15


def test_a_buffer_that_is_read_first_for_some_inputs_is_read_and_written(tmp_path: Path) -> None:
    made = _tried(
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


def test_a_number_that_the_launch_passes_is_the_value() -> None:
    code = """
__global__ void k(const float* x, float* y, int n, bool twice) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = twice ? 2 * x[i] : x[i];
}
void run(const float* x, float* y, int n) { k<<<(n + 255) / 256, 256>>>(x, y, n, false); }
"""
    made = draft(program(code), "k")
    assert made.spec.argument("twice").value == "0"
    assert "as k.cu:6 passes it" in made.text


def test_a_whole_number_is_never_a_fraction() -> None:
    code = "__global__ void k(float* y, const int steps) { y[0] = 1; }\nvoid run(float* y, int s) { k<<<1, 32>>>(y, s); }\n"
    assert draft(program(code), "k").spec.argument("steps").value == "1"


def test_a_capital_letter_that_the_host_is_told_is_a_size() -> None:
    code = """
__global__ void k(float* y, int C) { y[blockIdx.x * C + threadIdx.x] = 1; }
void run(float* y, int B, int T, int C) { k<<<B * T, 32>>>(y, C); }
"""
    assert {"B", "T"} <= draft(program(code), "k").spec.time[0].sizes.keys()


def test_a_launch_whose_block_a_function_fills_is_asked_for() -> None:
    code = """
void shape(int n, dim3& block, dim3& grid) { block.x = 64; grid.x = (n + 63) / 64; }
__global__ void k(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i * blockDim.y] = x[i];
}
void run(const float* x, float* y, int n) { dim3 block; dim3 grid; shape(n, block, grid); k<<<grid, block>>>(x, y, n); }
"""
    spec = replace(draft(program(code), "k").spec, steps=(Step("k", "", ("x", "y", "n")),))
    with pytest.raises(SourceError, match="'block' gets its value in a function that it is passed to"):
        evaluate(program(code), spec, 0, {"n": 1000})


BEYOND = """
__global__ void k(const float* x, float* y, int n, int c) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i > n) return;
    for (int j = 0; j < c; ++j) y[i * c + j] = x[i * c + j] + 1;
}
void run(const float* x, float* y, int n, int c) { k<<<(n + 255) / 256, 256>>>(x, y, n, c); }
"""


def test_a_guard_that_lets_one_thread_too_many_through_is_named(tmp_path: Path) -> None:
    (gap,) = _tried(BEYOND, tmp_path).missing
    assert gap == (
        "the kernel goes beyond its buffers: 'i > n' (line 4) lets i == n through, and no allocation is seen with room for that;"
        " fix the kernel: write 'i >= n'"
    )
    assert not gap.key


def test_room_that_the_host_allocates_is_no_mistake(tmp_path: Path) -> None:
    roomy = BEYOND + "void make(float** x, int n, int c) { cudaMalloc(x, (n + 1) * c * sizeof(float)); }\n"
    made = _tried(roomy, tmp_path)
    assert made.missing == ()
    assert made.spec.argument("y").size == "(n + 1)*c"


def test_a_guard_beside_a_tighter_one_is_no_mistake(tmp_path: Path) -> None:
    made = _tried(BEYOND.replace("for (int j", "if (i < n) for (int j"), tmp_path)
    assert made.missing == ()
    assert made.spec.argument("y").size == "n*c"


@pytest.mark.parametrize("use", ["y[i] = f(x[i]);", "y[i] = apply(f, x[i]);"])
def test_a_function_object_is_asked_for_and_those_of_the_program_are_named(use: str) -> None:
    code = f"""
namespace ops {{ struct Twice {{ __device__ float operator()(float x) const {{ return 2 * x; }} }}; struct Shape {{ int n; }}; }}
template <typename F> __device__ float apply(F f, float x) {{ return f(x); }}
template <typename T, typename MapFn> __global__ void k(const T* x, T* y, int n, MapFn f) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {use}
}}
void run(const float* x, float* y, int n) {{ k<<<(n + 255) / 256, 256>>>(x, y, n, [] __device__(float v) {{ return v; }}); }}
"""
    (gap,) = draft(program(code), "k").missing
    assert gap == "the template argument for 'typename MapFn': write it in the kernel's name, such as ops::Twice"
    assert gap.key == "kernel"


def test_the_values_of_an_enumeration_are_named() -> None:
    code = """
namespace a { enum class Mode { kOne, kTwo = 4, kThree }; }
template <a::Mode mode> __global__ void k(float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = mode == a::Mode::kOne;
}
void run(float* y, int n, int which) { dispatch(which, [&](auto m) { k<m.value><<<(n + 255) / 256, 256>>>(y, n); }); }
"""
    (gap,) = draft(program(code), "k").missing
    assert gap == (
        "the template argument for 'a::Mode mode': write it in the kernel's name, such as a::Mode::kOne, a::Mode::kTwo, a::Mode::kThree"
    )


def test_what_has_one_element_for_each_block_grows_with_the_device(tmp_path: Path) -> None:
    code = """
struct Prop { int maxThreadsPerMultiProcessor, multiProcessorCount; };
extern Prop prop;
__global__ void k(float* sums, const float* x, size_t n) {
    float sum = 0;
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) sum += x[i];
    __shared__ float all[256];
    all[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x == 0) { for (int i = 1; i < 256; ++i) sum += all[i]; sums[blockIdx.x] = sum; }
}
void run(float* sums, const float* x, size_t n) {
    const int blocks = prop.maxThreadsPerMultiProcessor * prop.multiProcessorCount / 256;
    k<<<blocks, 256>>>(sums, x, n);
}
"""
    made = _tried(code, tmp_path)
    assert made.missing == ()
    assert made.spec.argument("sums").size == "prop_maxThreadsPerMultiProcessor*prop_multiProcessorCount/256"
    assert "assumed: one element for each block" in made.text


def test_strides_in_bytes_by_ggml_s_names(tmp_path: Path) -> None:
    made = _tried(
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
    made = _tried(
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


ROWS = """
#define SWITCH(COND, NAME, ...) [&] { if (COND) { constexpr bool NAME = true; return __VA_ARGS__(); } \\
    else { constexpr bool NAME = false; return __VA_ARGS__(); } }()
struct Args { const float* x; const float* scale; const int* order; float* y; int rows, cols; float inv_cols; };
template <int WIDTH, bool SCALED, bool ORDERED, bool EVEN> __global__ void k(Args a) {
    int row = ORDERED ? a.order[blockIdx.x] : blockIdx.x;
    float sum = 0;
    for (int c = threadIdx.x; EVEN ? c < WIDTH : c < a.cols; c += blockDim.x) sum += a.x[row * a.cols + c];
    for (int c = threadIdx.x; EVEN ? c < WIDTH : c < a.cols; c += blockDim.x)
        a.y[row * a.cols + c] = a.x[row * a.cols + c] - sum * a.inv_cols * (SCALED ? a.scale[c] : 1.f);
}
template <int WIDTH> void run(Args a) {
    bool ordered = a.order != nullptr;
    SWITCH(a.scale != nullptr, Scaled, [&] { SWITCH(ordered, Ordered, [&] { SWITCH(a.cols == WIDTH, Even, [&] {
        k<WIDTH, Scaled, Ordered, Even><<<a.rows, 32>>>(a);
    }); }); });
}
template void run<96>(Args);
"""


def test_an_instance_is_that_of_the_conditions_around_the_launch(tmp_path: Path) -> None:
    """Optional buffers are not given, and what the host compares with a constant has that value."""
    made = _tried(ROWS, tmp_path)
    assert not made.missing
    assert made.spec.steps[0].template_args == "96, false, false, true"
    assert made.spec.argument("a.cols").value == "96"
    assert "the launch's condition 'a.cols == 96'" in made.text
    assert made.spec.argument("a.inv_cols").value == "1.0/96"
    assert made.spec.argument("a.x").size == "96*rows"
    assert {a.name for a in made.spec.arguments if a.role != "scalar"} == {"a.x", "a.y"}
    assert list(made.spec.check[0].sizes) == ["rows"]


@pytest.mark.parametrize(
    "around",
    [
        "if (n == 64) { LAUNCH }", "if (n == 64 && m > 3) LAUNCH", "switch (n) { case 32 * 2: LAUNCH break; }",
        "if (n > 100) { return; } else if (64 == n) { LAUNCH }", "const int W = 64; if (n == W) LAUNCH",
    ],
)  # fmt: skip
def test_what_a_launch_is_made_for_is_no_size(around: str) -> None:
    code = f"""
template <int N> __global__ void k(const float* x, float* y, int n, int m) {{
    for (int i = threadIdx.x; i < N; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i];
}}
void run(const float* x, float* y, int n, int m) {{ {around.replace("LAUNCH", "k<64><<<m, 32>>>(x, y, n, m);")} }}
"""
    made = draft(program(code), "k")
    assert made.spec.argument("n").value == "64"
    assert list(made.spec.check[0].sizes) == ["m"]


@pytest.mark.parametrize(
    "around", ["if (n == 64) return; LAUNCH", "if (n == 64) m = 3; else LAUNCH", "if (n == p) LAUNCH"]
)
def test_a_condition_that_gives_no_value_leaves_a_size(around: str) -> None:
    code = f"""
template <int N> __global__ void k(const float* x, float* y, int n, int m) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = x[i];
}}
void run(const float* x, float* y, int n, int m, int p) {{ {around.replace("LAUNCH", "k<64><<<m, 32>>>(x, y, n, m);")} }}
"""
    made = draft(program(code), "k")
    assert made.spec.argument("n").value in ("", "n")


def test_few_blocks_go_around_many_rows() -> None:
    code = """
__global__ void k(const float* x, float* y, int blocks, int rows, int cols) {
    for (int row = blockIdx.x; row < rows; row += blocks)
        for (int c = threadIdx.x; c < cols; c += blockDim.x) y[row * cols + c] = x[row * cols + c];
}
void run(const float* x, float* y, int blocks, int rows, int cols) { k<<<blocks, 64>>>(x, y, blocks, rows, cols); }
"""
    made = draft(program(code), "k")
    assert made.spec.argument("x").size == "rows*cols"
    assert [case.sizes["blocks"] for case in made.spec.check] == [1, 1, 2, 3]
    assert made.spec.check[1].sizes["rows"] > 6


OPERATORS = """
static __device__ float twice(float x) {{ return 2 * x; }}
template <float (*op)(float), typename T, int N> __global__ void k(const T* x, T* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) for (int j = 0; j < N; j++) y[i * N + j] = op(x[i * N + j]);
}}
#define EACH_WIDTH(w, W, ...) switch (w) {{ \\
    case 4: {{ constexpr int W = 4; __VA_ARGS__; break; }} case 2: {{ constexpr int W = 2; __VA_ARGS__; }} }}
template <float (*op)(float), typename T> void run(const T* x, T* y, int n, int w) {{
    EACH_WIDTH(w, WIDTH, {{ k<op, T, WIDTH><<<(n + 255) / 256, 256>>>(x, y, n); }});
}}
{caller}
"""


@pytest.mark.parametrize(
    ("caller", "chosen", "gaps"),
    [
        ("void f(double* x, int n) { run<twice, double>(x, x, n, 4); }", "twice, double, 4", 0),
        ("template <class T> void f(T* x, int n) { run<twice>(x, x, n, 4); }", "twice, float, 4", 0),
        ("", "?, float, 4", 1),
    ],
)
def test_what_a_launch_says_of_some_template_arguments_is_taken(caller: str, chosen: str, gaps: int) -> None:
    made = draft(program(OPERATORS.format(caller=caller)), "k")
    assert made.spec.steps[0].template_args == chosen
    assert len([gap for gap in made.missing if "template argument" in gap]) == gaps


def test_a_parameter_of_type_void_is_none() -> None:
    made = draft(
        program("__device__ int seen;\n__global__ void k(void) { seen = 1; }\nvoid run() { k<<<1, 1>>>(); }\n"), "k"
    )
    assert not made.spec.arguments
    assert [str(gap) for gap in made.missing] == [
        "an output: the kernel writes to no buffer that it is given, so nothing can be compared"
    ]


@pytest.mark.parametrize(
    ("declared", "kind", "value"),
    [
        ("enum mode { MAX = 3, MEAN };", "mode", "3"),
        ("enum mode { MAX, MEAN };", "const enum mode", "0"),
        ("enum class mode : unsigned char { MAX, MEAN };", "mode", "0"),
        ("typedef enum { MAX = -1, MEAN } mode;", "mode", "-1"),
        ("enum mode { MAX = 1 << 4, MEAN };", "mode", "16"),
    ],
)
def test_an_enumeration_is_no_size(declared: str, kind: str, value: str) -> None:
    code = f"""
{declared}
__global__ void k(const float* x, float* y, int n, {kind} op) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && (int)op < 5) y[i] = (int)op == 0 ? x[i] : 2 * x[i];
}}
void run(const float* x, float* y, int n, {kind} op) {{ k<<<(n + 255) / 256, 256>>>(x, y, n, op); }}
"""
    made = draft(program(code), "k")
    assert not made.missing
    assert made.spec.argument("op").value == value
    assert made.spec.argument("op").type == ("uint8" if "char" in declared else "int32")
    assert "assumed: MAX" in made.text


def test_classes_of_a_library_that_has_a_stand_in_may_be_template_arguments() -> None:
    code = """
#include "opencv2/core/cuda_types.hpp"
using namespace cv::cuda;
template <typename T, class Image> __global__ void k(int cols, int rows, const Image from, PtrStep<T> to) {
    int i = blockIdx.y * blockDim.y + threadIdx.y, j = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows && j < cols) to(i, j) = from(i, j);
}
template <typename T> struct Run {
    static void call(PtrStepSz<T> x, PtrStepSz<T> y) { k<T, PtrStep<T> ><<<dim3(x.cols / 8, x.rows), 8>>>(x.cols, x.rows, x, y); }
};
template <typename T> void run(PtrStepSzb x, PtrStepSzb y) { Run<T>::call(PtrStepSz<T>(x), PtrStepSz<T>(y)); }
template void run<uchar3>(PtrStepSzb x, PtrStepSzb y);
"""
    made = draft(program(code), "k")
    assert made.spec.steps[0].template_args == "uchar3, cv::cuda::PtrStep<uchar3>"
    assert not [gap for gap in made.missing if "template argument" in gap]


def test_a_type_is_one_for_which_what_the_kernel_uses_is_defined() -> None:
    code = """
template <typename T> struct Vec;
template <> struct Vec<__nv_bfloat16> { static constexpr int n = 2; };
template <> struct Vec<half> { static constexpr int n = 2; };
template <typename T> struct Any { static constexpr int n = 1; };
template <typename T, typename U> __global__ void k(const T* x, U* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = float(x[i]) * Vec<T>::n * Any<U>::n;
}
template <typename T, typename U> void run(const T* x, U* y, int n) { k<T, U><<<(n + 255) / 256, 256>>>(x, y, n); }
"""
    made = draft(program(code), "k")
    assert made.spec.steps[0].template_args == "__nv_bfloat16, float"


def test_a_reason_names_the_strides_that_trials_assumed() -> None:
    ended = "reads 16 bytes at x[1], an address that is not a multiple of 16 (line 4)"
    reach = Reach(tried=True, ended=ended, assumed=("alpha", "stride_x", "c.rows_step_"))
    assert no_size("x", reach, "", False) == (
        f"trial runs end early: the kernel {ended} where 'stride_x', 'c.rows_step_' are as assumed"
    )
    assert no_size("x", Reach(tried=True, ended=ended, assumed=("alpha",)), "", False).endswith("(line 4)")


def test_no_case_is_given_twice_where_the_host_settles_every_size(tmp_path: Path) -> None:
    made = _tried(
        """
__global__ void k(const int* x, int* y, int size) { int t = threadIdx.x; y[t] = x[t] + size; }
void run(const int* x, int* y) { int size = 256; k<<<1, size>>>(x, y, size); }
""",
        tmp_path,
    )
    assert not made.missing
    assert len(made.spec.check) == len({case.name for case in made.spec.check})


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


def test_a_buffer_that_no_trial_touches_may_be_null(tmp_path: Path) -> None:
    code = """
template <bool SCALED> __global__ void k(const float* x, const float* scale, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = SCALED ? x[i] * scale[i + blockIdx.y] : -x[i];
}
void run(const float* x, float* y, int n) { k<false><<<(n + 255) / 256, 256>>>(x, SCALE, y, n); }
"""
    made = _tried(code.replace("SCALE,", "nullptr,"), tmp_path)
    assert made.missing == ()
    scale = made.spec.argument("scale")
    assert (scale.size, scale.fill.kind) == ("1", "constant")
    assert "assumed: not given" in made.text
    # What another instance is launched with says nothing.
    other = code.replace("SCALE,", "x,").replace(
        "{ k<false>", "{ if (n < 0) k<true><<<1, 1>>>(x, nullptr, y, n); k<false>"
    )
    assert "the size of 'scale': no trial run touches it" in _tried(other, tmp_path, "k<false>").missing


def test_a_template_s_own_names_are_no_types_of_the_program(tmp_path: Path) -> None:
    code = """
struct Other { using IdType = int; };
template <int VEC, typename T, typename IdType> __global__ void k(const T* x, const IdType* ids, T* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[ids[i]];
}
template <typename T, typename IdType> void run(const T* x, const IdType* ids, T* y, int n) {
    k<VEC_OF(T), T, IdType><<<(n + 255) / 256, 256>>>(x, ids, y, n);
}
"""
    assert draft(program(code), "k").spec.expressions == ("k<4, float, int>",)


def test_a_host_s_own_type_is_that_of_what_it_passes(tmp_path: Path) -> None:
    code = """
template <typename T, typename U> __global__ void k(const T* x, U* y, int n) {
    extern __shared__ char s[];
    for (int i = blockIdx.y; i < n; i += gridDim.y) y[i] = x[i];
}
template <typename In, typename Out> void run(const In* a, Out* b, int n) {
    const unsigned long most = at::cuda::getCurrentDeviceProperties()->maxGridSize[1];
    k<<<dim3(1, std::min((unsigned long)n, most)), 32, 4 * sizeof(Out)>>>(a, b, n);
}
"""
    made = _tried(code, tmp_path)
    assert made.missing == ()
    assert evaluate(program(code), made.spec, 0, {"n": 100_000}) == LaunchConfig((1, 65535, 1), (32, 1, 1), 16)


VOID = """
template <typename E, int N> struct Vec {
    E data[N];
    __device__ void load(const void* p, int at) { for (int i = 0; i < N; i++) data[i] = static_cast<const E*>(p)[at * N + i]; }
};
template <typename In> struct Traits { using in_t = In; using Pack = Vec<in_t, 2>; };
struct Args { const void* x; void* sum; void* raw; int n; };
template <typename T> __global__ void k(Args a, const void* scale, void* y) {
    using Pack = typename T::Pack;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    Pack p;
    p.load(a.x, i);
    float* sum = static_cast<float*>(a.sum);
    sum[i] = p.data[0] + p.data[1];
    ((half2*)y)[i] = __floats2half2_rn(p.data[0] * *(const float*)scale, p.data[1]);
    ((char*)a.raw)[i] = sizeof(*(float*)a.raw);
}
void run(Args a, const void* s, void* y) { k<Traits<float>><<<(a.n + 255) / 256, 256>>>(a, s, y); }
"""


def test_a_pointer_to_void_has_the_type_that_the_kernel_sees(tmp_path: Path) -> None:
    made = _tried("#include <cuda_fp16.h>\n" + VOID, tmp_path)
    assert made.missing == ()
    spec = read_back(program("#include <cuda_fp16.h>\n" + VOID), made, "comments")
    types = {a.name: (a.type, a.size) for a in spec.arguments if a.role != "scalar"}
    assert types == {
        "a.x": ("float", "2*n"), "a.sum": ("float", "n"), "a.raw": ("uint8", "n"), "scale": ("float", "1"),
        "y": ("half", "2*n"),
    }  # fmt: skip
    assert spec.argument("a.x").fill.kind == "normal"
    assert "assumed: the type that the kernel casts it to" in made.text


def test_a_size_that_only_covered_the_trials_is_asked_for_where_checks_go_beyond_it(tmp_path: Path) -> None:
    made = _tried(
        """
__global__ void k(const unsigned char* x, const float* table, float* y, int rows, int cols) {
    int i = blockIdx.x, j = threadIdx.x + blockIdx.y * 32;
    if (i >= rows || j >= cols) return;
    int at;
    at = 2 * x[i * cols + j];
    y[i * cols + j] = table[i * cols + at];
}
void run(const unsigned char* x, const float* t, float* y, int rows, int cols) {
    k<<<dim3(rows, (cols + 31) / 32), 32>>>(x, t, y, rows, cols);
}
""",
        tmp_path,
    )
    (gap,) = made.missing
    assert gap.startswith("the size of 'table': with the drafted one the kernel reads table[")
    assert gap.key == "args.table"


PIXELS = """
namespace img {{
union Bgr {{ uchar3 v; struct {{ unsigned char b, g, r; }} c; }};
{more}
template <class Pair, class Color> __global__ void k(const unsigned char* x, unsigned char* y, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    Pair p = ((const Pair*)x)[i];
    Color color{{}};
    color.c.b = p.x; color.c.g = p.y;
    y[2 * i] = color.v.x; y[2 * i + 1] = color.v.y;
}}
template <class P, class C> void run(const unsigned char* x, unsigned char* y, int n) {{ k<P, C><<<(n + 255) / 256, 256>>>(x, y, n); }}
}}
"""


def test_a_type_with_members_is_a_class_that_has_them(tmp_path: Path) -> None:
    made = _tried(PIXELS.format(more=""), tmp_path)
    assert made.missing == ()
    assert made.spec.expressions == ("img::k<uchar2, img::Bgr>",)
    (gap,) = draft(program(PIXELS.format(more="struct Rgb { uchar3 v; Held c; };")), "k").missing
    assert gap == "the template argument for 'class Color': write it in the kernel's name, such as img::Bgr, img::Rgb"


BLOCKS = """
#ifdef THREADS_0
#define THREADS THREADS_0
#else
#define THREADS 192
#endif
__global__ void k(const float* x, float* y, int n) {
    int i = blockDim.x * blockIdx.x + threadIdx.x;
    y[i] = x[i]; y[i + n] = 2 * x[i];
}
void run(const float* x, float* y, int n) { dim3 grid(n / THREADS), block(THREADS); k<<<grid, block>>>(x, y, n); }
"""


def test_a_length_counts_whole_blocks_of_the_branch_that_is_compiled(tmp_path: Path) -> None:
    made = _tried(BLOCKS, tmp_path)
    assert made.missing == ()
    assert (made.spec.argument("x").size, made.spec.argument("y").size) == ("n", "2*n")
    assert all(case.sizes["n"] % 192 == 0 for case in made.spec.check)
    assert evaluate(program(BLOCKS), made.spec, 0, {"n": 384}) == LaunchConfig((2, 1, 1), (192, 1, 1), 0)


def test_outputs_are_looked_at_where_some_checks_go_beyond_a_buffer(tmp_path: Path) -> None:
    made = _tried(
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


def test_a_kernel_without_a_size_may_reach_far() -> None:
    made = draft(
        program(
            """
#define WIDTH 4096
__global__ void k(const float* x, float* y) {
    for (int i = threadIdx.x; i < WIDTH * WIDTH; i += blockDim.x) y[i] = 2.0f * x[i];
}
void run(const float* x, float* y) { k<<<1, 256>>>(x, y); }
"""
        ),
        "k",
    )
    assert not made.missing
    assert made.spec.argument("y").size == "16777216"


def test_types_of_a_part_are_those_of_the_source_that_includes_it() -> None:
    files = {
        "k.cu": b"#include <stdio.h>\n__global__ void k(real* y, Shape s) { if (threadIdx.x < s.n) y[threadIdx.x] = s.scale; }\n",
        "main.cu": b'#include "types.h"\n#include "k.cu"\nvoid run(real* y, Shape s) { k<<<1, 256>>>(y, s); }\n',
        "types.h": b"#define real double\ntypedef struct { int n; real scale; } Shape;\n",
    }
    made = draft(Program(files, "k.cu"), "k")
    assert [gap for gap in made.missing if "type" in gap] == []
    assert made.spec.argument("y").type == "double"
    assert (made.spec.argument("s.n").value, made.spec.argument("s.scale").value) == ("n", "0.75")


def test_what_kernels_take_of_opencv_s_device_headers(tmp_path: Path) -> None:
    made = _tried(
        """
#include "opencv2/core/cuda/common.hpp"
#include "opencv2/core/cuda/border_interpolate.hpp"
using namespace cv::cuda;
using namespace cv::cuda::device;
template <class Border> __global__ void k(const PtrStepSz<uchar4> src, PtrStep<float4> dst, Border border, int* least) {
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= src.cols || y >= src.rows) return;
    BorderReader<PtrStepSz<uchar4>, Border> pixels(src, border);
    dst(y, x) = 0.5f * (pixels(y - 1, x) + pixels(y, x + 1)) - src(y, x) * CV_PI_F;
    if (WithOutMask()(y, x)) Emulation::smem::atomicMin(least, (int)src(y, x).x);
}
void run(const PtrStepSz<uchar4> src, PtrStep<float4> dst, int* least) {
    BrdReflect101<uchar4> border(src.rows, src.cols);
    k<BrdReflect101<uchar4>><<<dim3((src.cols + 255) / 256, src.rows), 256>>>(src, dst, border, least);
}
""",
        tmp_path,
    )
    assert made.missing == ()
    assert made.spec.argument("dst.data").size == "cols*rows"


def test_a_launch_of_extents_by_name_is_the_host_s() -> None:
    made = draft(
        program(
            """
__global__ void k(float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2.0f; }
void run(float* y, int n) {
    const int threads = 128, blocks = (n + threads - 1) / threads;
    dim3 grid(blocks);
    dim3 block(threads);
    k<<<grid, block>>>(y, n);
}
"""
        ),
        "k",
    )
    assert not made.missing
    assert "launch" not in made.text
    assert [*made.spec.time[0].sizes] == ["n"]


DISPATCHED = """
#define DISPATCH_WIDTH(w, WIDTH, ...) if (w == 64) { constexpr int WIDTH = 64; __VA_ARGS__ } else { constexpr int WIDTH = 128; __VA_ARGS__ }
template <int WIDTH, int LANES, int ACROSS, typename T> __global__ void k(const T* x, T* y, int n, int x_stride_n) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row < n) for (int j = 0; j < LANES; ++j) {
        int c = threadIdx.x * LANES + j;
        y[row * WIDTH + c] = 2 * x[row * x_stride_n + c];
    }
}
template <typename T> void run(T* x, T* y, int n, int width, int x_stride_n) {
    DISPATCH_WIDTH(width, WIDTH, {
        constexpr int lanes = std::max(16 / sizeof(T), WIDTH / 32);
        constexpr int across = WIDTH / lanes;
        int rows = 128 / across;
        int blocks = (n + rows - 1) / rows;
        auto kernel = k<WIDTH, lanes, across, T>;
        dim3 grid(blocks);
        dim3 block(across, rows);
        void* args[] = {(void*)&x, (void*)&y, (void*)&n, (void*)&x_stride_n};
        cudaLaunchKernel((void*)kernel, grid, block, args, 0, nullptr);
    });
}
"""


def test_a_launch_by_the_runtime_in_a_dispatch_macro_is_read(tmp_path: Path) -> None:
    made = _tried(DISPATCHED, tmp_path)
    assert made.missing == ()
    assert made.spec.steps[0].template_args == "64, 4, 16, float"
    assert made.spec.argument("x_stride_n").value == "64"  # a row is as long as the template says
    assert (made.spec.argument("x").size, made.spec.argument("y").size) == ("64*n", "64*n")
    assert evaluate(program(DISPATCHED), made.spec, 0, {"n": 20}) == LaunchConfig((3, 1, 1), (16, 8, 1), 0)


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
    made = _tried(code, tmp_path)
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


def test_an_enumeration_is_read_where_the_grammar_loses_what_is_around_it() -> None:
    code = """
LIB_DEPRECATED(LIB_API struct thing * make(
    struct context * ctx, int n),
    "use other instead");
LIB_NORETURN LIB_FORMAT(3, 4) LIB_API struct thing * other(const char * format, ...) LIB_END
struct context * get(
enum mode { MODE_TWICE, MODE_SAME };
__global__ void k(float* y, int n, enum mode m) { int i = threadIdx.x; if (i < n) y[i] = m == MODE_TWICE ? 2 : 1; }
void run(float* y, int n, enum mode m) { k<<<1, 256>>>(y, n, m); }
"""
    made = draft(program(code), "k")
    assert [gap for gap in made.missing if "type" in gap] == []
    assert (made.spec.argument("m").type, made.spec.argument("m").value) == ("int32", "0")
    assert 'args.m = { type = "int32", value = "0" }' in made.text


def test_the_counter_of_a_loop_around_the_launch_has_its_first_value(tmp_path: Path) -> None:
    code = """
#define SIDE 16
__global__ void k(float* m, int n, int offset) {
    int i = offset + SIDE * (blockIdx.x + 1) + threadIdx.x;
    for (int j = 0; j < SIDE; ++j) m[(offset + j) * n + i] *= 2.0f;
}
void run(float* m, int n) {
    int i = 0;
    for (i = 0; i < n - SIDE; i += SIDE) k<<<(n - i) / SIDE - 1, SIDE>>>(m, n, i);
}
"""
    made = _tried(code, tmp_path)
    assert made.missing == ()
    assert made.spec.argument("offset").value == "0"
    assert all(
        evaluate(program(code), made.spec, 0, case.sizes).grid[0] > 0 for case in (*made.spec.check, *made.spec.time)
    )


def test_a_length_that_a_loop_varies_stays_a_size() -> None:
    code = """
__global__ void k(float* y, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = 2.0f; }
void bench(float* y) { for (int n = 1024; n < 1 << 20; n *= 2) k<<<(n + 255) / 256, 256>>>(y, n); }
"""
    assert [*draft(program(code), "k").spec.time[0].sizes] == ["n"]


def test_inputs_outside_of_a_function_s_domain_are_not_drawn(tmp_path: Path) -> None:
    made = _tried(
        """
__global__ void k(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = logf(x[i]) * 0.5f; }
void run(float* x, int n) { k<<<(n + 255) / 256, 256>>>(x, n); }
""",
        tmp_path,
    )
    assert made.missing == ()
    assert made.spec.argument("x").fill == Fill("uniform", "0.1", "1")


DEDUCED = """
struct Sum { __device__ float operator()(float a, float b) const { return a + b; } };
template <typename T> struct View { T* data; int cols; };
template <typename T, class Op> __global__ void k(const View<T> x, float* y, int n, Op op) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = op(x.data[i], 1);
}
template <typename T> void run(View<char> x, float* y, int n) {
    Sum op;
    k<<<(n + 255) / 256, 256>>>((View<T>)x, y, n, op);
}
template void run<int>(View<char> x, float* y, int n);
"""


def test_a_launch_that_names_no_template_arguments_is_what_it_passes() -> None:
    made = draft(program(DEDUCED), "k")
    assert [gap for gap in made.missing if gap.key == "kernel"] == []
    assert made.spec.steps[0].template_args == "int, Sum"


def test_a_field_of_an_argument_that_a_launch_casts_is_the_kernel_s() -> None:
    code = """
struct Bytes { char* data; int cols; };
struct Floats { Floats(Bytes); float* data; int cols; };
__global__ void k(const Floats x, float* y) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < x.cols) y[i] = 2 * x.data[i]; }
void run(Bytes x, float* y) { k<<<(x.cols + 255) / 256, 256>>>((Floats)x, y); }
"""
    assert [*draft(program(code), "k").spec.time[0].sizes] == ["cols"]


def test_what_only_the_driver_makes_is_no_question() -> None:
    code = """
typedef cudaTextureObject_t Texture;
__global__ void k(Texture t, float* y, int n) { int i = threadIdx.x; if (i < n) y[i] = tex1Dfetch<float>(t, i); }
void run(Texture t, float* y, int n) { k<<<1, 256>>>(t, y, n); }
"""
    (gap,) = draft(program(code), "k").missing
    assert gap == "'t' is a texture ('Texture'): a spec has numbers and buffers alone"
    assert gap.key == ""


def test_a_type_that_is_no_name_is_no_enumeration() -> None:
    code = """
template <int N> struct P;
__global__ void k(float* y, P<(3> 1)> p) { y[threadIdx.x] = 1; }
void run(float* y, P<(3> 1)> p) { k<<<1, 32>>>(y, p); }
"""
    assert any("the type of 'p'" in gap for gap in draft(program(code), "k").missing)


def test_template_parameters_may_have_any_name() -> None:
    code = """
template <typename P, typename w, float (*f)(float)> struct Pair { P* first; w* second; int n; };
template <typename P, typename w, float (*f)(float)> __global__ void k(const Pair<P, w, f> p, P* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < p.n) y[i] = f(p.first[i] + p.second[i]);
}
__device__ float twice(float x) { return 2 * x; }
void run(Pair<float, int, twice> p, float* y) { k<<<(p.n + 255) / 256, 256>>>(p, y); }
"""
    made = draft(program(code), "k")
    assert made.spec.steps[0].template_args == "float, int, twice"


def test_a_size_that_chooses_between_two_blocks_stays_a_size() -> None:
    code = """
__global__ void k(float* y, int rows, int cols) {
    for (int r = threadIdx.y; r < rows; r += blockDim.y) for (int c = threadIdx.x; c < cols; c += 32) y[r * cols + c] = 2.0f;
}
void run(float* y, int rows, int cols) {
    int warps = rows < 16 ? 4 : 8;
    dim3 threads(32, warps);
    k<<<1, threads>>>(y, rows, cols);
}
"""
    rows = {case.sizes["rows"] for case in draft(program(code), "k").spec.check}
    assert len(rows) > 1


def test_a_row_is_as_long_as_the_template_says_whatever_sizes_count() -> None:
    names = ["nnz", "rotary_dim", "q_stride_n"]
    given = Numbers(names, names[:2], {"q": 4}, constants={"HEAD_DIM": 64, "BLOCK_DIM": 32})
    assert strides(given) == {"q_stride_n": "64"}
    given = Numbers(names, names[:2], {"q": 4}, constants={"BLOCK_DIM": 32})
    assert strides(given) == {"q_stride_n": "rotary_dim"}
