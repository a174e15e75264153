"""Products that are tiled in shared memory already: what they compute is told from their staging."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from engine.rewrite.site import Site
from engine.rules import families, make_site
from engine.rules.matmul.matmul_tiled_form import untiled
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, host, make, one, propose

SIZES = ({"m": 2048, "n": 2048, "k": 1024},)
CHECK = ({"m": 1, "n": 2, "k": 1}, {"m": 7, "n": 129, "k": 33})
ELEMENTS = {"a": "m*k", "b": "k*n", "c": "m*n"}
LAUNCH = """
    dim3 block(TILE, TILE);
    dim3 grid((n + TILE - 1) / TILE, (m + TILE - 1) / TILE);
    gemm<<<grid, block>>>(a, b, c, m, n, k);
"""
TILED = """
#define TILE 16
// Tiles of both matrices in shared memory.
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    int row = blockIdx.y * TILE + threadIdx.y;
    int col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0.0f;
    for (int first = 0; first < k; first += TILE) {
        int a_col = first + threadIdx.x;
        int b_row = first + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = (row < m && a_col < k) ? a[row * k + a_col] : 0.0f;
        b_tile[threadIdx.y][threadIdx.x] = (b_row < k && col < n) ? b[b_row * n + col] : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) {
            sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];
        }
        __syncthreads();
    }
    // only what lies inside
    if (row < m && col < n) {
        c[row * n + col] = 0.5f * sum + 2.0f * c[row * n + col];
    }
}"""
STAGE_A = "a_tile[threadIdx.y][threadIdx.x] = (row < m && a_col < k) ? a[row * k + a_col] : 0.0f;"
STAGE_B = "b_tile[threadIdx.y][threadIdx.x] = (b_row < k && col < n) ? b[b_row * n + col] : 0.0f;"
STEP = "sum += a_tile[threadIdx.y][i] * b_tile[i][threadIdx.x];"


def site_of(source: str, launch: str = LAUNCH, newline: str = "\n") -> Site:
    return make(source, launch, sizes=SIZES, check=CHECK, elements=ELEMENTS, newline=newline)


def small(site: Site) -> Site:
    return one(site, "matmul_tile", bm=32, bk=32, tm=4)


def test_the_plain_loop_that_the_tiles_stand_for() -> None:
    found = untiled(site_of(TILED))
    assert found is not None
    assert device(found.site).partition("__global__")[2] == """ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    // only what lies inside
    if (row < m && col < n) {
        float sum = 0.0f;
        for (int i = 0; i < k; ++i) {
            sum += a[k * row + i] * b[i * n + col];
        }
        c[row * n + col] = 0.5f * sum + 2.0f * c[row * n + col];
    }
}"""  # fmt: skip


def test_tiles_and_launch_are_replaced() -> None:
    edited = one(site_of(TILED), "matmul_tile", bm=128, bn=128, bk=8, buffers=2)
    assert [(c.grid, c.block) for c in edited.configs] == [((16, 16, 1), (256, 1, 1))]
    code = device(edited)
    assert "// Tiles of both matrices in shared memory." in code
    assert "alignas(16) __shared__ float a_tile[2][tile_k][tile_m + 4];" in code
    assert code.count("__shared__") == 3  # the product's own: two tiles, and one for the results
    assert code.count("float sum = 0.0f;") == 1
    assert "threadIdx.y" not in code
    assert "sum += result;\n" in code
    assert "dim3 grid((n + 127) / 128, (m + 127) / 128);" in host(edited)


def test_every_tiling_and_choice_of_the_family_as_of_the_plain_form() -> None:
    site = site_of(TILED)
    naive = untiled(site)
    assert naive is not None
    found = propose(site, "matmul_tile")
    assert [p.parameters for p in found] == [p.parameters for p in propose(naive.site, "matmul_tile")]
    assert len(found) >= 8
    (family,) = families(site, only=["matmul_tile"])
    (other,) = families(naive.site, only=["matmul_tile"])
    assert (family.parameters, family.conditions) == (other.parameters, other.conditions)
    chosen = {"bm": 64, "bn": 32, "bk": 16, "tm": 4, "tn": 2, "buffers": 3, "copies": 1, "square": 1}
    made = family.make(chosen)
    assert made is not None
    compiles(after(site, made))
    compiles(after(site, found[0]))


def test_gives_the_same_results() -> None:
    site = site_of(TILED)
    edited = [small(site), one(site, "matmul_tile", bm=16)]
    sizes = ({"m": 1, "n": 2, "k": 1}, {"m": 70, "n": 68, "k": 36}, {"m": 33, "n": 65, "k": 17})
    assert_equal(site, edited, sizes, tolerance=1e-5)


TUTORIAL = """
const int TILE = 8;
__global__ void gemm(float* C, const float* A, const float* B, int N) {
    int bx = blockIdx.x, by = blockIdx.y;
    int tx = threadIdx.x;
    int ty = threadIdx.y;
    float value = 0;
    for (int t = 0; t < N / TILE; t++) {
        __shared__ float As[TILE][TILE], Bs[TILE][TILE];
        As[ty][tx] = A[(by * TILE + ty) * N + t * TILE + tx];
        Bs[ty][tx] = B[(t * blockDim.y + ty) * N + bx * TILE + tx];
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < blockDim.x; i++)
            value += As[ty][i] * Bs[i][tx];
        __syncthreads();
    }
    int start = N * TILE * by + TILE * bx;
    C[start + N * ty + tx] = value;
}"""
TUTORIAL_LAUNCH = """
    dim3 block(TILE, TILE);
    dim3 grid(N / TILE, N / TILE);
    gemm<<<grid, block>>>(C, A, B, N);
