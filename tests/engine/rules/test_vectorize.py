from dataclasses import replace
from typing import Any

import pytest

from engine.rewrite.site import Site
from engine.rules import make_site
from engine.spec.launch_config import evaluate
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.workbench import (
    PATH,
    SCALE,
    SCALE_LAUNCH,
    after,
    compiles,
    device,
    host,
    machine_code,
    make,
    one,
    propose,
)


def test_float_by_four() -> None:
    edited = one(make(SCALE, SCALE_LAUNCH), "vectorize", width=4)
    text = device(edited)
    assert "struct alignas(16) FloatPack4 {" in text
    assert "const FloatPack4 x_pack = *reinterpret_cast<const FloatPack4*>(x + i0);" in text
    assert "y_pack.at[k] = a * x_pack.at[k];" in text
    assert "for (int i = i0; i < i0 + 4 && i < n; ++i) {" in text
    assert edited.configs[0].grid[0] == (1 << 24) // 1024
    compiles(edited)


def test_the_machine_code_loads_128_bits() -> None:
    code = machine_code(one(make(SCALE, SCALE_LAUNCH), "vectorize", width=4))
    assert "LDG.E.128" in code
    assert "STG.E.128" in code
    assert "STL" not in code  # the vectors live in registers


def test_half_by_eight() -> None:
    source = "#include <cuda_fp16.h>\n" + SCALE.replace(
        "const float* x, float* y", "const __half* x, __half* y"
    ).replace("a * x[i]", "__float2half(a * __half2float(x[i]))")
    edited = one(make(source, SCALE_LAUNCH), "vectorize", width=8)
    assert "__half at[8];" in device(edited)
    compiles(edited)


def test_mixed_sizes_take_the_widest_types_width() -> None:
    source = SCALE.replace("const float* x", "const unsigned char* x")
    site = make(source, SCALE_LAUNCH)
    assert {p.parameters["width"] for p in propose(site, "vectorize")} == {4, 2}
    compiles(one(site, "vectorize", width=4))


def test_array_that_is_not_always_stored_is_loaded_first() -> None:
    source = SCALE.replace("y[i] = a * x[i];", "if (x[i] > 0.0f) y[i] = a;")
    text = device(one(make(source, SCALE_LAUNCH), "vectorize", width=4))
    assert "FloatPack4 y_pack = *reinterpret_cast<const FloatPack4*>(y + i0);" in text


def test_array_that_may_end_before_the_vector_stays_scalar() -> None:
    source = SCALE.replace("y[i] = a * x[i];", "y[i] = i < m ? a * x[i] : 0.0f;").replace("int n", "int n, int m")
    sizes: dict[str, Any] = {"sizes": [{"n": 1 << 24, "m": 1 << 12}], "check": [{"n": 40, "m": 9}]}
    launch = SCALE_LAUNCH.replace("a, n)", "a, n, m)")
    text = device(one(make(source, launch, **sizes, elements={"x": "m"}), "vectorize", width=4))
    assert "y_pack.at[k] = i < m ? a * x[i] : 0.0f;" in text
    assert "x_pack" not in text
    # Where the spec gives it as many elements as there are indices, nothing is read beyond its end.
    assert "x_pack.at[k]" in device(one(make(source, launch, **sizes), "vectorize", width=4))


def test_nothing_where_a_store_may_be_beyond_the_end() -> None:
    source = SCALE.replace("y[i] = a * x[i];", "if (i < m) y[i] = a;").replace("int n", "int n, int m")
    sizes: dict[str, Any] = {"sizes": [{"n": 1 << 24, "m": 1 << 12}], "check": [{"n": 40, "m": 9}]}
    launch = SCALE_LAUNCH.replace("a, n)", "a, n, m)")
    assert not propose(make(source, launch, **sizes, elements={"y": "m"}), "vectorize")


