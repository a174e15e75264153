import pytest

from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_block_size import PLANE, PLANE_LAUNCH, PLANE_SIZES
from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, after, compiles, device, host, make, one, propose


def test_block_strided() -> None:
    edited = one(make(SCALE, SCALE_LAUNCH), "coarsen", factor=4, form="block")
    assert (
        device(edited)
        == """__global__ void scale(const float* x, float* y, float a, int n) {
    int i0 = blockIdx.x * (blockDim.x * 4) + threadIdx.x;
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
        int i = i0 + k * blockDim.x;
        if (i < n) {
            y[i] = a * x[i];
        }
    }
}"""
    )
    assert edited.configs[0].grid[0] == (1 << 24) // 1024
    compiles(edited)


def test_grid_stride() -> None:
    edited = one(make(SCALE, SCALE_LAUNCH), "coarsen", factor=16, form="grid")
    assert (
        "for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) {"
        in device(edited)
    )
    assert edited.configs[0].grid[0] == (1 << 24) // 4096
    compiles(edited)


@pytest.mark.parametrize(
    ("changes", "loop"),
    [
        # Beside its use as an index, the sign may matter: the counter is another variable.
        ((("a * x[i]", "a * (i / 2 - 7) * x[i]"),),
         """    for (unsigned int i0 = blockIdx.x * blockDim.x + threadIdx.x; i0 < n; i0 += blockDim.x * gridDim.x) {
        const int i = i0;
        y[i] = a * (i / 2 - 7) * x[i];
"""),
        # No unsigned counter may be compared with a size below zero.
        ((("i < n", "i < n - 1"),),
         """    for (unsigned int i = blockIdx.x * blockDim.x + threadIdx.x; i < max(n - 1, 0); i += blockDim.x * gridDim.x) {
        y[i] = a * x[i];
"""),
        ((("int i =", "unsigned int i ="), ("int n)", "unsigned int n)")),
         """    for (unsigned long long i = (unsigned long long) blockIdx.x * blockDim.x + threadIdx.x; i < n; """
         """i += (unsigned long long) blockDim.x * gridDim.x) {
        y[i] = a * x[i];
"""),
        ((("int i = blockIdx.x", "size_t i = (size_t) blockIdx.x"), ("int n)", "size_t n)")),
         """    for (size_t i = (size_t) blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t) blockDim.x * gridDim.x) {
        y[i] = a * x[i];
"""),
    ],
)  # fmt: skip
def test_the_counter_of_a_grid_stride_loop_holds_the_size_and_a_step(
    changes: tuple[tuple[str, str], ...], loop: str
) -> None:
    source = SCALE
    for old, new in changes:
        assert source.count(old) == 1
        source = source.replace(old, new)
    edited = one(make(source, SCALE_LAUNCH), "coarsen", factor=16, form="grid")
    assert loop in device(edited)
    compiles(edited)


def test_early_return_becomes_continue() -> None:
    source = """
__global__ void scale(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    // negative values stay
    if (x[i] < 0.0f) {
        y[i] = x[i];
        return;
    }
    y[i] = a * x[i];
}
"""
    edited = one(make(source, SCALE_LAUNCH), "coarsen", factor=2, form="block")
    assert "return" not in device(edited)
    assert device(edited).count("continue;") == 2
    assert "// negative values stay" in device(edited)
    compiles(edited)


def test_plane_along_y() -> None:
    source = PLANE.replace(", r = blockIdx", ";\n    const int r = blockIdx")
    edited = one(make(source, PLANE_LAUNCH, **PLANE_SIZES), "coarsen", factor=4)
    assert edited.configs[0].grid == (313, 64, 1)
    compiles(edited)


def test_names_that_are_taken_are_not_used() -> None:
    source = SCALE.replace("float a, int n", "float a, int n, int k, int i0").replace("a * x[i]", "a * x[i] + k + i0")
    site = make(source, SCALE_LAUNCH.replace("a, n", "a, n, k, i0"), sizes=[{"n": 1 << 24, "k": 1, "i0": 1}],
                check=[{"n": 7, "k": 1, "i0": 2}])  # fmt: skip
    edited = one(site, "coarsen", factor=4, form="block")
    assert "int k = 0" not in device(edited)
    compiles(edited)


def test_derived_declarations_move_with_the_index() -> None:
    source = """
__global__ void scale(const float* x, float* y, float a, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float b = a * 2.0f;
    int j = n - 1 - i;
    if (i < n) y[i] = b * x[j];
}
"""
    text = device(one(make(source, SCALE_LAUNCH), "coarsen", factor=2, form="block"))
    assert text.index("float b") < text.index("for (") < text.index("int j = n - 1 - i;")


