"""What numbers of other people's kernels are: sizes, values, segments, domains of functions."""

from __future__ import annotations

from pathlib import Path

from engine.arith import evaluate_int
from engine.spec.draft import draft
from engine.spec.kernel_spec import Fill
from tests.engine.spec.drafts import program, tried


def test_a_shift_is_a_value_and_no_size(tmp_path: Path) -> None:
    made = tried(
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
    made = tried(
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


ELEMENTWISE = """
__global__ void k(const float* x, float* y, int n) {{ int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) y[i] = {value}; }}
void run(const float* x, float* y, int n) {{ k<<<(n + 255) / 256, 256>>>(x, y, n); }}
"""


def test_inputs_that_give_no_numbers_are_drawn_positive(tmp_path: Path) -> None:
    made = tried(ELEMENTWISE.format(value="logf(x[i]) * sqrtf(x[(i * 7) % n]) * powf(x[(i * 5) % n], 0.3f)"), tmp_path)
    assert not made.missing
    assert (made.spec.argument("x").fill.kind, made.spec.argument("x").fill.low) == ("uniform", "0.1")
    assert "assumed: positive" in made.text


def test_no_inputs_that_give_numbers_are_asked_for(tmp_path: Path) -> None:
    made = tried(ELEMENTWISE.format(value="logf(-1.f - fabsf(x[i]))"), tmp_path)
    (gap,) = made.missing
    assert gap == "suitable inputs: with random ones most of 'y' is no number in the checks; write a fill"
    assert gap.key == "args.x"


def test_outputs_of_one_value_are_no_draft(tmp_path: Path) -> None:
    (gap,) = tried(ELEMENTWISE.format(value="x[i] > 1e6f ? 1.f : 0.f"), tmp_path).missing
    assert "every output is one value in all checks" in gap


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
    (time,) = tried(pairs, tmp_path).spec.time
    assert 1 << 15 <= time.sizes["n"] <= 1 << 18  # 10^9 to 10^11 accesses, not 10^14
    (linear,) = tried(ELEMENTWISE.format(value="x[i] + 1"), tmp_path).spec.time
    assert linear.sizes["n"] == 1 << 24


def test_inputs_that_belong_together_are_asked_for(tmp_path: Path) -> None:
    made = tried(
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
    made = tried(ROPE, tmp_path)
    assert not made.missing
    begin = made.spec.argument("begin")
    assert (begin.fill.kind, begin.fill.high, begin.size) == ("offsets", "max_len + 1", "n + 1")
    assert evaluate_int(made.spec.argument("x").size, {"n": 3, "max_len": 5, "d": 7, "part": 2}) == 105
    assert all(case.sizes["part"] <= case.sizes["d"] for case in made.spec.check)
    assert made.spec.argument("y").role == "inout"


def test_segments_that_nothing_bounds_have_a_size_of_their_own(tmp_path: Path) -> None:
    made = tried(
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


def test_a_whole_number_is_never_a_fraction() -> None:
    code = "__global__ void k(float* y, const int steps) { y[0] = 1; }\nvoid run(float* y, int s) { k<<<1, 32>>>(y, s); }\n"
    assert draft(program(code), "k").spec.argument("steps").value == "1"


def test_a_size_that_only_covered_the_trials_is_asked_for_where_checks_go_beyond_it(tmp_path: Path) -> None:
    made = tried(
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


def test_inputs_outside_of_a_function_s_domain_are_not_drawn(tmp_path: Path) -> None:
    made = tried(
        """
__global__ void k(float* x, int n) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = logf(x[i]) * 0.5f; }
void run(float* x, int n) { k<<<(n + 255) / 256, 256>>>(x, n); }
""",
        tmp_path,
    )
    assert made.missing == ()
    assert made.spec.argument("x").fill == Fill("uniform", "0.1", "1")
