from __future__ import annotations

import re

import pytest

from engine.verify.screen import screen
from tests.engine.rules.equality import assert_equal
from tests.engine.rules.test_unroll import LAUNCH, ROWS, SIZES
from tests.engine.rules.workbench import after, compiles, device, machine_code, make, one, propose


def test_reciprocal_root() -> None:
    source = ROWS.replace("y[i] = sum;", "y[i] = 1.0f / sqrtf(sum + 1e-5f);")
    edited = one(make(source, LAUNCH, **SIZES), "fast_math", form="rsqrt")
    assert "y[i] = rsqrtf(sum + 1e-5f);" in device(edited)
    compiles(edited)


def test_intrinsics_also_in_functions_of_the_kernel_alone() -> None:
    source = "__device__ float f(float v) { return expf(v); }\n" + ROWS.replace(
        "x[i * m + j];", "f(x[i * m + j]) + logf(2.0f);"
    )
    edited = one(make(source, LAUNCH, **SIZES), "fast_math", form="intrinsics")
    assert "return __expf(v);" in device(edited)
    assert "__logf(2.0f)" in device(edited)
    compiles(edited)


def test_functions_that_others_call_stay_and_the_kernel_gets_a_copy() -> None:
    source = (
        "__device__ float f(float v) { return expf(v); }\n__device__ float g(float v) { return f(v); }\n"
        + ROWS.replace("x[i * m + j];", "f(x[i * m + j]);")
    )
    site = make(source, LAUNCH, **SIZES)
    edited = one(site, "fast_math", form="intrinsics")
    assert "__device__ float f(float v) { return expf(v); }" in device(edited)
    assert "__device__ float own_f(float v) { return __expf(v); }" in device(edited)
    assert "own_f(x[i * m + j]);" in device(edited)
    compiles(edited)
    assert_equal(site, [edited], SIZES["check"], tolerance=1e-3)
    # The copy is the kernel's alone from then on.
    assert device(one(edited, "fast_math", form="flush")).count("own_") == 2


SHAPED = """
#include <cuda_fp16.h>
template <typename T> __device__ T shaped(T v) { return v * tanhf(v); }
template <> __device__ __half2 shaped<__half2>(__half2 v) { return __half2(tanhf(__low2float(v)), tanhf(__high2float(v))); }
__device__ float other(float v) { return shaped<float>(v); }
__global__ void apply(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = shaped<float>(x[i]) + CALL;
}
"""


PAIR = "__low2float(shaped<half2>(half2(0.5f, 0.5f)))"


@pytest.mark.parametrize(
    ("call", "copies"), [("expf(x[i])", "own_shaped<float>(x[i]) + expf(x[i])"), (PAIR, "own_shaped2(half2(")]
)
def test_the_instance_of_a_helper_that_is_called_is_copied(call: str, copies: str) -> None:
    """`gelu<float>` of LightSeq stands in a header that dozens of kernels include: nothing was proposed for any of them."""
    site = make(SHAPED.replace("CALL", call), "    apply<<<(n + 255) / 256, 256>>>(x, y, n);")
    edited = one(site, "fast_math", form="hyperbolic")
    assert copies in device(edited)
    assert "own_shaped<float>(x[i])" in device(edited)
    assert "template <typename T> __device__ T own_shaped(T v) { return v * fast_tanhf(v); }" in device(edited)
    assert screen(site.program, edited.program, site.spec) is None
    compiles(edited)
    if "expf" in call:  # in the kernel alone: no copies for that
        assert "own_shaped" not in device(one(site, "fast_math", form="intrinsics"))


def test_double_precision_stays() -> None:
    source = ROWS.replace("y[i] = sum;", "y[i] = 1.0 / sqrt((double)sum) + exp((double)sum);")
    assert not propose(make(source, LAUNCH, **SIZES), "fast_math")


@pytest.mark.parametrize(
    ("form", "old", "new"),
    [
        ("reciprocal", "(sum + 1.0f) / 6.0f", "(sum + 1.0f) * (1.0f / 6.0f)"),
        ("reciprocal", "sum / 6.f / 3e1f", "sum / 6.f * (1.0f / 3e1f)"),
        ("quotients", "x[i] / (sum + 2.0f)", "__fdividef(x[i] , (sum + 2.0f))"),
        ("quotients", "1 / sum", "__fdividef(1 , sum)"),
        ("pi", "cosf(6.2831853f * sum)", "cospif(2.0f * sum)"),
        ("pi", "sinf(sum * TURN * n)", "sinpif(sum * 2.0f * n)"),
        ("pi", "cosf((float)M_PI_F * sum)", None),  # through a cast
        ("pi", "cosf(3.1416f * sum)", None),  # too coarse a pi
        ("reciprocal", "sum / 8.0f", None),  # exact already
        ("quotients", "sum / 8.0f", None),
        ("reciprocal", "i / 6", None),  # of integers
        ("quotients", "i / m", None),
        ("reciprocal", "(double)sum / 6.0f", None),
    ],
)
def test_quotients_and_turns(form: str, old: str, new: str | None) -> None:
    source = "#define TURN (2.0f * 3.14159265f)\n#define M_PI_F 3.14159265f\n" + ROWS
    source = source.replace("(2.0f * 3.14159265f)", "6.28318531f").replace("y[i] = sum;", f"y[i] = {old};")
    found = propose(make(source, LAUNCH, **SIZES), "fast_math", form=form)
    assert len(found) == (new is not None)
    if new is not None:
        site = make(source, LAUNCH, **SIZES)
        edited = after(site, found[0])
        assert f"y[i] = {new.replace(' , ', ', ')};" in device(edited)
        compiles(edited)
        assert not propose(edited, "fast_math", form=form) or " / 6.f " in new


