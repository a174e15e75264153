from pathlib import Path

import pytest

from engine.rewrite.site import Site
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import after, compiles, device, host, make, one, propose
from tests.spent import spent

EXAMPLES = Path(__file__).parents[3] / "examples"
LAUNCH = "    int threads = 64;\n    k<<<(rows + threads - 1) / threads, threads>>>({});"
SIZES = ({"rows": 4096, "cols": 4096},)
CHECK = ({"rows": 1, "cols": 1}, {"rows": 7, "cols": 129})
HEAD = """__global__ void k(const float* x, float* y, float* z, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
"""
ELEMENTS = {"x": "rows*cols", "y": "rows*cols", "z": "2*rows"}
SUM = HEAD + "    float s = 0.0f;\n    for (int j = 0; j < cols; ++j) s += x[row * cols + j];\n    z[row] = s;\n}"


def site_of(source: str, *, newline: str = "\n", launch: str = "") -> Site:
    return make(
        source,
        launch or LAUNCH.format("x, y, z, rows, cols"),
        sizes=SIZES,
        check=CHECK,
        elements=ELEMENTS,
        newline=newline,
    )


def example(name: str, launch: str, elements: dict[str, str]) -> Site:
    text = (EXAMPLES / f"{name}.cu").read_text()
    start = text.index("__global__")
    source = text[start : text.index("\n}\n", start) + 3]
    return make(source, launch, sizes=SIZES, check=CHECK, elements=elements)


def variants(site: Site) -> list[Site]:
    warp = propose(site, "row_parallel", team="warp", block=128)
    block = propose(site, "row_parallel", team="block", block=128)
    assert warp
    assert block
    return [after(site, p) for p in warp + block]


def test_a_warp_per_row() -> None:
    edited = one(site_of(SUM), "row_parallel", team="warp", block=256)
    code = device(edited)
    assert "int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;" in code
    assert "for (int j = lane; j < cols; j += 32) s += x[row * cols + j];\n    s = warp_sum(s);" in code
    assert "    if (lane == 0) {\n        z[row] = s;\n    }\n" in code
    assert [(c.grid, c.block) for c in edited.configs] == [((512, 1, 1), (256, 1, 1))]
    compiles(edited)


def test_a_block_per_row() -> None:
    edited = one(site_of(SUM), "row_parallel", team="block", block=512)
    code = device(edited)
    assert "int row = blockIdx.x;" in code
    assert "for (int j = threadIdx.x; j < cols; j += blockDim.x)" in code
    assert [(c.grid, c.block) for c in edited.configs] == [((4096, 1, 1), (512, 1, 1))]
    assert "512" in host(edited)
    compiles(edited)


def test_every_variant_compiles_and_is_proposed_once() -> None:
    site = site_of(SUM)
    found = propose(site, "row_parallel")
    assert {(p.parameters["team"], p.parameters["block"]) for p in found} == {
        ("warp", 256), ("warp", 128), ("block", 128), ("block", 256), ("block", 512), ("block", 1024),
    }  # fmt: skip
    for proposal in found:
        compiles(after(site, proposal))


@pytest.mark.parametrize(
    ("name", "arguments", "elements"),
    [
        ("softmax", "softmax_kernel<<<(rows + 63) / 64, 64>>>(x, y, rows, cols);", {"x": "rows*cols", "y": "rows*cols"}),
        (
            "layer_norm",
            "layer_norm_kernel<<<(rows + 63) / 64, 64>>>(x, gamma, beta, y, rows, cols, eps);",
            {"x": "rows*cols", "y": "rows*cols", "gamma": "cols", "beta": "cols"},
        ),
        ("gemv", "gemv_kernel<<<(rows + 63) / 64, 64>>>(a, x, y, rows, cols);", {"a": "rows*cols", "x": "cols", "y": "rows"}),
    ],
)  # fmt: skip
def test_examples_give_the_same_results(name: str, arguments: str, elements: dict[str, str]) -> None:
    site = example(name, arguments, elements)
    assert_equal(site, variants(site), ({"rows": 1, "cols": 1}, {"rows": 7, "cols": 129}), races=True)


