"""Buffers and numbers in the fields of struct parameters: read, packed, refused."""

import numpy as np
import pytest

from engine.errors import SpecError
from engine.model import Program
from engine.spec.kernel_spec import KernelSpec
from engine.spec.parameters import passed
from engine.spec.reader import specs_in
from engine.verify.widen import widened_spec

CODE = """
struct Shape {{ int rows; long cols; }};
struct Params {{ const float* x; char kind; double* y; Shape shape; float* parts[2]; void* raw; }};
{lines}
__global__ void k(float* plain, Params p) {{ p.y[threadIdx.x] = p.x[threadIdx.x] + plain[threadIdx.x]; }}
"""
LINES = (
    'args.plain = { role = "in", size = "8" }',
    'args.p.x = { size = "rows*cols" }',
    'args.p.y = { role = "out", size = "rows" }',
    "args.p.shape.rows = {}",
    'args.p.shape.cols = { value = "2*cols" }',
    'args.p.parts.1 = { role = "inout", size = "4" }',
    "time = [{ rows = 3, cols = 5 }]",
)


def _spec(*lines: str) -> KernelSpec:
    code = CODE.format(lines="\n".join(f"// optiml: {line}" for line in lines))
    (spec,) = specs_in(Program({"k.cu": code.encode()}, "k.cu"), None)
    return spec


def test_fields_are_arguments_at_their_offsets() -> None:
    spec = _spec(*LINES)
    assert [(a.name, a.type, a.role, a.offset) for a in spec.arguments] == [
        ("plain", "float", "in", 0), ("p", "struct:64", "scalar", 0), ("p.x", "float", "in", 0), ("p.y", "double", "out", 16),
        ("p.shape.rows", "int32", "scalar", 24), ("p.shape.cols", "int64", "scalar", 32), ("p.parts.1", "float", "inout", 48),
    ]  # fmt: skip
    assert spec.argument("p.shape.rows").size_name == "rows"
    assert spec.steps[0].arguments == ("plain", "p")
    assert spec.has_fields
    assert widened_spec(spec) is None


def test_a_launch_gets_the_bytes_with_addresses_in_their_places() -> None:
    spec = _spec(*LINES)
    values: dict[str, np.generic | bytes] = {"p": bytes(64), "p.shape.rows": np.int32(3), "p.shape.cols": np.int64(10)}
    plain, struct = passed(spec, spec.steps[0], values)
    assert (plain.data, plain.places) == (bytes(8), ((0, "plain"),))
    assert struct.places == ((0, "p.x"), (16, "p.y"), (48, "p.parts.1"))
    packed = struct.packed({"p.x": 1 << 40, "p.y": 2, "p.parts.1": 7}.__getitem__)
    assert np.frombuffer(packed, np.int64).tolist() == [1 << 40, 0, 2, 3, 10, 0, 7, 0]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ('args.p.z = { role = "in", size = "4" }', "it has no field 'z'"),
        ('args.p.y = { role = "out", size = "4", offset = 8 }', "is at offset 16, not 8"),
        ('args.p.y = { role = "out", size = "4", type = "int" }', "is double, not int32"),
        ('args.p.kind = { role = "in" }', "not a pointer and therefore a scalar"),
        ('args.p.shape = { value = "1" }', "is not the table of a field"),
        ('args.p.type = "struct:8"', "has 64 bytes, not 8"),
        ('args.p.kind = { value = "1000" }', "outside of int8"),
    ],
)
def test_a_wrong_field_is_named(line: str, what: str) -> None:
    with pytest.raises(SpecError, match=what):
        _spec(*[each for each in LINES if not each.startswith(line.partition(" =")[0])], line)


def test_offsets_stand_in_the_spec_where_the_source_does_not_show_them() -> None:
    code = """
struct Params { const float* x; at::Philox state; float* y; };
// optiml: args.p.type = "struct:40"
// optiml: args.p.x = { role = "in", size = "n", offset = 0, type = "float" }
// optiml: args.p.y = { role = "out", size = "n", offset = 32, type = "float" }
// optiml: time = [{ n = 4 }]
__global__ void k(Params p) { p.y[threadIdx.x] = p.x[threadIdx.x]; }
"""
    (spec,) = specs_in(Program({"k.cu": code.encode()}, "k.cu"), None)
    assert [(a.name, a.offset) for a in spec.arguments] == [("p", 0), ("p.x", 0), ("p.y", 32)]
    with pytest.raises(SpecError, match="share bytes"):
        specs_in(Program({"k.cu": code.replace("offset = 32", "offset = 4").encode()}, "k.cu"), None)
    with pytest.raises(SpecError, match=r"offset of 'y' is not|offset of 'p\.y' is not"):
        specs_in(Program({"k.cu": code.replace("offset = 32, ", "").encode()}, "k.cu"), None)
