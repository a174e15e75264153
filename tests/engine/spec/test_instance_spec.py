"""The spec of another instance: types, fills, numbers and launches of other template arguments."""

from __future__ import annotations

import pytest

from engine.errors import SpecError
from engine.model import LaunchConfig, Program
from engine.spec.instance_spec import instance_specs
from engine.spec.kernel_spec import KernelSpec
from engine.spec.launch_config import evaluate
from engine.spec.reader import specs_in

_TYPES = """
#include <cuda_bf16.h>
typedef __nv_bfloat16 floatX;
struct Pair { float a; int b; };
// optiml: kernel = "scale<float>"
// optiml: tolerance = 1e-6
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.w = { role = "in", size = "n", fill = { kind = "uniform", low = 0.5, high = 1.5 } }
// optiml: args.y = { role = "out", size = "n", tolerance = 1e-5 }
// optiml: args.factor = { value = "3" }
// optiml: check = [{ n = 903 }]
// optiml: time = [{ n = 1048576 }]
template <typename T> __global__ void scale(const T* x, const float* w, T* y, T factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] * factor * (T)w[i];
}
void floats(const float* x, const float* w, float* y, int n) { scale<float><<<(n + 255) / 256, 256>>>(x, w, y, 3.f, n); }
void others(const floatX* x, const float* w, floatX* y, int n) { scale<floatX><<<(n + 127) / 128, 128>>>(x, w, y, 3.f, n); }
"""
_BLOCKS = """
// optiml: kernel = "sums<256, 4>"
// optiml: launch = { grid = "n / 1024", block = "256", shared = "4*256" }
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n / (256*4)" }
// optiml: check = [{ n = 2048 }]
// optiml: time = [{ n = 1048576 }]
template <int BLOCK, int ITEMS> __global__ void sums(const float* x, float* y, int n);
template <int BLOCK, int ITEMS> __global__ void sums(const float* x, float* y, int n) { y[blockIdx.x] = x[threadIdx.x]; }
"""


def specs(text: str, expression: str) -> tuple[KernelSpec, ...]:
    program = Program({"k.cu": text.encode()}, "k.cu")
    return instance_specs(program, specs_in(program, None)[0], expression)


def test_types_follow_the_template_argument_and_their_tolerance_is_their_own() -> None:
    (spec,) = specs(_TYPES, "scale<__nv_bfloat16>")
    types = {a.name: a.type for a in spec.arguments}
    assert types == {"x": "bfloat16", "w": "float", "y": "bfloat16", "factor": "bfloat16", "n": "int32"}
    assert (spec.tolerance, spec.argument("y").tolerance) == (None, None)
    assert spec.expressions == ("scale<__nv_bfloat16>",)
    assert spec.argument("w").fill.kind == "uniform"


def test_fills_are_those_that_the_type_holds() -> None:
    (spec,) = specs(_TYPES, "scale<unsigned char>")
    fill = spec.argument("x").fill
    assert (fill.kind, fill.low, fill.high) == ("integers", "0", "101")
    (spec,) = specs(_TYPES, "scale<int>")
    fill = spec.argument("x").fill
    assert (fill.kind, fill.low, fill.high) == ("integers", "-100", "101")


def test_the_launch_is_that_of_the_instance_whatever_its_type_is_called_there() -> None:
    program = Program({"k.cu": _TYPES.encode()}, "k.cu")
    (own,) = specs_in(program, None)
    (other,) = instance_specs(program, own, "scale<__nv_bfloat16>")
    found = [evaluate(program, spec, 0, {"n": 1024}) for spec in (own, other)]
    assert found == [LaunchConfig((4, 1, 1), (256, 1, 1)), LaunchConfig((8, 1, 1), (128, 1, 1))]


def test_numbers_of_the_spec_may_be_the_template_arguments() -> None:
    same, other = specs(_BLOCKS, "sums<128, 4>")
    assert same.argument("y").size == "n / (256*4)"
    assert other.argument("y").size == "n / (128*4)"
    launch = other.steps[0].launch
    assert launch is not None
    assert (launch.block, launch.shared) == (("128",), "4*128")
    assert not other.origin  # its launch is not that of the spec's text


def test_a_type_that_is_no_number_is_refused_with_the_reason() -> None:
    with pytest.raises(SpecError, match=r"the type of 'x' in scale<Pair> is not known"):
        specs(_TYPES, "scale<Pair>")
    with pytest.raises(SpecError, match="has no template arguments"):
        specs(_TYPES, "other<float>")


def test_an_instance_that_no_launch_shows_has_the_launch_of_the_template() -> None:
    only = _TYPES[: _TYPES.index("void others")]
    (spec,) = specs(only, "scale<double>")
    program = Program({"k.cu": only.encode()}, "k.cu")
    assert evaluate(program, spec, 0, {"n": 1024}) == LaunchConfig((4, 1, 1), (256, 1, 1))
