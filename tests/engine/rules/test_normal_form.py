import pytest

from engine.rewrite.site import Site
from engine.rules import families, proposals
from engine.rules.normal_form.normal_form import normal_form
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, after, compiles, device, host, make

ROWS = {
    "sizes": [{"rows": 4096, "cols": 4096}],
    "check": [{"rows": 3, "cols": 129}, {"rows": 33, "cols": 8}],
    "elements": {"x": "rows*cols", "y": "rows*cols"},
}
SMALL = [{"rows": 3, "cols": 129}, {"rows": 37, "cols": 16}]


def plain(site: Site) -> str:
    """The kernel in normal form."""
    form = normal_form(site)
    assert form is not None
    compiles(form.site)
    return device(form.site)


def found(site: Site, rule: str) -> list[Site]:
    """The sites after the rule's proposals, which are edits of the site's own program."""
    return [after(site, p) for p in proposals(site, only=[rule])]


TURNED = """
__global__ void turned(const float* x, float* y, int rows, int cols) {
    int row = threadIdx.x + blockDim.x * blockIdx.x;
    int i, j;
    if (row < rows) {
        for (i = 0; i < cols; i++)
            y[row + rows * i] = x[row * cols + i];
    }
    return;
}
"""
TURNED_LAUNCH = "    turned<<<(rows + 255) / 256, 256>>>(x, y, rows, cols);"


def test_counter_of_a_function_becomes_that_of_its_loop() -> None:
    site = make(TURNED, TURNED_LAUNCH, **ROWS)
    text = plain(site)
    assert "for (int i = 0; i < cols; i++)" in text
    assert "    int j;\n" in text
    assert "return;" not in text
    edited = found(site, "row_parallel")
    assert edited
    assert_equal(site, edited[:2], SMALL)


def test_what_nothing_hides_is_in_normal_form() -> None:
    assert normal_form(make(SCALE, SCALE_LAUNCH)) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    return;", "    y[0] = i;"),  # used behind the loop
        ("i < cols; i++)", "i < cols; i++) for (i = i; i < cols; i += 7)"),  # one loop sets that of another
        ("int i, j;", "float i, j;"),
        ("int i, j;", "int i = 3, j;"),
    ],
)
def test_counter_stays_where_it_is_more_than_the_loops_own(old: str, new: str) -> None:
    form = normal_form(make(TURNED.replace(old, new), TURNED_LAUNCH, **ROWS))
    assert form is None or "for (i = 0;" in device(form.site)


GROUPS = """
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;
__global__ void normed(const float* x, float* y, int rows, int cols) {
    cg::thread_block block = cg::this_thread_block();
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
    int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= rows) return;
    const float* from = x + row * cols;
    float sum = 0.0f;
    for (int i = warp.thread_rank(); i < cols; i += warp.size()) {
        sum += from[i] * from[i];
    }
    sum = cg::reduce(warp, sum, cg::plus<float>{});
    float* to = y + row * cols;
    for (int i = warp.thread_rank(); i < cols; i += warp.size()) {
        __stcs(to + i, __ldcs(&from[i]) * rsqrtf(sum));
    }
}
"""
GROUPS_LAUNCH = "    normed<<<(rows + 7) / 8, 256>>>(x, y, rows, cols);"


def test_rows_of_cooperative_groups_become_vectors() -> None:
    site = make(GROUPS, GROUPS_LAUNCH, **ROWS)
    text = plain(site)
    assert "int row = blockIdx.x * (blockDim.x / 32) + (threadIdx.x / 32);" in text
    assert text.count("for (int i = threadIdx.x % 32; i < cols; i += 32) {") == 2
    assert "to[i] = from[i] * rsqrtf(sum);" in text
    edited = found(site, "row_vectorize")
    # The stored row's pointer is declared behind the first loop.
    assert "reinterpret_cast<size_t>(y + row * cols)" in device(edited[0])
    compiles(edited[0])
    assert_equal(site, edited, SMALL)


@pytest.mark.parametrize(("threads", "ranked"), [("48", False), ("dim3(32, 4)", False), ("64", True)])
def test_ranks_of_groups_in_blocks_of_whole_warps_only(threads: str, ranked: bool) -> None:
    form = normal_form(make(GROUPS, GROUPS_LAUNCH.replace("256", threads), **ROWS))
    assert form is not None
    assert ("threadIdx.x % 32" in device(form.site)) == ranked


