import re

import pytest

from engine.rewrite.site import Site
from engine.rules import rules
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, machine_code, make, one, propose

SIZES = ({"m": 2048, "n": 2048, "k": 2048},)
CHECK = ({"m": 1, "n": 1, "k": 1}, {"m": 7, "n": 129, "k": 33})
ELEMENTS = {"a": "m*k", "b": "k*n", "c": "m*n"}
LAUNCH = """
    dim3 block(16, 16);
    dim3 grid((n + 15) / 16, (m + 15) / 16);
    gemm<<<grid, block>>>(a, b, c, m, n, k);
"""
PLAIN = """
// One thread per element.
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (row < m && col < n) {
        float sum = 0.0f;
        for (int i = 0; i < k; ++i) {
            sum += a[row * k + i] * b[i * n + col];
        }
        c[row * n + col] = sum;
    }
}"""
AWKWARD = ({"m": 1, "n": 1, "k": 1}, {"m": 70, "n": 68, "k": 36}, {"m": 33, "n": 65, "k": 17})


def site_of(source: str, launch: str = LAUNCH, newline: str = "\n") -> Site:
    return make(source, launch, sizes=SIZES, check=CHECK, elements=ELEMENTS, newline=newline)


def some(site: Site) -> list[Site]:
    """A pipelined, a plain and a square tiling."""
    chosen = [(64, 4, 2), (64, 4, 1), (16, 1, 1)]
    found = {(int(p.parameters["bm"]), int(p.parameters["tm"]), int(p.parameters["buffers"])): p
             for p in propose(site, "matmul_tile")}  # fmt: skip
    return [after(site, found[key]) for key in chosen]


def test_tiles_and_launch() -> None:
    edited = one(site_of(PLAIN), "matmul_tile", bm=128, bn=128, bk=8, buffers=2)
    assert [(c.grid, c.block) for c in edited.configs] == [((16, 16, 1), (256, 1, 1))]
    code = device(edited)
    assert "// One thread per element." in code
    assert "__launch_bounds__(256, 2)" in code  # of 147 registers a multiprocessor holds one block alone: slower
    assert "alignas(16) __shared__ float a_tile[2][tile_k][tile_m + 4];" in code
    assert code.endswith(
        """    #pragma unroll
    for (int i2 = 0; i2 < thread_m; ++i2) {
        #pragma unroll
        for (int j = 0; j < thread_n; j += 4) {
            __syncwarp();  // neighbouring threads take on neighbouring results
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                out_tile[tid / 32][tid % 32 * 4 + e] = sums[i2][j + e];
            }
            __syncwarp();
            #pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int at = tid % 32 + e * 32;
                int row = first_row + i2 / 4 * 64 + (tid / 64 * 4 + at / 32) * 4 + i2 % 4;
                int col = first_col + j / 4 * 64 + tid / 32 % 2 * 32 + at % 32;
                const float result = out_tile[tid / 32][at];
                if (row < m && col < n) {
                    float sum = 0.0f;
                    sum += result;
                    c[row * n + col] = sum;
                }
            }
        }
    }
}"""
    )


def test_results_of_narrow_tiles_are_used_where_they_are() -> None:
    code = device(one(site_of(PLAIN), "matmul_tile", bm=32, bk=32, tm=4))
    assert "out_tile" not in code
    assert "                sum += sums[i2][j];\n                c[row * n + col] = sum;" in code


def test_a_signature_of_several_lines_does_not_indent_the_body() -> None:
    edited = one(site_of(PLAIN.replace("float* c, ", "float* c,\n                          ")), "matmul_tile", bm=16)
    assert "\n    const int tid = threadIdx.x;" in device(edited)


def test_every_tiling_compiles() -> None:
    site = site_of(PLAIN)
    found = propose(site, "matmul_tile")
    assert len(found) >= 8
    for proposal in found:
        assert set(proposal.parameters) == {"bm", "bn", "bk", "tm", "tn", "buffers", "copies", "square", "tensor"}
        compiles(after(site, proposal))