def test_other_elements_of_inputs_stay_scalar() -> None:
    source = SCALE.replace("a * x[i]", "x[i] + x[i % 7]")
    edited = one(make(source, SCALE_LAUNCH), "vectorize", width=4)
    assert "x_pack.at[k] + x[i % 7]" in device(edited)
    compiles(edited)


def test_vector_type_is_defined_once() -> None:
    two = "struct alignas(16) FloatPack4 {\n    float at[4];\n};\n" + SCALE
    assert device(one(make(two, SCALE_LAUNCH), "vectorize", width=4)).count("struct alignas") == 1


def test_comments_and_line_endings_stay() -> None:
    source = SCALE.replace("        y[i]", "        // the gain\n        y[i]")
    edited = one(make(source, SCALE_LAUNCH, newline="\r\n"), "vectorize", width=4)
    assert "// the gain" in device(edited)
    assert edited.program.data.count(b"\r\n") == edited.program.data.count(b"\n")


def test_after_restrict() -> None:
    restricted = one(make(SCALE, SCALE_LAUNCH), "restrict", restrict=2)
    compiles(one(restricted, "vectorize", width=4))


@pytest.mark.parametrize(
    "work",
    [
        "y[i + 1] = x[i];",
        "y[i] = y[n - 1 - i];",
        "y[2 * i] = x[i];",
        "float* p = y; p[i] = x[i];",
        "atomicAdd(&y[i], x[i]);",
        "if (x[i] > 0) return; y[i] = x[i];",
        "y[i] = __shfl_xor_sync(0xffffffffu, x[i], 1);",
    ],
)
def test_nothing_for_other_forms(work: str) -> None:
    assert not propose(make(SCALE.replace("y[i] = a * x[i];", work), SCALE_LAUNCH), "vectorize")


def test_nothing_where_buffers_may_overlap() -> None:
    launch = "    scale<<<(n + 255) / 256, 256>>>(y, y, a, n);"
    assert not propose(make(SCALE, launch), "vectorize")


def test_nothing_for_unknown_element_types() -> None:
    source = "struct P { float a, b, c; };\n" + SCALE.replace("const float* x, float* y", "const P* x, P* y").replace(
        "a * x[i]", "x[i]"
    )
    assert not propose(make(source, SCALE_LAUNCH), "vectorize")


def typed(site: Site, kind: str) -> Site:
    """The site with a spec that says what the elements of its arrays are."""
    arguments = tuple(replace(a, type=kind) if a.role != "scalar" else a for a in site.spec.arguments)
    return make_site(site.program, replace(site.spec, arguments=arguments))


def test_another_name_for_a_type() -> None:
    source = "typedef float real;\n" + SCALE.replace("const float* x, float* y", "const real* x, real* y")
    site = typed(make(source.replace("a * x[i]", "(real)(a * x[i])"), SCALE_LAUNCH), "float")
    edited = one(site, "vectorize", width=4)
    # Another build may give the name another size.
    assert "struct alignas(sizeof(real) * 4) RealPack4 {" in device(edited)
    assert "% (sizeof(real) * 4) == 0" in device(edited)
    compiles(edited)
    assert_equal(site, [edited], [{"n": 1003}])
    assert not propose(make(source, SCALE_LAUNCH), "vectorize")  # a spec that does not say what it is


def test_template_parameter_as_the_type() -> None:
    source = SCALE.replace("__global__", "template <typename T>\n__global__").replace(
        "const float* x, float* y", "const T* x, T* y"
    )
    site = typed(make(source, SCALE_LAUNCH), "float")
    edited = one(site, "vectorize", width=4)
    assert "template <typename T>\nstruct alignas(sizeof(T) * 4) TPack4 {" in device(edited)
    assert "const TPack4<T> x_pack = *reinterpret_cast<const TPack4<T>*>(x + i0);" in device(edited)
    compiles(edited, "scale<float>")
    assert_equal(site, [edited], [{"n": 1003}], expression="scale<float>")


