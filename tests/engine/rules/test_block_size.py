import pytest

from engine.spec.launch_config import evaluate
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, after, compiles, device, host, make, one, propose

PLANE = """
__global__ void copy(const float* x, float* y, int rows, int cols) {
    const int c = threadIdx.x + blockDim.x * blockIdx.x, r = blockIdx.y * blockDim.y + threadIdx.y;
    if (r >= rows || c >= cols) return;
    y[r * cols + c] = x[r * cols + c];
}
"""
PLANE_LAUNCH = """
    dim3 block(16, 16);
    dim3 grid((cols + block.x - 1) / block.x, (rows + block.y - 1) / block.y);
    copy<<<grid, block>>>(x, y, rows, cols);
"""
PLANE_SIZES = {
    "sizes": [{"rows": 4096, "cols": 5000}],
    "check": [{"rows": 1, "cols": 1}, {"rows": 7, "cols": 129}],
    "elements": {"x": "rows*cols", "y": "rows*cols"},
}


@pytest.mark.parametrize("attribute", ["__cluster_dims__(2, 1, 1)", "__block_size__((256))"])
def test_nothing_where_the_kernels_head_fixes_the_launch(attribute: str) -> None:
    site = make(SCALE.replace("__global__ void", f"__global__ void {attribute}"), SCALE_LAUNCH)
    assert site.kernel.attributes
    assert site.sound
    assert not propose(site, "block_size")