GOOD = {
    "start values that count": """
    float s = x[row]; double p = 1.0; int n = 3; float m = -1e30f; float low = x[row * cols];
    for (int j = 1; j < cols; j++) {
        float v = x[(size_t)row * cols + j];
        s += v * v; p *= 1.0 + 0.01 * v; if (v > 0.5f) n++; if (v > m) m = v; low = v < low ? v : low;
    }
    z[row * 2] = s + (float)p; z[row * 2 + 1] = n + m - low;
}""",
    "a row of the output read again": """
    float sum = 0;
    for (int j = 0; j < cols; ++j) { y[row * cols + j] = x[row * cols + j] * 2; sum += y[row * cols + j]; }
    for (int j = 0; j < cols; ++j) y[row * cols + j] /= (sum + 100);
    z[row] = sum;
}""",
    "temporaries and pointers": """
    const float *p = x + row * cols; float *q = &y[row * cols]; float t; float a = 0.f, b = 0.f;
    for (int j = 0; j < cols; ++j) { t = __ldg(&p[j]); a += t; b = b + t * t; }
    for (int j = 0; j < cols; ++j) { t = p[j] - a / cols; q[j] = t * b; }
}""",
    "a loop inside": """
    float best = -1e30f;
    for (int j = 0; j < cols; ++j) {
        float d = 0;
        for (int i = 0; i < 4; ++i) d += x[row * cols + j] * i;
        best = max(best, d);
    }
    z[row] = best;
    z[row] += 1;
}""",
    "a last element that counts": """
    float s = 0.0f;
    for (int j = 0; j <= row % cols; j++) { s += x[row * cols + j]; }
    for (int j = 0; j <= row % cols; j++) { y[row * cols + j] = s; }
}""",
    "a pointer that may be null": """
    float s = y != nullptr ? 2.0f : 0.0f;
    for (int j = 0; j < cols; ++j) { s += x[row * cols + j]; }
    z[row] = s;
}""",
    "loops under a condition": """
    float s = 0.0f;
    if (cols > 3) {
        for (int j = 0; j < cols; ++j) { s += x[row * cols + j]; }
        y[row * cols] = s;
    } else {
        y[row * cols] = 1;
    }
}""",
}


@pytest.mark.parametrize("name", GOOD)
def test_gives_the_same_results(name: str) -> None:
    site = site_of(HEAD + GOOD[name])
    assert_equal(site, variants(site), ({"rows": 7, "cols": 45},))


def test_template_types_and_the_guard_around_the_work() -> None:
    source = """
template <typename T>
__global__ void k(const T* x, T* y, T* z, int rows, int cols) {
    size_t row = threadIdx.x + blockDim.x * blockIdx.x;
    if (row < rows) {
        T s = T(0);
        for (int j = 0; j < cols; ++j) s += x[row * cols + j];
        z[row] = s;
    }
}"""
    site = site_of(source, launch=LAUNCH.format("x, y, z, rows, cols").replace("k<<<", "k<float><<<"))
    found = variants(site)
    assert "template <typename Value>" in device(found[0])
    for edited in found:
        compiles(edited, "k<double>")


def test_half_with_a_float_accumulator() -> None:
    source = """#include <cuda_fp16.h>
__global__ void k(const __half* x, __half* y, __half* z, int rows, int cols) {
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    float s = 0.0f;
    __half h = __float2half(0.0f);
    for (int j = 0; j < cols; ++j) { s += __half2float(x[row * cols + j]); h += x[row * cols + j]; }
    z[row] = __float2half(s);
    y[row] = h;
}"""
    for edited in variants(site_of(source)):
        compiles(edited)


COLUMN = """
__global__ void k(const float* x, float* y, float* z, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c < cols) {
        float s = 0, m = x[c];
        for (int r = 0; r < rows; ++r) { s += x[r * cols + c]; m = fmaxf(m, x[r * cols + c]); }
        z[c] = s * m;
    }
}"""