HEADER = b"""#define TWICE 2
__device__ inline float bent(float v) {
#ifdef OTHER
    return v;
#else
    return v * (float)TWICE;
#endif
}
__device__ inline void put(float* to, float v) { *to = v; }
__device__ inline float place(float v) { return v + threadIdx.x; }
"""


@pytest.mark.parametrize(
    ("work", "there"), [("bent(x[i])", True), ("place(x[i])", False), ("(put(y, a), 1.0f)", False)]
)
def test_functions_of_headers_that_take_values(work: str, there: bool) -> None:
    site = make('#include "bent.cuh"\n' + SCALE.replace("a * x[i]", work), SCALE_LAUNCH)
    files = {**site.program.files, "kernels/bent.cuh": HEADER}
    site = make_site(replace(site.program, files=files), site.spec)
    assert bool(propose(site, "vectorize")) == there
    assert site.unit.path == PATH


BIASED = """
__global__ void biased(const float* x, const float* b, float* y, int rows, int cols) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * cols) return;
    y[i] = x[i] + b[i % cols];
}
"""
BIASED_LAUNCH = "    biased<<<(rows * cols + 255) / 256, 256>>>(x, b, y, rows, cols);"
BIASED_SIZES: dict[str, Any] = {
    "sizes": [{"rows": 4096, "cols": 4096}],
    "check": [{"rows": 3, "cols": 129}, {"rows": 3, "cols": 128}],
    "elements": {"x": "rows*cols", "b": "cols", "y": "rows*cols"},
}


def test_elements_of_a_row_beside_those_of_all_rows() -> None:
    site = make(BIASED, BIASED_LAUNCH, **BIASED_SIZES)
    edited = one(site, "vectorize", width=4)
    assert "&& cols % 4 == 0) {" in device(edited)
    assert "const FloatPack4 b_pack = *reinterpret_cast<const FloatPack4*>(&b[i % cols]);" in device(edited)
    assert_equal(site, [edited], [{"rows": 3, "cols": 129}, {"rows": 3, "cols": 128}])
    assert "LDG.E.128" in machine_code(edited)


@pytest.mark.parametrize(
    "index", ["i / rows", "(i + 1) % cols", "2 * (i % cols) / 2", "(i * i) % cols", "cols - 1 - i % cols"]
)
def test_elements_that_are_no_neighbours_stay_scalar(index: str) -> None:
    site = make(BIASED.replace("i % cols", index, 1), BIASED_LAUNCH, **BIASED_SIZES)
    assert "b_pack" not in device(one(site, "vectorize", width=4))


def test_a_block_that_callers_choose_becomes_the_one_that_the_grid_is_for() -> None:
    """`encoder_forward_kernel2` of llm.c: its host function takes the block's size, and the new grid was for 256 threads."""
    launch = "    scale<<<(n + block_size - 1) / block_size, block_size>>>(x, y, a, n);"
    sizes: Any = {"sizes": [{"n": 1 << 24, "block_size": 256}], "check": [{"n": 1003, "block_size": 256}]}
    site = make(SCALE, launch, **sizes, host="int block_size")
    for rule in ("vectorize", "coarsen"):
        for proposal in propose(site, rule):
            edited = after(site, proposal)
            blocks = evaluate(edited.program, edited.spec, 0, {"n": 5000, "block_size": 64})
            each = int(proposal.parameters.get("width", proposal.parameters.get("factor", 1)))
            assert blocks.block == (256, 1, 1)
            assert blocks.grid[0] * 256 * each >= 5000
            assert_equal(site, [edited], [{"n": 5000, "block_size": 64}])
    # A block that is the same for every caller stays as it is written.
    assert "const int threads = 256;" in host(
        one(
            make(
                SCALE, "    const int threads = 256;\n    scale<<<(n + threads - 1) / threads, threads>>>(x, y, a, n);"
            ),
            "vectorize",
            width=4,
        )
    )