def test_hints_stay_where_blocks_wait_for_each_other() -> None:
    source = GROUPS.replace("    float* to", "    __threadfence();\n    float* to")
    assert "__stcs(to + i, __ldcs(&from[i])" in plain(make(source, GROUPS_LAUNCH, **ROWS))


FOLDED = GROUPS.replace("sum += from[i] * from[i];", "sum = larger(sum, from[i]);").replace(
    "cg::plus<float>{}", "larger"
).replace("__global__", "__device__ float larger(float a, float b) { return a < b ? b : a; }\n__global__", 1)  # fmt: skip


def test_fold_by_the_function_that_the_group_combines_with() -> None:
    site = make(FOLDED, GROUPS_LAUNCH, **ROWS)
    assert_equal(site, found(site, "row_vectorize"), SMALL)
    other = FOLDED.replace("sum = larger(sum, from[i])", "sum = later(sum, from[i])").replace(
        "__device__ float larger", "__device__ float later(float a, float b) { return b; }\n__device__ float larger"
    )
    assert not found(make(other, GROUPS_LAUNCH, **ROWS), "row_vectorize")


MOVED = """
__global__ void moved(const float * __restrict__ x, float * y, int rows, int cols) {
    const int row = blockIdx.x;
    x += (long long) row * cols;
    y += (long long) row * cols;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        y[c] = 2.0f * x[c];
    }
}
"""
MOVED_LAUNCH = "    moved<<<rows, 128>>>(x, y, rows, cols);"


def test_moved_parameters_become_local_pointers() -> None:
    site = make(MOVED, MOVED_LAUNCH, **ROWS)
    text = plain(site)
    assert "const float* x_begin = x + (long long) row * cols;" in text
    assert "y_begin[c] = 2.0f * x_begin[c];" in text
    edited = found(site, "row_vectorize")
    assert edited
    assert_equal(site, edited, SMALL)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const int row = blockIdx.x;", "const int row = blockIdx.x + (int)x[0] * 0;"),  # used before it moves
        ("y[c] = 2.0f * x[c];", "y[c] = 2.0f * x[c]; x += 0;"),
        ("x += (long long) row * cols;", "if (row > 0) x += (long long) row * cols;"),
    ],
)
def test_parameters_that_move_more_than_once_stay(old: str, new: str) -> None:
    form = normal_form(make(MOVED.replace(old, new), MOVED_LAUNCH, **ROWS))
    assert form is not None
    assert "x_begin" not in device(form.site)
    assert "y_begin" in device(form.site)


NAMED = """
#define PER_BLOCK 256
#define PRODUCT(a, b) __umul24(a, b)
__global__ void named(const float* x, float* y, float a, int n) {
    const int bx = blockIdx.x;
    const int tx = threadIdx.x;
    const int i = INDEX;
    if (i < n) {
        y[i] = a * x[i];
    }
}
"""
NAMED_LAUNCH = "    named<<<(n + PER_BLOCK - 1) / PER_BLOCK, PER_BLOCK>>>(x, y, a, n);"


@pytest.mark.parametrize(
    ("index", "written"),
    [
        ("bx * PER_BLOCK + tx", "blockIdx.x * PER_BLOCK + threadIdx.x"),
        ("tx + __umul24(blockDim.x, bx)", "blockIdx.x * blockDim.x + threadIdx.x"),
        ("PRODUCT(bx, PER_BLOCK) + tx", "blockIdx.x * PER_BLOCK + threadIdx.x"),
        ("bx * PER_BLOCK * 2 + tx", "blockIdx.x * PER_BLOCK * 2 + threadIdx.x"),
    ],
)
def test_global_index_of_other_names(index: str, written: str) -> None:
    site = make(NAMED.replace("INDEX", index), NAMED_LAUNCH)
    text = plain(site)
    assert f"const int i = {written};" in text
    assert "int bx" not in text
    assert "int tx" not in text
    if "* 2" not in index:
        edited = found(site, "vectorize") + found(site, "coarsen")
        assert edited
        assert_equal(site, edited[:3], [{"n": 1003}])


def test_global_index_of_64_bits() -> None:
    source = NAMED.replace("const int i = INDEX", "const size_t i = (size_t)bx * PER_BLOCK + tx")
    assert "const size_t i = (size_t) blockIdx.x * PER_BLOCK + threadIdx.x;" in plain(make(source, NAMED_LAUNCH))