"""


def tutorial(source: str = TUTORIAL, check: tuple[int, ...] = (8, 40)) -> Site:
    return make(
        source, TUTORIAL_LAUNCH, sizes=({"N": 1024},), check=tuple({"N": n} for n in check),
        elements=dict.fromkeys("ABC", "N*N"),
    )  # fmt: skip


def test_without_guards_sizes_are_multiples_of_the_tile() -> None:
    site = tutorial()
    edited = small(site)
    assert "C[N * row + col] = value;" in device(edited)
    compiles(edited)
    assert_equal(site, [edited], ({"N": 8}, {"N": 40}), tolerance=1e-5)
    assert not propose(tutorial(check=(8, 41)), "matmul_tile")
    assert not propose(tutorial(check=(1024,)), "matmul_tile")  # of one size alone nobody knows which parameter it is


GOOD = {
    "if and else, counted tiles, a padded tile, an early return": """
#define TILE 16
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[TILE][TILE + 1];
    __shared__ float bs[TILE][TILE + 1];
    const int tx = threadIdx.x, ty = threadIdx.y;
    const unsigned int r = blockDim.y * blockIdx.y + ty;
    const unsigned int q = blockDim.x * blockIdx.x + tx;
    const int tiles = (k + TILE - 1) / TILE;
    float acc = 0.f;
    for (int t = 0; t < tiles; ++t) {
        if (r < m && t * TILE + tx < k) { as[ty][tx] = a[r * k + t * TILE + tx]; } else { as[ty][tx] = 0.f; }
        bs[ty][tx] = 0;
        if (t * TILE + ty < k && q < n) bs[ty][tx] = b[(t * TILE + ty) * n + q];
        __syncthreads();
        for (int i = 0; i < TILE; ++i) acc = fmaf(as[ty][i], bs[i][tx], acc);
        __syncthreads();
    }
    if (r >= m || q >= n) return;
    float old = c[r * n + q];  // what is there
    c[r * n + q] = acc > 0 ? acc + old : 0;
}""",
    "b transposed in memory and in its tile, folded tiles": """