def test_resident_grid_for_grid_stride_loops() -> None:
    coarse = one(make(SCALE, SCALE_LAUNCH), "coarsen", factor=16, form="grid")
    edited = one(coarse, "coarsen", blocks=132 * 8)
    assert edited.configs[0].grid == (1056, 1, 1)
    assert "min((n + 255) / 256, 1056)" in host(edited)


BLOCK_ROWS = """
__global__ void totals(const float* x, float* y, int rows, int cols) {
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        float sum = 0.0f;
        for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += x[row * cols + c];
        atomicAdd(&y[row], sum);
    }
}
"""
TOTALS = {
    "sizes": [{"rows": 4096, "cols": 4096}],
    "check": [{"rows": 3, "cols": 129}],
    "elements": {"x": "rows*cols", "y": "rows"},
}


def test_resident_grid_for_loops_over_the_rows_of_blocks_and_warps() -> None:
    site = make(BLOCK_ROWS, "    totals<<<16, 256>>>(x, y, rows, cols);", **TOTALS)
    edited = one(site, "coarsen", blocks=1056)
    assert "<<<min(rows, 1056), 256>>>" in host(edited)
    assert_equal(site, [edited], [{"rows": 37, "cols": 129}])
    warps = BLOCK_ROWS.replace("row = blockIdx.x;", "row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;")
    warps = warps.replace("row += gridDim.x", "row += gridDim.x * (blockDim.x / 32)")
    warps = warps.replace("c = threadIdx.x; c < cols; c += blockDim.x", "c = threadIdx.x % 32; c < cols; c += 32")
    site = make(warps, "    totals<<<16, 256>>>(x, y, rows, cols);", **TOTALS)
    edited = one(site, "coarsen", blocks=1056)
    assert "<<<min((rows + 7) / 8, 1056), 256>>>" in host(edited)
    assert_equal(site, [edited], [{"rows": 37, "cols": 129}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("row += gridDim.x", "row += gridDim.x * 2"),  # leaves rows out
        ("&y[row]", "&y[blockIdx.x]"),
    ],
)
def test_no_resident_grid_for_other_loops_over_rows(old: str, new: str) -> None:
    source = BLOCK_ROWS.replace(old, new)
    assert not propose(make(source, "    totals<<<16, 256>>>(x, y, rows, cols);", **TOTALS), "coarsen", form="resident")


def test_index_of_64_bits_counts_in_64_bits() -> None:
    source = SCALE.replace("int i = blockIdx.x", "const long long i = (long long) blockIdx.x")
    for form in ("block", "grid"):
        edited = propose(make(source, SCALE_LAUNCH), "coarsen", factor=4, form=form)
        assert "(long long) blockIdx.x * " in device(after(make(source, SCALE_LAUNCH), edited[0]))


def test_the_grid_stays_where_each_thread_or_block_has_a_result_of_its_own() -> None:
    source = """
__global__ void sums(const float* x, float* y, int n) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int i = t; i < n; i += blockDim.x * gridDim.x) {
        sum += x[i];
    }
    atomicAdd(&y[0], sum);
}
"""
    launch = "    sums<<<32, 256>>>(x, y, n);"
    assert propose(make(source, launch), "coarsen", form="resident")
    for result in ("y[t] = sum;", "if (threadIdx.x == 0) y[blockIdx.x] = sum;"):
        assert not propose(make(source.replace("atomicAdd(&y[0], sum);", result), launch), "coarsen", form="resident")


@pytest.mark.parametrize(
    "work",
    [
        "__syncthreads(); y[i] = x[i];",
        "y[i] = __shfl_down_sync(0xffffffffu, x[i], 1);",
        "y[i] = threadIdx.x;",
        "for (int j = 0; j < 3; ++j) { if (j == a) return; y[i] += x[j]; }",
        'asm("membar.gl;"); y[i] = x[i];',
        "x += i; y[i] = x[0];",
        "y[i] = *x++;",
        "a *= i; y[i] = a;",
    ],
)
def test_nothing_where_threads_need_each_other(work: str) -> None:
    source = SCALE.replace("y[i] = a * x[i];", work)
    assert not propose(make(source, SCALE_LAUNCH), "coarsen")


def test_nothing_where_a_macro_hides_a_return() -> None:
    source = "#define LEAVE if (a > 3.0f) return\n" + SCALE.replace("y[i] = a", "LEAVE; y[i] = a")
    assert not propose(make(source, SCALE_LAUNCH), "coarsen")


def test_nothing_where_the_index_changes() -> None:
    assert not propose(make(SCALE.replace("if (i < n)", "i += 1;\n    if (i < n)"), SCALE_LAUNCH), "coarsen")