def test_a_helper_of_the_kernel_alone_divides_by_constants() -> None:
    source = "__device__ float f(unsigned int v) { return (v + 1) / 16777217.0f; }\n" + ROWS.replace(
        "x[i * m + j];", "f(i) + x[i * m + j];"
    )
    site = make(source, LAUNCH, **SIZES)
    edited = one(site, "fast_math", form="reciprocal")
    assert "return (v + 1) * (1.0f / 16777217.0f);" in device(edited)
    assert_equal(site, [edited], SIZES["check"][:1] if "check" in SIZES else ({"n": 5, "m": 3},))


def test_angles_are_a_proposal_of_their_own() -> None:
    source = ROWS.replace(
        "y[i] = sum;", "float s, c;\n        sincosf(sum, &s, &c);\n        y[i] = s * cosf(c) + expf(s);"
    )
    site = make(source, LAUNCH, **SIZES)
    edited = one(site, "fast_math", form="angles")
    assert "__sincosf(sum, &s, &c);" in device(edited)
    assert "s * __cosf(c) + expf(s)" in device(edited)
    compiles(edited)


_ROOT = """
// Of a length.
__device__ float length(float a, float b) { return sqrtf(a * a + b * b) + 1.0f / sqrtf(a + 9.0f); }

__device__ int other(int a) { return a + 1; }

__global__ void roots(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = length(x[i] * 0.0f, x[i]) + sqrtf(fabsf(x[i]) / 3.0f) * expf(x[i] * 0.0f);
    }
}
"""


def test_roots_by_a_function_above_all_that_call_it() -> None:
    site = make(_ROOT, "    roots<<<(n + 255) / 256, 256>>>(x, y, n);", check=({"n": 70},))
    edited = one(site, "fast_math", form="roots")
    assert device(edited).index("float fast_sqrtf(float x)") < device(edited).index("// Of a length.")
    assert "fast_sqrtf(a * a + b * b) + 1.0f / sqrtf(a + 9.0f)" in device(edited)  # that one is rsqrt's
    compiles(edited)
    together = one(site, "fast_math", form="all")
    assert "fast_sqrtf(fabsf(x[i]) * (1.0f / 3.0f)) * __expf(x[i] * 0.0f)" in device(together)
    compiles(together)
    assert_equal(site, [edited, together], ({"n": 70},))


@pytest.mark.parametrize("value", ["x[i] * 0.0f", "1.0f / fabsf(x[i] * 0.0f)"])
def test_roots_of_zeros_and_infinities(value: str) -> None:
    source = _ROOT.replace("length(x[i] * 0.0f, x[i]) + sqrtf(fabsf(x[i]) / 3.0f)", f"1.0f / (1.0f + sqrtf({value}))")
    site = make(source, "    roots<<<(n + 255) / 256, 256>>>(x, y, n);", check=({"n": 70},))
    assert_equal(site, [one(site, "fast_math", form="roots")], ({"n": 70},))


def test_one_kind_alone_is_not_all() -> None:
    source = ROWS.replace("y[i] = sum;", "y[i] = expf(sum);")
    assert [p.parameters["form"] for p in propose(make(source, LAUNCH, **SIZES), "fast_math")] == [
        "intrinsics",
        "flush",
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sum * sum + a * a + 0.5f", "0.5f + sum * sum + a * a"),
        ("2.0f * (sum * sum + a * a + a)", "2.0f * (a + sum * sum + a * a)"),
        ("a + sum * sum + a * a", None),  # in that order already
        ("sum * sum + a + a * a", None),  # two fused ones already
        ("sum * a + 0.5f", None),  # one instruction
        ("sum * sum + a * a + (sum + a) * a", None),  # nothing but products
        ("sum * sum + a * a + i", None),  # a whole number: other sums would be of whole numbers
        ("sum * sum + a * a + 0.5", None),  # in double precision
        ("sum * sum + a * a - 0.5f", None),
        ("i * i + m * m + n", None),
    ],
)
def test_sums_of_products_begin_with_the_plain_term(old: str, new: str | None) -> None:
    source = ROWS.replace("y[i] = sum;", f"float a = 3.0f * sum;\n        y[i] = {old};")
    site = make(source, LAUNCH, **SIZES)
    found = propose(site, "fast_math", form="sums")
    assert len(found) == (new is not None)
    if new is not None:
        edited = after(site, found[0])
        assert f"y[i] = {new};" in device(edited)
        assert len(re.findall(r"\bFFMA\b", machine_code(edited))) > len(re.findall(r"\bFFMA\b", machine_code(site)))
        assert not propose(edited, "fast_math", form="sums")
        assert_equal(site, [edited], ({"n": 5, "m": 3},))


