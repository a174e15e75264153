"""Launches of other people's host code: blocks, loops and macros around them, what they pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from engine.errors import SourceError
from engine.model import LaunchConfig
from engine.spec.draft import draft
from engine.spec.draft_trials import Trials, other_shapes
from engine.spec.kernel_spec import Case, KernelSpec, Step
from engine.spec.launch_config import evaluate
from tests.engine.spec.drafts import program, tried


def test_a_name_in_capitals_is_no_size_of_the_launch() -> None:
    code = "__global__ void k(float* y) { y[blockIdx.x] = 1; }\nvoid run(float* y, int r) { k<<<r / TILE, 32>>>(y); }\n"
    (gap,) = [m for m in draft(program(code), "k").missing if m.startswith("the launch")]
    assert "'TILE' is not known" in gap or "'r' is not known" in gap


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
    made = tried(code, tmp_path)
    assert made.missing == ()
    assert made.spec.argument("sums").size == "prop_maxThreadsPerMultiProcessor*prop_multiProcessorCount/256"
    assert "assumed: one element for each block" in made.text


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
    made = tried(ROWS, tmp_path)
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


def test_no_case_is_given_twice_where_the_host_settles_every_size(tmp_path: Path) -> None:
    made = tried(
        """
__global__ void k(const int* x, int* y, int size) { int t = threadIdx.x; y[t] = x[t] + size; }
void run(const int* x, int* y) { int size = 256; k<<<1, size>>>(x, y, size); }
""",
        tmp_path,
    )
    assert not made.missing
    assert len(made.spec.check) == len({case.name for case in made.spec.check})


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
    made = tried(BLOCKS, tmp_path)
    assert made.missing == ()
    assert (made.spec.argument("x").size, made.spec.argument("y").size) == ("n", "2*n")
    assert all(case.sizes["n"] % 192 == 0 for case in made.spec.check)
    assert evaluate(program(BLOCKS), made.spec, 0, {"n": 384}) == LaunchConfig((2, 1, 1), (192, 1, 1), 0)


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
    made = tried(DISPATCHED, tmp_path)
    assert made.missing == ()
    assert made.spec.steps[0].template_args == "64, 4, 16, float"
    assert made.spec.argument("x_stride_n").value == "64"  # a row is as long as the template says
    assert (made.spec.argument("x").size, made.spec.argument("y").size) == ("64*n", "64*n")
    assert evaluate(program(DISPATCHED), made.spec, 0, {"n": 20}) == LaunchConfig((3, 1, 1), (16, 8, 1), 0)


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
    made = tried(code, tmp_path)
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


@pytest.mark.parametrize(
    ("launch", "given"),
    [
        ("k<<<n / 32, 32>>>(x, y, n, n, n);", {"b": "a", "c": "a"}),
        ("k<<<n / 32, 32>>>(x, y, n, m, n);", {"c": "a"}),
        ("k<<<n / 32, 32>>>(x, y, n, m, n); k<<<n / 32, 32>>>(x, y, n, m, m);", {}),
        ("k<<<64, 32>>>(x, y, n, n, n);", {}),  # the launch bears any sizes
    ],
)
def test_sizes_that_decide_the_launch_together_are_one(launch: str, given: dict[str, str]) -> None:
    """A kernel of squares had no launch at the sizes of its checks, and so no size of any buffer."""
    code = f"""
__global__ void k(const float* x, float* y, int a, int b, int c) {{
    int i = blockIdx.x * 32 + threadIdx.x;
    if (i < a && b > 0 && c > 0) y[i] = x[i] * b * c;
}}
void run(const float* x, float* y, int n, int m) {{ {launch} }}
"""
    spec = draft(program(code), "k").spec
    assert {a.name: a.value for a in spec.arguments if a.role == "scalar" and a.value} == given


def test_which_of_many_numbers_a_launch_depends_on() -> None:
    names = [f"a{i}" for i in range(40)]
    listed, sums = ", ".join(f"int {n}" for n in names), " + ".join(names)
    code = f"""
__global__ void k(float* y, {listed}) {{ y[blockIdx.x * 32 + threadIdx.x] = {sums}; }}
void run(float* y, {listed}) {{ k<<<a7 * 2, a33>>>(y, {", ".join(names)}); }}
"""
    made = draft(program(code), "k")
    assert {n for n in names if made.spec.argument(n).value != "1"} == {"a7", "a33"}