def test_threads_share_a_column() -> None:
    launch = "    k<<<(cols + 63) / 64, 64>>>(x, y, z, rows, cols);"
    site = make(COLUMN, launch, sizes=SIZES, check=CHECK, elements=ELEMENTS | {"z": "cols"})
    found = propose(site, "row_parallel")
    assert {p.parameters["team"] for p in found} == {"column"}
    edited = one(site, "row_parallel", team="column", slices=8)
    assert "if (c >= cols) {\n        return;\n    }" in device(edited)
    assert [(c.grid, c.block) for c in edited.configs] == [((128, 1, 1), (32, 8, 1))]
    compiles(edited)
    assert_equal(site, [edited], ({"rows": 37, "cols": 35}, {"rows": 3, "cols": 1}), races=True)


def test_crlf_is_kept() -> None:
    edited = one(site_of(SUM, newline="\r\n"), "row_parallel", team="block", block=256)
    assert edited.program.data.count(b"\r\n") == edited.program.data.count(b"\n")
    compiles(edited)


def test_the_helper_stands_before_the_comments_of_the_kernel() -> None:
    edited = one(site_of("// One thread per row.\n" + SUM), "row_parallel", team="warp", block=128)
    assert "\n}\n\n// One thread per row.\n__global__" in device(edited)


def test_names_that_are_taken_are_left_alone() -> None:
    source = "__device__ int lane() { return 1; }\n__device__ int warp_sum() { return 1; }\n" + SUM
    edited = one(site_of(source), "row_parallel", team="warp", block=128)
    assert "lane2 = threadIdx.x % 32" in device(edited)
    compiles(edited)


LOOP = "for (int j = 0; j < cols; ++j) "
BAD = {
    "local array": "float a[64]; " + LOOP + "a[j] = x[row*cols+j]; y[row] = a[0]; }",
    "dependence": "for (int j = 1; j < cols; ++j) y[row*cols+j] = y[row*cols+j-1] + x[row*cols+j]; }",
    "prefix sum": "float s=0; " + LOOP + "{ s += x[row*cols+j]; y[row*cols+j] = s; } }",
    "argmax": "float m=-1; int at=0; " + LOOP + "{ float v=x[row*cols+j]; if (v > m) { m = v; at = j; } } y[row]=at; }",
    "break": "float s=0; " + LOOP + "{ if (x[j] < 0) break; s += x[row*cols+j]; } y[row]=s; }",
    "continue": "float s=0; " + LOOP + "{ if (x[j] < 0) continue; s += x[row*cols+j]; } y[row]=s; }",
    "return": "float s=0; " + LOOP + "{ if (x[j] < 0) return; s += x[row*cols+j]; } y[row]=s; }",
    "scalar read back": "y[row] = x[row]; float s = y[row]; " + LOOP + "s += x[row*cols+j]; z[row]=s; }",
    "read back in the loop": "y[row] = x[row]; float s = 0; " + LOOP + "s += x[j]*y[row]; z[row]=s; }",
    "neighbour read": LOOP + "y[row*cols+j] = x[j]; " + LOOP + "z[row*cols+j] = y[row*cols+j+1]; }",
    "other start": LOOP + "y[row*cols+j] = x[j]; for (int j = 1; j < cols; ++j) z[j] = y[row*cols+j]; }",
    "store by remainder": LOOP + "y[row*cols+j%4] = x[j]; }",
    "scatter": LOOP + "y[(int)x[j]] = x[j]; }",
    "one element": LOOP + "y[row] = x[j]; }",
    "running index": "int i = row*cols; float s=0; " + LOOP + "{ s += x[i]; i++; } y[row]=s; }",
    "walking pointer": "const float* p = x + row*cols; float s=0; " + LOOP + "{ s += *p++; } y[row]=s; }",
    "moving average": "float s=0; " + LOOP + "s = 0.9f*s + x[row*cols+j]; y[row]=s; }",
    "two entangled": "float a=0,b=0; " + LOOP + "{ a += x[row*cols+j]; b += a; } y[row]=b; }",
    "two operations": "float s=0; " + LOOP + "{ s += x[row*cols+j]; s *= 2; } y[row]=s; }",
    "sum in its own term": "float s=1; " + LOOP + "{ s -= s*x[row*cols+j]; } y[row]=s; }",
    "sum in a condition": "float s=0; " + LOOP + "{ if (s < 10) s += x[row*cols+j]; } y[row]=s; }",
    "last value": "float s=0; int n=0; " + LOOP + "{ n = j; s += x[row*cols+j]; } y[row]=s+n; }",
    "atomic": LOOP + "atomicAdd(&y[j], x[row*cols+j]); }",
    "barrier": "float s=0; " + LOOP + "s += x[row*cols+j]; __syncthreads(); y[row]=s; }",
    "thread used elsewhere": "float s=0; " + LOOP + "s += x[row*cols+j]; y[row]=s+threadIdx.x; }",
    "loop variable used after": "float s=0; int j; for (j = 0; j < cols; ++j) s += x[row*cols+j]; y[row]=s+j; }",
    "step of two": "float s=0; for (int j = 0; j < cols; j+=2) s += x[row*cols+j]; y[row]=s; }",
    "downward": "float s=0; for (int j = cols-1; j >= 0; --j) s += x[row*cols+j]; y[row]=s; }",
    "bound that changes": "float s=0; " + LOOP + "{ s += x[row*cols+j]; cols--; } y[row]=s; }",
    "unknown function": "float s=0; " + LOOP + "{ s += load(x, row*cols+j); } y[row]=s; }",
    "overlapping stores": LOOP + "{ for (int i = 0; i < 3; ++i) y[row*cols+j+i] = x[j]; } }",
    "row that changes": "row += 1; float s=0; " + LOOP + "{ s += x[row*cols+j]; } y[row]=s; }",
    "two names of one array": "float* q = y; " + LOOP + "{ q[row*cols+j] = x[j]; z[j] = y[row*cols+cols-1-j]; } }",
    "reference": "float s=0; float& q = s; " + LOOP + "{ q += x[row*cols+j]; } y[row]=s; }",
    "comma": "float s=0; " + LOOP + "s += x[row*cols+j], y[row] = s; }",
    "shared memory": "__shared__ float t[4]; float s=0; " + LOOP + "{ s += x[row*cols+j]; } y[row]=s; }",
}