FLUSHED = ROWS.replace(
    "y[i] = sum;", "y[i] = rsqrtf(sum * sum + 1.0f) + __logf(fmaxf(sum, 0.5f)) + __expf(-fabsf(sum));"
)


@pytest.mark.parametrize(("form", "names"), [("flush", ["expf"]), ("flush_all", ["expf", "logf", "rsqrtf"])])
def test_approximations_without_subnormal_numbers(form: str, names: list[str]) -> None:
    site = make(FLUSHED, LAUNCH, **SIZES)
    edited = one(site, "fast_math", form=form)
    code = device(edited)
    assert re.findall(r"float fast_(\w+)\(float x\)", code) == names
    assert f"fast_{names[-1]}(" in code[code.index("__global__") :]
    assert screen(site.program, edited.program, site.spec) is None
    compiles(edited)
    # A test for a subnormal number and two multiplications less for each.
    assert len(re.findall(r"\bFSETP\b", machine_code(site))) - len(
        re.findall(r"\bFSETP\b", machine_code(edited))
    ) == len(names)
    assert_equal(site, [edited], ({"n": 5, "m": 3},))
    assert not propose(edited, "fast_math", form=form)


def test_a_kernel_that_calls_approximations_is_still_that_of_one_thread() -> None:
    """Other rules go on."""
    edited = one(make(FLUSHED, LAUNCH, **SIZES), "fast_math", form="flush_all")
    assert edited.local_only(edited.body)
    assert propose(edited, "row_parallel")
    inlined = ROWS.replace(
        "y[i] = sum;", 'asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(sum) : "f"(sum));\n        y[i] = sum;'
    )
    site = make(inlined, LAUNCH, **SIZES)
    assert not site.local_only(site.body)  # what it changes is not seen there


def test_reciprocal_roots_as_people_write_them_by_one_instruction() -> None:
    source = ROWS.replace("y[i] = sum;", "y[i] = 1.0f / sqrtf(sum * sum + 1.0f) + sqrtf(fabsf(sum));")
    site = make(source, LAUNCH, **SIZES)
    edited = one(site, "fast_math", form="flush_all")
    assert "y[i] = fast_rsqrtf(sum * sum + 1.0f) + sqrtf(fabsf(sum));" in device(edited)
    assert device(edited).count("__device__") == 1
    compiles(edited)
    assert_equal(site, [edited], ({"n": 5, "m": 3},))


GELU = """
__global__ void gelu(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        float v = x[i];
        float c = coshf(v);
        y[i] = 0.5f * v * (1.0f + tanhf(0.8f * (v + 0.04f * v * v * v))) + 1.0f / (c * c);
    }
}
"""


def test_hyperbolic_functions_by_fast_exponentials() -> None:
    site = make(GELU, "    gelu<<<(n + 255) / 256, 256>>>(x, y, n);")
    edited = one(site, "fast_math", form="hyperbolic")
    assert "fast_tanhf(0.8f *" in device(edited)
    assert "fast_coshf(v)" in device(edited)
    assert_equal(site, [edited], [{"n": 1003}])
    before, after_ = machine_code(site), machine_code(edited)
    assert after_.count("\n") < before.count("\n")


@pytest.mark.parametrize("value", ["x[i] * 1e30f", "x[i] * 60.0f", "-90.0f", "INFINITY", "-INFINITY", "0.0f"])
def test_hyperbolic_functions_of_large_numbers(value: str) -> None:
    source = GELU.replace("float v = x[i];", f"float v = {value};")
    source = source.replace("y[i] = 0.5f", "y[i] = tanhf(v) + 1.0f / c + 0.0f * c * 0.0f; if (false) y[i] = 0.5f")
    source = source.replace("+ 0.0f * c * 0.0f", "")
    site = make(source, "    gelu<<<(n + 255) / 256, 256>>>(x, y, n);")
    assert_equal(site, [one(site, "fast_math", form="hyperbolic")], [{"n": 64}])