#define TILE 16
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[TILE * TILE], bs[TILE * TILE];
    int row = blockIdx.y * blockDim.y + threadIdx.y, col = blockIdx.x * blockDim.x + threadIdx.x;
    int other = blockIdx.x * TILE + threadIdx.y;
    float acc = row < m && col < n ? c[row * n + col] : 0.0f;
    for (int t = 0; t < (k - 1) / TILE + 1; ++t) {
        int at = t * TILE + threadIdx.x;
        as[threadIdx.y * TILE + threadIdx.x] = row < m && at < k ? a[row * k + at] : 0.f;
        bs[threadIdx.x * TILE + threadIdx.y] = other < n && at < k ? b[other * k + at] : 0.f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) acc -= bs[i * TILE + threadIdx.x] * as[threadIdx.y * TILE + i];
        __syncthreads();
    }
    if (row < m && col < n) c[row * n + col] = acc;
}""",
    "a count rounded up in float": """
#define TILE 16
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    __shared__ float as[TILE][TILE], bs[TILE][TILE];
    int tx = threadIdx.x, ty = threadIdx.y;
    float acc = 0;
    for (int t = 0; t < ceil(k / (float)TILE); ++t) {
        if (blockIdx.y * TILE + ty < m && (t * TILE + tx) < k)
            as[ty][tx] = a[(blockIdx.y * TILE + ty) * k + t * TILE + tx];
        else
            as[ty][tx] = 0.0f;
        if (n > (blockIdx.x * TILE + tx) && k > (t * TILE + ty))
            bs[ty][tx] = b[(t * TILE + ty) * n + blockIdx.x * TILE + tx];
        else
            bs[ty][tx] = 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) acc += as[ty][i] * bs[i][tx];
        __syncthreads();
    }
    if (blockIdx.y * TILE + ty < m && blockIdx.x * TILE + tx < n)
        c[(blockIdx.y * TILE + ty) * n + (blockIdx.x * TILE + tx)] = acc;
}""",
    "only guards of the depth": TILED.replace("row < m && a_col < k", "a_col < k").replace("&& col < n) ?", ") ?"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_other_forms_give_the_same_results(name: str) -> None:
    site = site_of(GOOD[name])
    edited = small(site)
    compiles(edited)
    sizes = {"m": 32, "n": 48, "k": 36} if name == "only guards of the depth" else {"m": 70, "n": 68, "k": 36}
    assert_equal(site, [edited], (sizes,), tolerance=1e-5)


def test_half_is_converted_where_it_is_staged_or_where_it_is_used() -> None:
    halves = "#include <cuda_fp16.h>\n" + TILED.replace("const float*", "const half*")
    staged = halves.replace("a[row * k + a_col]", "__half2float(a[row * k + a_col])")
    staged = staged.replace("b[b_row * n + col]", "__half2float(b[b_row * n + col])")
    used = halves.replace("float a_tile", "half a_tile").replace("float b_tile", "half b_tile")
    used = used.replace(" : 0.0f", " : __float2half(0.0f)")
    used = used.replace(STEP, "sum += __half2float(a_tile[threadIdx.y][i]) * __half2float(b_tile[i][threadIdx.x]);")
    for source in (staged, used):
        edited = small(site_of(source))
        assert "__half2float(" in device(edited)
    compiles(edited)
    assert not propose(site_of(halves), "matmul_tile")  # converted without a word of it


def test_a_template_argument_as_the_extent() -> None:
    source = TILED.replace("#define TILE 16\n", "").replace("__global__", "template <int TILE>\n__global__")
    launch = LAUNCH.replace("TILE", "16").replace("gemm<<<", "gemm<16><<<")
    site = site_of(source, launch)
    step = replace(site.spec.steps[0], template_args="16")
    known = make_site(site.program, replace(site.spec, steps=(step,)))
    compiles(small(known), "gemm<16>")
    assert not propose(site, "matmul_tile")  # nobody knows the extent


def test_batches_and_crlf() -> None:
    source = TILED.replace("a[row", "a[blockIdx.z * m * k + row").replace("? b[b_row", "? b[blockIdx.z * k * n + b_row")
    source = source.replace("c[row", "c[blockIdx.z * m * n + row")
    launch = LAUNCH.replace("/ TILE);", "/ TILE, k);")
    edited = small(site_of(source, launch, newline="\r\n"))
    assert "b + (blockIdx.z * k * n)" in device(edited)
    assert edited.configs[0].grid == (64, 64, 1024)
    assert edited.program.data.count(b"\r\n") == edited.program.data.count(b"\n")
    compiles(edited)


def test_the_kernel_of_the_suite() -> None:
    text = (Path(__file__).parents[3] / "benchmarks/suite/gemm_tiled.cu").read_text()
    kernel = text[text.index("#define TILE") : text.index("void gemm_tiled(")]
    kernel = re.sub(r"^// optiml.*\n", "", kernel, flags=re.MULTILINE)
    launch = LAUNCH.replace(
        "gemm<<<grid, block>>>(a, b, c, m", "gemm_tiled_kernel<<<grid, block>>>(a, b, c, alpha, beta, m"
    )
    site = site_of(kernel, launch)
    assert "c[row * n + col] = alpha * sum + beta * c[row * n + col];" in device(small(site))


FIXED = LAUNCH.replace("TILE", "16")
BARRIER = "        __syncthreads();\n"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (STAGE_B + "\n" + BARRIER, STAGE_B + "\n"),
        ("        }\n" + BARRIER, "        }\n"),
        (STAGE_B + "\n" + BARRIER, STAGE_B + "\n        __syncwarp();\n"),
        (STAGE_A, STAGE_A + BARRIER),
        ("// only", "sum += a_tile[0][threadIdx.x]; // only"),
        ("// only", "if (sum > 2) return; // only"),
        ("c[row * n + col] = 0.5f", "c[row * n + col] = a_tile[0][0]"),
        ("c[row * n + col] = 0.5f", "c[row * n + col] = threadIdx.x"),
        ("c[row * n + col] = 0.5f", "c[row * n + threadIdx.x] = 0.5f"),
        (STEP, STEP.replace("a_tile[threadIdx.y][i]", "a_tile[threadIdx.x][i]")),
        (STEP, STEP.replace("a_tile[threadIdx.y][i]", "a_tile[i][threadIdx.y]")),
        (STEP, STEP.replace("a_tile[threadIdx.y][i]", "a_tile[threadIdx.y][i + 1]")),
        (STEP, STEP.replace("a_tile[threadIdx.y][i]", "a_tile[threadIdx.y][threadIdx.x]")),
        (STEP, STEP.replace("b_tile[i]", "b_tile[TILE - 1 - i]")),
        (STEP, STEP.replace("sum +=", "sum += i *")),
        (STEP, STEP.replace("sum +=", "sum =")),
        (STEP, STEP + " a_tile[threadIdx.y][i] = 0;"),
        (STEP, STEP.replace("sum", "c[first]")),
        (STEP, STEP.replace("sum", "c[threadIdx.y]")),
        (STEP, "if (i != 3) " + STEP),
        (STEP, STEP + " if (sum > 9) break;"),
        (STEP, "sum += a_tile[threadIdx.y][i] * a_tile[threadIdx.y][i];"),
        (STAGE_A, STAGE_A.replace("0.0f", "1.0f")),
        (STAGE_A, STAGE_A.replace("row < m", "row < n")),
        (STAGE_A, STAGE_A.replace("a_col < k", "a_col < k - 1")),
        (STAGE_A, STAGE_A.replace("a_col < k", "a_col <= k")),
        (STAGE_A, STAGE_A.replace("a_col < k", "a_col < n")),
        (STAGE_A, STAGE_A.replace("&& a_col < k", "|| a_col < k")),
        (STAGE_A, STAGE_A.replace("&& a_col < k", "&& a_col < k && a_col != 5")),
        (STAGE_A, STAGE_A.replace("&& a_col < k", "&& a_col < k && col < n")),
        (STAGE_A, STAGE_A.replace("row < m && a_col < k", "row < m")),  # reads what is not there
        (STAGE_A, STAGE_A.replace("a[row * k + a_col]", "a[row * k + 2 * a_col]")),
        (STAGE_A, STAGE_A.replace("a[row * k + a_col]", "a[row * k + threadIdx.x]")),
        (STAGE_A, STAGE_A.replace("a[row * k + a_col]", "2.0f * a[row * k + a_col]")),
        (STAGE_A, STAGE_A.replace("a[row * k + a_col]", "c[row * k + a_col]")),
        (STAGE_A, STAGE_A.replace("[threadIdx.y][threadIdx.x]", "[threadIdx.y][threadIdx.y]")),
        (STAGE_A, STAGE_A.replace("[threadIdx.y][threadIdx.x]", "[threadIdx.y][threadIdx.x ^ 1]")),
        (STAGE_A, STAGE_A.replace(" = (", " += (")),
        (STAGE_A, STAGE_A + STAGE_A.replace("a[row", "b[row")),
        (STAGE_A, "if (threadIdx.x < 8) " + STAGE_A),
        (STAGE_A, STAGE_A + " m = m - 1;"),
        (STAGE_A, STAGE_A + " c[0] = 1.0f;"),
        ("[TILE][TILE];\n    __shared__ float b", "[TILE][8];\n    __shared__ float b"),
        ("    float sum", "    __shared__ float more[4];\n    float sum"),
        ("float a_tile", "volatile float a_tile"),
        ("float a_tile", "double a_tile"),
        ("#define TILE 16", "#define TILE 8"),  # the launch below has blocks of 16 x 16
        ("first += TILE", "first += 8"),
        ("first += TILE", "first += 2 * TILE"),
        ("int first = 0", "int first = TILE"),
        ("first < k;", "first < k + 1;"),
        ("i < TILE", "i < TILE - 1"),
        ("int i = 0", "int i = 1"),
        ("int row = blockIdx.y * TILE", "int row = blockIdx.y * 8"),
        ("float sum = 0.0f;", "float sum = 0.0f; int k2 = k; k = 5;"),
        ("float sum = 0.0f;", "float sum = 0.0f; if (row >= m) return;"),
        ("float sum = 0.0f;", "float sum = threadIdx.x;"),
        ("float sum = 0.0f;", "float sum = row < m ? c[row * n] : 0.0f;"),  # read by all before one writes it
        ("row < m && col < n) {", "row < m) {"),
        ("const float* a,", "float* a,"),
    ],
)  # fmt: skip
def test_nothing_for_what_is_no_such_product(old: str, new: str) -> None:
    assert old in TILED
    source = TILED.replace(old, new)
    if old == "const float* a,":
        source = source.replace("col < n) {", "col < n) {\n        a[row] = 1;")
    assert not propose(site_of(source, FIXED), "matmul_tile")


def test_the_same_launch_with_the_product() -> None:
    assert small(site_of(TILED, FIXED))


@pytest.mark.parametrize(
    "launch",
    ["", LAUNCH.replace("(a, b, c", "(a, c, c"), LAUNCH.replace("block(TILE, TILE)", "block(8, 8)"),
     LAUNCH.replace("block(TILE, TILE)", "block(TILE, 8)"), LAUNCH.replace("(m + TILE - 1)", "m"),
     LAUNCH.replace("block(TILE, TILE)", "block(TILE * TILE)")],
)  # fmt: skip
def test_nothing_where_the_launch_is_another(launch: str) -> None:
    assert not propose(site_of(TILED, launch), "matmul_tile")