@pytest.mark.parametrize("name", BAD)
def test_nothing_where_iterations_depend_on_each_other(name: str) -> None:
    assert not propose(site_of(HEAD + "    " + BAD[name]), "row_parallel")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (row >= rows) return;", ""),
        ("if (row >= rows) return;", "\n#ifdef SAFE\n    if (row >= rows) return;\n#endif\n"),
        ("void k", "void __launch_bounds__(64) k"),
        ("s += x[row * cols + j]", "s += x[row * cols + j] @@ 3"),
        ("float* z", "volatile float* z"),
        ("z[row] = s;", "DONE;"),
    ],
)
def test_nothing_for_other_kernels(old: str, new: str) -> None:
    assert old in SUM
    source = "#define DONE if (s > 0) return; z[row] = s\n" + SUM.replace(old, new)
    assert not propose(site_of(source), "row_parallel")


@pytest.mark.parametrize(
    "launch",
    [
        "",
        LAUNCH.format("x, x, z, rows, cols"),
        "    k<<<unknown(), 64>>>(x, y, z, rows, cols);",
        "    k<<<dim3((rows + 63) / 64, 2), 64>>>(x, y, z, rows, cols);",
    ],
)
def test_nothing_where_the_launch_does_not_allow_it(launch: str) -> None:
    site = make(SUM, launch, sizes=SIZES, check=CHECK, elements=ELEMENTS)
    assert not propose(site, "row_parallel")


def test_proposes_nothing_for_its_own_output() -> None:
    edited = one(site_of(SUM), "row_parallel", team="block", block=256)
    assert not propose(edited, "row_parallel")


def test_a_kernel_made_to_be_slow_is_refused_quickly() -> None:
    declared = "".join(f"    float v{i} = x[row * cols + {i}];\n" for i in range(4000))
    loops = "".join(f"    for (int j = 0; j < cols; ++j) y[row * cols + j] += v{i};\n" for i in range(2000))
    site = site_of(HEAD + declared + loops + "}")
    with spent() as cost:
        assert not propose(site, "row_parallel")
        assert not propose(site, "register_accumulate")
        assert not propose(site, "matmul_tile")
    assert cost.seconds < 5