def test_names_that_something_else_uses_stay() -> None:
    source = NAMED.replace("INDEX", "bx * PER_BLOCK + tx").replace("a * x[i]", "a * x[i] + tx")
    text = plain(make(source, NAMED_LAUNCH))
    assert "const int tx = threadIdx.x;" in text
    assert "int bx" not in text
    assert not found(make(source, NAMED_LAUNCH), "vectorize")


GUARDED = """
__global__ void guarded(const float* x, float* y, int rows, int cols) {
    if (threadIdx.x + blockIdx.x * blockDim.x >= rows) return;
    if (threadIdx.y + blockIdx.y * blockDim.y >= cols) return;
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    int col = blockIdx.y * blockDim.y + threadIdx.y;
    y[row * cols + col] = 3.0f * x[row * cols + col];
}
"""
GUARDED_LAUNCH = "    guarded<<<dim3((rows + 15) / 16, (cols + 15) / 16), dim3(16, 16)>>>(x, y, rows, cols);"


def test_guards_before_the_indices_test_them_by_name() -> None:
    site = make(GUARDED, GUARDED_LAUNCH, **ROWS)
    text = plain(site)
    assert text.index("int col =") < text.index("if (row >= rows) return;\n    if (col >= cols) return;")
    edited = found(site, "swap_axes")
    assert edited
    assert_equal(site, edited, SMALL)


def test_edits_keep_the_rest_of_the_file_and_its_newlines() -> None:
    site = make(MOVED, MOVED_LAUNCH, newline="\r\n", **ROWS)
    (first, *_) = proposals(site, only=["row_vectorize"])
    edited = after(site, first)
    assert edited.program.data.count(b"\n") == edited.program.data.count(b"\r\n")
    assert host(edited) == host(site)


def test_families_of_the_normal_form_make_edits_of_the_original() -> None:
    site = make(NAMED.replace("INDEX", "bx * PER_BLOCK + tx"), NAMED_LAUNCH)
    (family,) = families(site, only=["coarsen"])
    made = family.make({"factor": 3})
    assert made is not None
    assert_equal(site, [after(site, made)], [{"n": 1003}])


HELPED = """
__constant__ float offset;
template <typename T>
__device__ void scaled(const T* row, T* yy, int tid, int cols) {
    float sum = 0.0f;
    for (int c = tid; c < cols; c += blockDim.x) {
        sum += row[c] * row[c];
    }
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    for (int c = tid; c < cols; c += blockDim.x) {
        yy[c] = row[c] * rsqrtf(sum);
    }
}
__global__ void helped(const float* x, float* yy, int rows, int cols) {
    const int row = blockIdx.x;
    const float before = x[0];
    scaled(x + row * cols, yy + row * cols, threadIdx.x, cols);
}
"""
HELPED_LAUNCH = "    helped<<<rows, 32>>>(x, yy, rows, cols);"
HELPED_ROWS = {**ROWS, "elements": {"x": "rows*cols", "yy": "rows*cols"}}


def test_functions_that_are_given_arrays_are_looked_through() -> None:
    site = make(HELPED, HELPED_LAUNCH, **HELPED_ROWS)
    text = plain(site)
    # Names of the kernel's own keep their meaning.
    assert "const float* row2 = x + row * cols;" in text
    assert "float* yy2 = yy + row * cols;" in text
    assert "const int tid = threadIdx.x;" in text or "int tid = threadIdx.x;" in text
    edited = found(site, "row_vectorize")
    assert "__device__ void scaled" in device(edited[0])
    assert_equal(site, edited, SMALL)


