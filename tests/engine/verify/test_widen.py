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


@pytest.mark.parametrize(
    "word", ["__float_as_int(x)", "reinterpret_cast<float4*>(p)", "union U {}", 'asm("x")', "__half2 h"]
)
def test_what_looks_at_bits_is_not_widened(word):
    assert widen(f"float x; {word};", ("k",)) is None


def test_integers_alone_have_nothing_to_widen():
    assert widen("__global__ void k(int* x) { x[0] = 1; }", ("k",)) is None