def test_machine_code_of_the_large_tile() -> None:
    code = machine_code(one(site_of(PLAIN), "matmul_tile", bm=128, bn=128, bk=8, buffers=2))
    assert len(re.findall(r"\bFFMA\b", code)) >= 512
    assert len(re.findall(r"\bLDS\.128\b", code)) <= 32 + 4  # the first tile comes before the loop
    product = code[: code.rindex("FFMA")]
    assert not re.findall(r"\bLDS\b(?!\.128)", product)
    assert len(re.findall(r"\bLDS\b(?!\.128)", code)) == 64  # a result each, from the thread that has it
    assert len(re.findall(r"\bLDG\.E\.128\b", code)) == 2 * 2
    assert not re.findall(r"\b(?:LDL|STL)\b", code)  # no spills


@pytest.mark.parametrize("sizes", AWKWARD)
def test_gives_the_same_results(sizes: dict[str, int]) -> None:
    site = site_of(PLAIN)
    assert_equal(site, some(site), (sizes,), tolerance=1e-5)


# How a tile's threads lie in a warp: 4 x 8, 2 x 16, 8 x 4, 1 x 32, and half a row.
LAYOUTS = {
    "4x8": {"bm": 64, "bn": 64, "bk": 8, "tm": 4, "tn": 4, "buffers": 1, "square": 1},
    "2x16": {"bm": 64, "bn": 64, "bk": 8, "tm": 4, "tn": 4, "buffers": 1, "square": 0},
    "8x4": {"bm": 64, "bn": 64, "bk": 8, "tm": 4, "tn": 16, "buffers": 1, "square": 0},
    "1x32": {"bm": 32, "bn": 128, "bk": 8, "tm": 4, "tn": 4, "buffers": 1, "square": 0},
    "half a row": {"bm": 32, "bn": 256, "bk": 8, "tm": 8, "tn": 4, "buffers": 1, "square": 0},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_that_a_warp_exchanges_come_to_their_places(layout: str) -> None:
    site = site_of(PLAIN)
    (rule,) = [r for r in rules() if r.name == "matmul_tile"]
    (family,) = rule.families(site)
    made = family.make({"copies": 0, **LAYOUTS[layout]})
    assert made is not None
    edited = after(site, made)
    assert "out_tile" in device(edited)
    assert_equal(site, [edited], ({"m": 67, "n": 261, "k": 5},), tolerance=1e-5, races=layout == "8x4")


TRANSPOSED = PLAIN.replace("a[row * k + i] * b[i * n + col]", "a[i * m + row] * b[col * k + i]")
PITCHED = PLAIN.replace("int m,", "int pitch, int m,").replace("b[i * n + col]", "b[i * pitch + col]")
PITCHED_LAUNCH = LAUNCH.replace("c, m", "c, pitch, m")


@pytest.mark.parametrize("source", [PLAIN, TRANSPOSED, PITCHED])
def test_places_that_a_thread_keeps_are_in_the_matrix(source: str) -> None:
    """Vectors beyond it are its last ones; a tile of less depth, rows of no whole vectors and a pitch are loaded otherwise."""
    cases = [{"m": 70, "n": 132, "k": 20}, {"m": 68, "n": 130, "k": 16}, {"m": 33, "n": 65, "k": 17}]
    cases = [{**case, "pitch": -(-case["n"] // 4) * 4} for case in cases]
    launch, elements = (PITCHED_LAUNCH if source == PITCHED else LAUNCH), {**ELEMENTS, "b": "k*pitch"}
    site = make(source, launch, sizes=[{**SIZES[0], "pitch": 2048}], check=cases, elements=elements)
    (rule,) = [r for r in rules() if r.name == "matmul_tile"]
    (family,) = rule.families(site)
    point = {"bm": 64, "bn": 128, "bk": 8, "tm": 8, "tn": 16, "buffers": 2, "copies": 0, "square": 1}
    made = family.make(point)
    assert made is not None
    edited = after(site, made)
    assert "b_from[v]" in device(edited)
    compiles(edited)
    assert_equal(site, [edited], cases, tolerance=1e-5)


@pytest.mark.slow
def test_large_tiles_give_the_same_results_without_races() -> None:
    site = site_of(PLAIN)
    large = [
        one(site, "matmul_tile", bm=128, bn=128, bk=8, buffers=2, tensor=0),
        one(site, "matmul_tile", copies=1, tensor=0),
    ]
    assert_equal(site, large, ({"m": 130, "n": 132, "k": 20},), tolerance=1e-5, races=True)


BATCHED = """
__global__ void gemms(const float* q, const float* k, float* out, float scale, int heads, int n, int dim) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    int head = blockIdx.z;
    if (row >= n || col >= n) {
        return;
    }
    float score = -10000.0f;
    if (col <= row) {
        float sum = 0.0f;
        for (int d = 0; d < dim; ++d) {
            sum += q[(head * n + row) * dim + d] * k[(head * n + col) * dim + d];
        }
        score = sum * scale;
    }
    out[(head * n + row) * n + col] = score;
}
"""
BATCHED_LAUNCH = """
    dim3 block(16, 16);
    dim3 grid((n + 15) / 16, (n + 15) / 16, heads);
    gemms<<<grid, block>>>(q, k, out, scale, heads, n, dim);
"""


def test_a_product_for_each_block_of_the_third_axis_under_a_mask() -> None:
    size = "heads*n*n"
    site = make(
        BATCHED,
        BATCHED_LAUNCH,
        sizes=({"heads": 16, "n": 1024, "dim": 64},),
        check=({"heads": 3, "n": 20, "dim": 7},),
        elements={"q": "heads*n*dim", "k": "heads*n*dim", "out": size},
    )
    edited = one(site, "matmul_tile", bm=64, tm=4, buffers=2)
    assert edited.configs[0].grid == (16, 16, 16)
    assert "q + (blockIdx.z * dim * n)" in device(edited)
    compiles(edited)
    assert_equal(site, [edited], ({"heads": 3, "n": 20, "dim": 7},))


SMALL = """
__global__ void small(const float* a, const float* b, float* c, int batch, int size) {
    int i = blockIdx.x;
    int col = threadIdx.x;
    int row = threadIdx.y;
    float sum = 0.0f;
    for (int k = 0; k < size; ++k) {
        sum += a[i * size * size + row * size + k] * b[i * size * size + k * size + col];
    }
    c[i * size * size + row * size + col] = sum;
}
"""


def small(source: str) -> Site:
    elements = dict.fromkeys("abc", "batch*size*size")
    return make(
        source,
        "    dim3 block(size, size);\n    small<<<batch, block>>>(a, b, c, batch, size);",
        sizes=({"batch": 8192, "size": 32},),
        check=({"batch": 3, "size": 7},),
        elements=elements,
    )


def test_a_small_product_for_each_block() -> None:
    site = small(SMALL)
    found = propose(site, "matmul_tile")
    assert {p.parameters["bm"] for p in found} == {32}
    for bk, blocks in ((16, 16), (32, 12)):
        edited = one(site, "matmul_tile", tm=4, bk=bk)
        assert edited.configs[0].grid == (8192, 1, 1)
        assert edited.configs[0].block == (64, 1, 1)
        assert f"__launch_bounds__(64, {blocks})" in device(edited)
        code = machine_code(edited)
        assert len(re.findall(r"\bSTG\.E\.128\b", code)) == 4
        assert not re.findall(r"\b(?:LDL|STL)\b", code)  # no spills
        # The sizes: rows that are no whole vectors, vectors beyond which a row has none, whole tiles.
        assert_equal(site, [edited], ({"batch": 3, "size": 7}, {"batch": 3, "size": 20}, {"batch": 2, "size": 32}))
    assert not propose(small(SMALL.replace("row = threadIdx.y", "row = threadIdx.y + 1")), "matmul_tile")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("] = sum;", "] += sum;"),
        ("* size + col] = sum;", "* size + col] = sum + c[0];"),  # what another thread stores
        ("row * size + col] = sum;", "col * size + row] = sum;"),  # columns are apart
        ("] = sum;", "] = sum; if (sum > 3.0f) { c[0] = 1.0f; }"),
    ],
)
def test_results_of_a_small_product_that_are_stored_otherwise(old: str, new: str) -> None:
    assert SMALL.count(old) == 1
    for edited in (
        after(small(s), p) for s in [SMALL.replace(old, new)] for p in propose(small(s), "matmul_tile", tm=4)
    ):
        assert "stores_aligned" not in device(edited)
        compiles(edited)


GOOD = {
    "both transposed, early return, scaled": """
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    const int r = threadIdx.y + blockDim.y * blockIdx.y;
    const int q = threadIdx.x + blockDim.x * blockIdx.x;
    if (r >= m || q >= n) return;
    float acc = 0.f;
    #pragma unroll 4
    for (int i = 0; i < k; i++) acc = acc + a[i * m + r] * b[q * k + i];
    // scaled
    c[r * n + q] = 0.5f * acc + 2.0f * c[r * n + q];
}""",
    "in global memory, temporaries": """
__global__ void gemm(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int m, int n, int k)
{
\tint row = blockIdx.y * blockDim.y + threadIdx.y;
\tint col = blockIdx.x * blockDim.x + threadIdx.x;
\tif (row < m && col < n)
\t{
\t\tint out = row * n + col;
\t\tfor (int i = 0; i < k; ++i)
\t\t{
\t\t\tfloat x = a[row * k + i];
\t\t\tfloat y = b[i * n + col];
\t\t\tc[out] += x * y;
\t\t}
\t}
}""",
    "a start value": PLAIN.replace("float sum = 0.0f", "float sum = c != NULL ? c[row * n + col] : 0.0f"),
    "swapped factors, two guards, subtracted": """
__global__ void gemm(const float* a, const float* b, float* c, int m, int n, int k) {
    size_t col = blockIdx.x * blockDim.x + threadIdx.x;
    size_t row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= m) return;
    if (col >= n) return;
    float total = 1;
    for (int i = 0; i < k; ++i) {
        total -= b[(size_t)i * n + col] * a[row * (size_t)k + i];
    }
    c[row * n + col] = total > 0 ? total : 0;
}""",
    "double, fused": PLAIN.replace("float", "double").replace("sum += a[row * k + i] * b[i * n + col]",
                                                              "sum = fma(a[row * k + i], b[i * n + col], sum)"),
    "bytes into ints": PLAIN.replace("const float*", "const signed char*").replace("float", "int")
    .replace("a[row * k + i]", "(int)a[row * k + i]").replace("0.0f", "0"),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_other_forms_give_the_same_results(name: str) -> None:
    site = site_of(GOOD[name])
    found = some(site)
    for edited in found:
        compiles(edited)
    assert_equal(site, found, ({"m": 70, "n": 68, "k": 36},), tolerance=1e-5)


def test_rows_along_x() -> None:
    source = PLAIN.replace(".y", ".#").replace(".x", ".y").replace(".#", ".x")
    launch = LAUNCH.replace("(n + 15) / 16, (m + 15) / 16", "(m + 15) / 16, (n + 15) / 16")
    site = site_of(source, launch)
    assert_equal(site, some(site), ({"m": 20, "n": 68, "k": 5},), tolerance=1e-5)


def test_half_is_converted_as_the_author_does() -> None:
    source = "#include <cuda_fp16.h>\n" + (
        PLAIN.replace("const float*", "const half*").replace("float* c", "half* c")
        .replace("a[row * k + i]", "__half2float(a[row * k + i])").replace("b[i * n + col]", "__half2float(b[i * n + col])")
        .replace("= sum;", "= __float2half(sum);")
    )  # fmt: skip
    site = site_of(source)
    edited = some(site)[0]
    assert "float a_tile" in device(edited)
    compiles(edited)
    assert_equal(site, [edited], ({"m": 20, "n": 33, "k": 9},), tolerance=1e-2)


def test_template_types() -> None:
    source = (
        PLAIN.replace("__global__", "template <typename T>\n__global__").replace("float", "T").replace("0.0f", "T(0)")
    )
    for edited in some(site_of(source, LAUNCH.replace("gemm<<<", "gemm<float><<<"))):
        compiles(edited, "gemm<double>")


def test_crlf_is_kept() -> None:
    edited = some(site_of(PLAIN, newline="\r\n"))[0]
    assert edited.program.data.count(b"\r\n") == edited.program.data.count(b"\n")
    compiles(edited)


STEP = "sum += a[row * k + i] * b[i * n + col];"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (STEP, "sum += a[row * k + i] * b[i * n + col] * 0.5f;"),
        (STEP, "sum += a[row * k + i] + b[i * n + col];"),
        (STEP, "sum += a[row * k + i] * a[row * k + i];"),
        (STEP, "sum += a[row * k + i] * b[i];"),
        (STEP, "sum += a[row * k + i * 2] * b[i * n + col];"),
        (STEP, "sum += a[row * row + i] * b[i * n + col];"),
        (STEP, "sum += a[(row * k + i) % 7] * b[i * n + col];"),
        (STEP, "sum += a[row * k + i] * b[i * n + col]; if (sum > 9) break;"),
        (STEP, "if (i != 3) " + STEP),
        (STEP, STEP + " c[row * n + col] = sum;"),
        (STEP, "float t = 2; " + STEP + " sum += t;"),
        (STEP, "int x = a[row * k + i]; sum += x * b[i * n + col];"),
        (STEP, "STEP;"),
        (STEP, "sum += a[row * k + i] * b[i * n + col] @@ 2;"),
        (STEP, "\n#if 1\n" + STEP + "\n#endif\n"),
        ("int i = 0; i < k; ++i", "int i = 1; i < k; ++i"),
        ("int i = 0; i < k; ++i", "int i = 0; i < k; i += 2"),
        ("int i = 0; i < k; ++i", "int i = 0; i <= k; ++i"),
        ("int i = 0; i < k; ++i", "int i = 0; i < row; ++i"),
        ("if (row < m && col < n)", "if (row < m)"),
        ("if (row < m && col < n)", ""),
        ("float sum = 0.0f;", "float sum = 0.0f; n = n / 2;"),
        ("float sum = 0.0f;", "float sum = 0.0f; __syncthreads();"),
        ("float sum = 0.0f;", "__shared__ float s[16]; float sum = 0.0f;"),
        ("float sum = 0.0f;", "float sum = threadIdx.x;"),
        ("= sum;", "= sum; if (sum > 1) return;"),
        ("void gemm", "void __launch_bounds__(32) gemm"),
        ("float* c", "volatile float* c"),
        ("const float* a", "float* a"),
    ],
)
def test_nothing_for_what_is_no_such_product(old: str, new: str) -> None:
    assert old in PLAIN
    source = "#define STEP if (sum > 3) return; sum += a[row * k + i] * b[i * n + col]\n" + PLAIN.replace(old, new)
    if old == "const float* a":
        source = source.replace("c[row * n + col] = sum;", "c[row * n + col] = sum;\n        a[row] = 1;")
    assert not propose(site_of(source), "matmul_tile")


@pytest.mark.parametrize(
    "launch",
    ["", LAUNCH.replace("(a, b, c", "(a, c, c"), LAUNCH.replace("(n + 15) / 16", "guess()"),
     LAUNCH.replace("(m + 15) / 16)", "(m + 15) / 16, 2)")],
)  # fmt: skip
def test_nothing_where_the_launch_does_not_allow_it(launch: str) -> None:
    assert not propose(site_of(PLAIN, launch), "matmul_tile")
