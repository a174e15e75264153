"""`__constant__` variables as inputs of a spec: declared in the file or a header, read from the table `args`."""

from __future__ import annotations

import pytest

from engine.cuda.parse import parse
from engine.errors import SpecError
from engine.model import Program
from engine.spec.constant_memory import constant_variables, unfilled_constants
from engine.spec.kernel_spec import Fill, KernelSpec
from engine.spec.reader import specs_in
from engine.verify.widen import widened_spec

CODE = """
#include "sizes.h"
typedef unsigned char uchar;
namespace a { namespace b {
  __constant__ float weights[2 * R + 1][W];
  static __constant__ __align__(16) Params params;
  __constant__ int first, second[4];
  __constant__ const uchar table[] = { 1, 2, 3 };
  __device__ float tap(int i) { return weights[0][i]; }
  // optiml: args.y = { role = "out", size = "n" }
LINES
  // optiml: time = [{ n = 64 }]
  __global__ void k(float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = tap(first) + params.gain + table[0]; }
} }
"""
HEADER = "#define R 2\nconstexpr int W = 3;\nstruct Params { int n; float gain; const float* more; };\n"


def program(*lines: str) -> Program:
    text = CODE.replace("LINES", "\n".join(f"  // optiml: args.{line}" for line in lines))
    return Program({"k.cu": text.encode(), "sizes.h": HEADER.encode()}, "k.cu")


def read(*lines: str) -> KernelSpec:
    return specs_in(program(*lines), None)[0]


def test_variables_are_found_with_their_namespaces() -> None:
    found = {v.name: v for v in constant_variables(program())}
    assert found.keys() == {"weights", "params", "first", "second", "table"}
    assert found["weights"].qualified == "a::b::weights"
    assert (found["weights"].kind, found["weights"].extents) == ("float", ("2 * R + 1", "W"))
    assert (found["params"].kind, found["params"].extents) == ("Params", ())
    assert (found["first"].extents, found["second"].kind, found["second"].extents) == ((), "int", ("4",))
    assert [v.name for v in found.values() if v.initialised] == ["table"]


def test_what_a_kernel_reads_of_them() -> None:
    made = program()
    unit = parse(made.data, "k.cu")
    assert [v.name for v in unfilled_constants(made, unit, unit.kernel("k"))] == ["first", "params", "weights"]


def test_arrays_are_filled_and_scalars_valued() -> None:
    spec = read(
        'weights = { fill = "normal" }',
        'first = { value = "n - 1" }',
        'second = { fill = "integers", low = 0, high = 3 }'.replace(
            'fill = "integers", low = 0, high = 3', 'fill = { kind = "integers", low = 0, high = 3 }'
        ),
    )
    weights, first, second = (spec.argument(n) for n in ("weights", "first", "second"))
    assert (weights.role, weights.size, weights.type, weights.symbol) == ("in", "15", "float", "a::b::weights")
    assert weights.fill == Fill()
    assert (first.role, first.value, first.symbol) == ("scalar", "n - 1", "a::b::first")
    assert (second.size, second.type) == ("4", "int32")
    assert spec.steps[0].arguments == ("y", "n")
    assert [a.name for a in spec.symbols] == ["weights", "first", "second"]
    wide = widened_spec(spec)
    assert wide is not None
    assert wide.argument("weights").type == "double"


def test_fields_of_a_struct() -> None:
    spec = read("params.n = {}", "params.gain = { value = 0.5 }", 'params.more = { size = "n", fill = "normal" }')
    assert [(a.name, a.offset, a.symbol) for a in spec.arguments[2:]] == [
        ("params", 0, "a::b::params"), ("params.n", 0, "a::b::params"),
        ("params.gain", 4, "a::b::params"), ("params.more", 8, "a::b::params"),
    ]  # fmt: skip
    assert [a.name for a in spec.symbols] == ["params"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('weights = { size = "15" }', "'size' does not apply"),
        ('weights = { role = "out" }', "'role' does not apply"),
        ("weights = { value = 1 }", "'value' does not apply"),
        ('first = { fill = "normal" }', "'fill' does not apply"),
        ("third = { value = 1 }", "'third' is not a parameter of 'k', and no __constant__ variable"),
        ('weights = { type = "double" }', "'weights' is float, not double"),
        ("second = {}", "its fill is missing"),
        ("params.gone = {}", "has no field 'gone'"),
    ],
)
def test_what_does_not_fit_is_refused(line: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        read(line)


def test_two_of_one_name_are_refused() -> None:
    made = program("first = { value = 1 }")
    other = {**made.files, "k.cu": made.data + b"\nnamespace c { __constant__ int first; }\n"}
    with pytest.raises(SpecError, match="'first' is defined more than once"):
        specs_in(Program(other, "k.cu"), None)