def test_result_of_a_function_that_is_given_arrays() -> None:
    source = HELPED.replace("__device__ void scaled", "__device__ float scaled").replace(
        "        yy[c] = row[c] * rsqrtf(sum);\n    }\n",
        "        yy[c] = row[c] * rsqrtf(sum);\n    }\n    return sum * 0.0f;\n",
    )
    source = source.replace("    scaled(", "    const float total = scaled(").replace(
        "cols);\n}\n", "cols);\n    if (total > 1.0f) yy[0] = total;\n}\n"
    )
    text = plain(make(source, HELPED_LAUNCH, **HELPED_ROWS))
    assert "const float total = sum * 0.0f;" in text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    float sum = 0.0f;\n", "    if (cols == 1) return;\n    float sum = 0.0f;\n"),  # ends the function, not the kernel
        ("const T* row, T* yy, int tid", "const T* row, T* yy, int& tid"),
        ("float sum = 0.0f;", "float sum = 0.0f * offset;"),  # the file's, and a variable of the kernel
        ("x + row * cols, yy", "x + atomicAdd((int*)yy, 0) * 0 + row * cols, yy"),
    ],
)  # fmt: skip
def test_calls_that_cannot_be_written_out_stay(old: str, new: str) -> None:
    source = HELPED.replace(old, new).replace(
        "threadIdx.x, cols)", "tid, cols)" if "int&" in new else "threadIdx.x, cols)"
    )
    source = (
        source.replace("const int row = blockIdx.x;", "const int row = blockIdx.x; int tid = threadIdx.x;")
        if "int&" in new
        else source
    )
    source = source.replace("float before", "float offset") if "offset" in new else source
    form = normal_form(make(source, HELPED_LAUNCH, **HELPED_ROWS))
    assert form is None or "scaled(x" in device(form.site)


def test_inclusive_bounds_become_exclusive() -> None:
    source = MOVED.replace("c < cols;", "c <= last;").replace("    for (", "    const int last = cols - 1;\n    for (")
    site = make(source, MOVED_LAUNCH, **ROWS)
    assert "for (int c = threadIdx.x; c < last + 1; c += blockDim.x) {" in plain(site)
    assert_equal(site, found(site, "row_vectorize"), SMALL)
    for kind in ("unsigned int c", "size_t c"):  # all numbers are up to the largest
        form = normal_form(make(source.replace("int c", kind), MOVED_LAUNCH, **ROWS))
        assert form is not None
        assert "c <= last" in device(form.site)


PERMUTED = """
__global__ void permuted(const float* x, float* y, int b, int n, int h, int d) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx >= b * n * h * d) { return; }
    int i = idx / (h * n * d);
    int rest = idx % (h * n * d);
    int k = rest / (n * d);
    rest = rest % (n * d);
    int j = rest / d;
    int e = rest % d;
    y[(i * n * h * d) + (j * h * d) + (k * d) + e] = x[idx];
}
"""
PERMUTED_LAUNCH = "    permuted<<<(b * n * h * d + 255) / 256, 256>>>(x, y, b, n, h, d);"
PERMUTED_SIZES = {
    "sizes": [{"b": 64, "n": 64, "h": 64, "d": 64}],
    "check": [{"b": 2, "n": 3, "h": 5, "d": 7}, {"b": 2, "n": 3, "h": 5, "d": 8}],
    "elements": {"x": "b*n*h*d", "y": "b*n*h*d"},
}


def test_values_that_a_variable_takes_one_after_the_other_get_names() -> None:
    site = make(PERMUTED, PERMUTED_LAUNCH, **PERMUTED_SIZES)
    text = plain(site)
    assert "const int rest2 = rest % (n * d);" in text
    assert "int j = rest2 / d;\n    int e = rest2 % d;" in text
    edited = found(site, "vectorize")
    assert "&& d % 4 == 0) {" in device(edited[0])
    assert "*reinterpret_cast<FloatPack4*>(&y[(i * n * h * d) + (j * h * d) + (k * d) + e]) = y_pack;" in device(
        edited[0]
    )
    assert_equal(site, edited, [{"b": 2, "n": 3, "h": 5, "d": 7}, {"b": 2, "n": 3, "h": 5, "d": 8}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    rest = rest % (n * d);", "    if (d > 1) rest = rest % (n * d);"),
        ("    rest = rest % (n * d);", "    for (; rest >= n * d;) rest = rest - n * d;"),
    ],
)
def test_variables_that_a_branch_sets_keep_their_name(old: str, new: str) -> None:
    form = normal_form(make(PERMUTED.replace(old, new), PERMUTED_LAUNCH, **PERMUTED_SIZES))
    assert form is None or "rest2" not in device(form.site)


def test_template_arguments_of_a_call_are_those_that_it_names() -> None:
    source = HELPED.replace("template <typename T>", "template <typename A, typename T>").replace("float sum", "A sum")
    site = make(source.replace("    scaled(x", "    scaled<double>(x"), HELPED_LAUNCH, **HELPED_ROWS)
    assert "double sum = 0.0f;" in plain(site)
    assert_equal(site, found(site, "row_vectorize"), SMALL)