def test_line_of_threads() -> None:
    site = make(SCALE, SCALE_LAUNCH)
    assert {p.parameters["x"] for p in propose(site, "block_size")} == {64, 128, 512, 1024}
    edited = one(site, "block_size", x=512)
    assert edited.configs[0].block == (512, 1, 1)
    assert edited.configs[0].grid == ((1 << 24) // 512, 1, 1)
    assert device(edited) == device(site)


def test_plane_of_threads_follows_both_bounds() -> None:
    edited = one(make(PLANE, PLANE_LAUNCH, **PLANE_SIZES), "block_size", x=32, y=8)
    assert edited.configs[0].block == (32, 8, 1)
    assert edited.configs[0].grid == (157, 512, 1)


def test_no_grid_beyond_what_a_launch_takes() -> None:
    """Blocks of one row each: 67,668 rows, which the original's launch takes, would be too many blocks in y."""
    shapes = {
        (p.parameters["x"], p.parameters["y"]) for p in propose(make(PLANE, PLANE_LAUNCH, **PLANE_SIZES), "block_size")
    }
    assert (256, 1) not in shapes
    assert {(32, 8), (128, 2)} <= shapes
    one_each = PLANE_LAUNCH.replace("16, 16", "64, 1")  # as many as the original's are no worse
    shapes = {
        (p.parameters["x"], p.parameters["y"]) for p in propose(make(PLANE, one_each, **PLANE_SIZES), "block_size")
    }
    assert (256, 1) in shapes


def test_constant_in_the_index_becomes_the_block_dimension() -> None:
    source = "#define BLOCK 256\n" + SCALE.replace("blockDim.x", "BLOCK")
    edited = one(make(source, "    scale<<<(n + BLOCK - 1) / BLOCK, BLOCK>>>(x, y, a, n);"), "block_size", x=128)
    assert edited.configs[0].block == (128, 1, 1)
    assert edited.configs[0].grid == ((1 << 24) // 128, 1, 1)
    assert "blockIdx.x * blockDim.x + threadIdx.x" in device(edited)
    compiles(edited)


def test_block_that_works_together_changes_by_its_constant() -> None:
    site = make(TOGETHER, TOGETHER_LAUNCH)
    for proposal in propose(site, "block_size"):
        assert proposal.parameters["x"] in (128, 512, 1024)
    edited = one(site, "block_size", x=512)
    assert "constexpr int kBlock = 512;" in device(edited)
    assert edited.configs[0].block == (512, 1, 1)
    compiles(edited)


def test_nothing_where_the_constant_serves_something_else() -> None:
    other = "__global__ void other(float* x) { x[kBlock] = 0.0f; }"
    assert not propose(make(TOGETHER + other, TOGETHER_LAUNCH), "block_size")
    assert not propose(make(TOGETHER, TOGETHER_LAUNCH + "\n    note(kBlock);"), "block_size")


TOGETHER = """
constexpr int kBlock = 256;
__global__ void last(const float* x, float* y, int n) {
    __shared__ float s[kBlock];
    int i = blockIdx.x * kBlock + threadIdx.x;
    s[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) y[i] = s[kBlock - 1 - threadIdx.x];
}
"""
TOGETHER_LAUNCH = "    last<<<(n + kBlock - 1) / kBlock, kBlock>>>(x, y, n);"


def test_nothing_where_the_block_is_a_literal_of_the_kernel() -> None:
    source = """
__global__ void last(const float* x, float* y, int n) {
    __shared__ float s[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) s[threadIdx.x] = x[i];
    __syncthreads();
    if (i < n) y[i] = s[threadIdx.x];
}
"""
    assert not propose(make(source, "    last<<<(n + 255) / 256, 256>>>(x, y, n);"), "block_size")


@pytest.mark.parametrize(
    "guard",
    [
        "if (i < n && threadIdx.x > 3)",  # a look at the place in the block
        "if (i < n / gridDim.x)",
        "if (i != n)",  # no bound
        "",
    ],
)
def test_nothing_without_a_plain_bound(guard: str) -> None:
    source = SCALE.replace("if (i < n)", guard)
    assert not propose(make(source, SCALE_LAUNCH), "block_size")


def test_nothing_where_the_launch_leaves_elements_out() -> None:
    assert not propose(make(SCALE, "    scale<<<n / 256, 256>>>(x, y, a, n);"), "block_size")


def test_nothing_where_the_launch_cannot_be_seen() -> None:
    assert not propose(make(SCALE, ""), "block_size")


def test_spelled_otherwise() -> None:
    source = SCALE.replace(
        "int i = blockIdx.x * blockDim.x + threadIdx.x;",
        "const size_t i = threadIdx.x + (size_t)blockDim.x * blockIdx.x;",
    ).replace("if (i < n)", "if (n > i)")
    assert one(make(source, SCALE_LAUNCH), "block_size", x=64).configs[0].threads == 64


def test_works_after_coarsening() -> None:
    coarse = one(make(SCALE, SCALE_LAUNCH), "coarsen", factor=4, form="grid")
    assert "gridDim" in device(coarse)
    assert host(coarse).count("<<<") == 1


def test_a_warp_per_row_keeps_its_block_where_the_grid_counts_warps() -> None:
    # The search found this one: with 128 threads a block covers four rows, but the grid stayed at eight rows a block.
    source = """
__global__ void sums(const float* x, float* y, int rows, int cols) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int c = threadIdx.x % 32; c < cols; c += 32) sum += x[row * cols + c];
    for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, o);
    if (threadIdx.x % 32 == 0) y[row] = sum;
}
"""
    launch = "    int threads = 256;\n    sums<<<(rows + 7) / 8, threads>>>(x, y, rows, cols);"
    assert not propose(make(source, launch, **PLANE_SIZES), "block_size")


ROW = """
__global__ void row(const float* x, float* y, int rows, int cols) {
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        y[blockIdx.x * cols + c] = 2.0f * x[blockIdx.x * cols + c];
    }
}
"""
ROW_LAUNCH = "    row<<<rows, 256>>>(x, y, rows, cols);"
ROWS = {
    "sizes": [{"rows": 4096, "cols": 100}],
    "check": [{"rows": 3, "cols": 129}],
    "elements": {"x": "rows*cols", "y": "rows*cols"},
}


def test_threads_that_share_out_a_row_may_be_any_number() -> None:
    site = make(ROW, ROW_LAUNCH, **ROWS)
    found = propose(site, "block_size")
    assert (
        max(found, key=lambda p: p.prior).parameters["x"] == 128
    )  # the least that leaves no thread without work twice
    edited = [after(site, p) for p in found]
    assert [c.grid for c in edited[0].configs] == [(4096, 1, 1)]
    assert "row<<<rows, 128>>>" in edited[0].program.data.decode()
    assert_equal(site, edited, [{"rows": 3, "cols": 129}, {"rows": 2, "cols": 7}])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        y[", "        if (threadIdx.x == 0) y["),
        ("    for (", "    __shared__ float s[2]; s[0] = 0.0f;\n    for ("),
        ("c += blockDim.x", "c += 256"),
        ("c < cols;", "c < cols && blockDim.x > 1;"),
    ],
)
def test_threads_whose_number_serves_anything_else_stay(old: str, new: str) -> None:
    assert not propose(make(ROW.replace(old, new), ROW_LAUNCH, **ROWS), "block_size")


HEADS = """
__global__ void heads(const float* x, float* y, float* z, int rows, int cols) {
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float factor = cosf(0.1f * c);
        for (int h = threadIdx.y; h < 12; h += blockDim.y) {
            y[(blockIdx.x * 12 + h) * cols + c] = factor * x[(blockIdx.x * 12 + h) * cols + c];
        }
    }
    for (int c = 16 + threadIdx.x; c < cols; c += blockDim.x) {
        z[blockIdx.x * cols + c] = 1.0f;
    }
}
"""


def test_planes_of_threads_that_share_out_rows_and_heads() -> None:
    elements = {"x": "12*rows*cols", "y": "12*rows*cols", "z": "rows*cols"}
    site = make(HEADS, "    heads<<<rows, dim3(32, 8)>>>(x, y, z, rows, cols);", **{**ROWS, "elements": elements})
    edited = [after(site, p) for p in propose(site, "block_size")]
    assert {c.block for e in edited for c in e.configs} >= {(32, 4, 1), (64, 4, 1), (32, 32, 1)}
    assert_equal(site, edited[:4], [{"rows": 3, "cols": 70}])


@pytest.mark.parametrize("rule", ["block_size", "coarsen"])
def test_the_grid_of_an_interior_is_never_empty(rule: str) -> None:
    """`comp_data` of OpenCV: the guard ends at `cols - 1`, the launch has a block for one column as well, and a grid of 0 is an error."""
    inner = PLANE.replace("if (r >= rows || c >= cols) return;", "if (r >= rows - 1 || c >= cols - 1 || r < 1) return;")
    inner = inner.replace("blockIdx.x, r =", "blockIdx.x;\n    const int r =")
    site = make(inner, PLANE_LAUNCH, **PLANE_SIZES)
    found = propose(site, rule)
    assert found
    for proposal in found:
        grid = evaluate(after(site, proposal).program, site.spec, 0, {"rows": 1, "cols": 1, "n": 1}).grid
        assert min(grid) == 1
    # Where the author leaves them out, the grid is the interior's.
    fewer = PLANE_LAUNCH.replace("(cols +", "(cols - 1 +")
    (wide,) = propose(
        make(inner, fewer, **{**PLANE_SIZES, "check": [{"rows": 7, "cols": 129}]}), "block_size", x=32, y=8
    )
    assert "((cols - 1) + 31) / 32, (rows + 7) / 8" in host(after(make(inner, fewer, **PLANE_SIZES), wide))


NARROW = """
#define EACH 4
__global__ void narrow(const float* __restrict__ x, signed char* __restrict__ y) {
    int first = blockIdx.x * EACH * 32 + threadIdx.x * EACH;
    for (int j = 0; j < EACH; ++j) y[first + j] = (signed char)(4.0f * x[first + j]);
}
"""
NARROW_LAUNCH = """
    dim3 threads(32), grid;
    grid.x = n / (EACH * 32);
    narrow<<<grid, threads>>>(x, y);
"""
COLUMNS = """
__global__ void add(float* x, const float* v, int rows, int cols) {
    int c = blockIdx.x * 64 + threadIdx.x * 2;
    if (c >= cols) return;
    for (int r = blockIdx.y * 16; r < min((int)(blockIdx.y + 1) * 16, rows); ++r) {
        x[r * cols + c] += v[c];
        x[r * cols + c + 1] += v[c + 1];
    }
}
"""
COLUMNS_LAUNCH = "    add<<<dim3((cols + 63) / 64, (rows + 15) / 16), 32>>>(x, v, rows, cols);"


def test_small_blocks_of_a_kernel_that_is_given_no_size() -> None:
    """`matrix_fp16_to_fp8_kernel` of exllamav2: whole blocks of one warp, and nothing in the kernel says how many."""
    sizes = {"sizes": [{"n": 1 << 24}], "check": [{"n": 128}, {"n": 1024}], "host": "int n"}
    site = make(NARROW, NARROW_LAUNCH, **sizes)
    edited = one(site, "block_size", y=8)
    assert "const unsigned int block = blockIdx.x * blockDim.y + threadIdx.y;" in device(edited)
    assert "int first = block * EACH * 32 + threadIdx.x * EACH;" in device(edited)
    assert "narrow<<<dim3(grid.x / (grid.x % 8 == 0 ? 8 : 1), grid.y, grid.z)," in host(edited)
    assert "dim3(threads.x, grid.x % 8 == 0 ? 8 : 1)>>>" in host(edited)
    assert edited.configs[0].block == (32, 8, 1)
    assert edited.configs[0].grid == ((1 << 24) // 1024, 1, 1)
    compiles(edited)
    assert_equal(site, [edited], [{"n": 128}, {"n": 384}, {"n": 1024}, {"n": 5120}], tolerance=0)


def test_small_blocks_whose_number_the_kernel_knows() -> None:
    """`cuda_vector_add_kernel` of exllamav2: a warp for each two columns of 32 threads."""
    elements = {"x": "rows*cols", "v": "cols"}
    cases = {"sizes": [{"rows": 4096, "cols": 4096}], "check": [{"rows": 3, "cols": 10}, {"rows": 33, "cols": 640}]}
    site = make(COLUMNS, COLUMNS_LAUNCH, **cases, elements=elements)
    edited = one(site, "block_size", y=4)
    assert "if (block >= (cols + 63) / 64) return;" in device(edited)
    assert "add<<<dim3((((cols + 63) / 64) + 3) / 4, (rows + 15) / 16), dim3(32, 4)>>>" in host(edited)
    compiles(edited)
    sizes = [{"rows": rows, "cols": cols} for rows, cols in ((1, 2), (17, 66), (40, 320))]
    assert_equal(site, [edited], sizes, tolerance=0, races=True)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("32>>>", "128>>>"),
        ("if (c >= cols) return;", "if (c >= cols) return; __syncthreads();"),
        ("int c = ", "int c = gridDim.x * 0 + "),
        ("int c = ", "int c = threadIdx.y + "),
        ("int c = ", "__shared__ float s[32]; s[threadIdx.x] = 0.0f; int c = "),
        ("(cols + 63) / 64", "blocks_of(cols++)"),
        (
            "(cols + 63) / 64, (rows + 15) / 16), 32>",
            "(cols + 2 * threads - 1) / (2 * threads), (rows + 15) / 16), threads>",
        ),
    ],
)
def test_nothing_merges_blocks_that_are_large_or_work_together(old: str, new: str) -> None:
    elements = {"x": "rows*cols", "v": "cols"}
    sizes = {
        "sizes": [{"rows": 4096, "cols": 4096, "threads": 32}],
        "check": [{"rows": 33, "cols": 640, "threads": 32}],
    }
    source, launch = COLUMNS.replace(old, new), COLUMNS_LAUNCH.replace(old, new)
    site = make(source.replace("* 64", "* blockDim.x * 2"), launch, **sizes, elements=elements, host="int threads")
    assert not [p for p in propose(site, "block_size") if p.parameters.get("y", 1) != 1]


def test_a_macro_of_the_authors_in_the_grid_stays() -> None:
    """`quantize_rtn_kernel` of exllamav2: `dim3 blocks(DIVIDE(n, 64));` was rewritten, which the screening refuses."""
    launch = """
    dim3 threads(64, 1);
    dim3 blocks(DIVIDE(n, 64), 1);
    scale<<<blocks, threads>>>(x, y, a, n);
"""
    site = make("#define DIVIDE(x, size) (((x) + (size) - 1) / (size))" + SCALE, launch)
    (proposal,) = propose(site, "block_size", x=256)
    assert site.changes_only_kernels(proposal.edits)
    assert "dim3 blocks(DIVIDE(n, 64), 1);" in host(after(site, proposal))
    assert "scale<<<(n + 255) / 256, threads>>>" in host(after(site, proposal))
    (plain,) = propose(make(SCALE, launch.replace("DIVIDE(n, 64)", "(n + 63) / 64")), "block_size", x=256)
    assert "dim3 blocks((n + 255) / 256);" in host(
        after(make(SCALE, launch.replace("DIVIDE(n, 64)", "(n + 63) / 64")), plain)
    )
