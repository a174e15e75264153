import pytest

from engine.verify.widen import widen


def test_types_literals_and_functions_become_double():
    text, expressions = widen(
        "template<typename T> __global__ void k(const float* x, half h) { float4 v = make_float4(1.0f, 2.f, .5f, 3e-4f); "
        "x[0] = expf(v.x) + __fdividef(1.0f, fmaxf(h, 2)); } // 1.0f stays",
        ("k<float>",),
    )
    assert "const double* x, double h" in text
    assert "double4 v = make_double4(1.0, 2., .5, 3e-4)" in text
    assert "exp(v.x) + __optiml_div(1.0, fmax(h, 2))" in text
    assert "// 1.0f stays" in text
    assert expressions == ("k<double>",)


def test_integer_and_hex_literals_names_and_strings_stay():
    source = (
        'float f; int a = 0x1f; unsigned u = 10u; const char* s = "1.0f float"; int profile = 1; int myexpf = elf;\n'
        '#include "float.h"\n'
    )
    text, _ = widen(source, ("k",))
    for kept in ("0x1f", "10u", '"1.0f float"', "profile", "myexpf", "= elf", '#include "float.h"'):
        assert kept in text


def test_a_variable_named_half_is_no_type():
    """The reduction over a block did not compile in double precision, and nothing was compared with it."""
    loop = "for (int half = THREADS / 2; half > 0; half /= 2) s += t[half + half];"
    text, _ = widen("__global__ void k(float* t) { float s = 0; " + loop + " }", ("k",))
    assert loop in text
    assert "double s" in text


@pytest.mark.parametrize(
    "word",
    [
        "__float_as_int(x)",
        "reinterpret_cast<int4*>(p)",
        "reinterpret_cast<Pack<float>*>(p)",
        "union U {}",
        'asm("x")',
        "__half2 h",
    ],
)
def test_what_looks_at_bits_is_not_widened(word):
    assert widen(f"float x; {word};", ("k",)) is None


def test_elements_loaded_several_at_once_are_loaded_so_as_doubles():
    """Every kernel with vector loads had no float64 reference, and no other order of a sum came near enough to its result."""
    text, _ = widen(
        "__global__ void k(const float* x, float* y) { const float4 v = reinterpret_cast<const float4*>(x)[threadIdx.x]; "
        "*reinterpret_cast<float2 *>(y + 2) = make_float2(v.x, v.y); }",
        ("k",),
    )
    assert "const double4 v = reinterpret_cast<const double4*>(x)[threadIdx.x];" in text
    assert "*reinterpret_cast<double2 *>(y + 2) = make_double2(v.x, v.y);" in text


def test_integers_alone_have_nothing_to_widen():
    assert widen("__global__ void k(int* x) { x[0] = 1; }", ("k",)) is None


def test_a_float_that_is_written_by_its_bits_keeps_its_value():
    """INFINITY stands so in the headers' place, and every kernel with it had no float64 reference."""
    text, _ = widen(
        "#ifndef INFINITY\n#define INFINITY __int_as_float(0x7f800000)\n#endif\n#ifndef FLT_MAX\n#define FLT_MAX 3.402823466e+38f\n"
        "#endif\nfloat top = -INFINITY, low = FLT_MAX, one = __uint_as_float(0x3f800000u), n = __int_as_float(0x7fffffff), "
        "m = __int_as_float(0xff800000);",
        ("k",),
    )
    infinity = "__longlong_as_double(0x7ff0000000000000ll)"
    assert f"#ifndef INFINITY\n#define INFINITY {infinity}\n" in text
    assert "#ifndef FLT_MAX\n#define FLT_MAX 3.402823466e+38\n" in text
    assert "double top = -INFINITY, low = FLT_MAX, one = 1.0, n = __longlong_as_double(0x7ff8000000000000ll), " in text
    assert f"m = -{infinity};" in text


def test_constants_that_the_slice_does_not_define_keep_their_values():
    text, _ = widen("float a = FLT_MAX, b = -INFINITY, c = CUDART_INF_F;", ("k",))
    assert text.endswith(
        "double a = 3.4028234663852886e38, b = -__longlong_as_double(0x7ff0000000000000ll), "
        "c = __longlong_as_double(0x7ff0000000000000ll);"
    )
