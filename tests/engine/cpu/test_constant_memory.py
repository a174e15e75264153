"""`__constant__` memory that host code fills: a spec gives its contents, each launch finds them there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.cpu import CpuJob, CpuMachine
from engine.cpu.sampled import Sample
from engine.errors import CompileError, OptimlError
from engine.model import Program
from engine.spec.reader import specs_in
from tests.engine.cpu.conftest import launch

CODE = """
#define TAPS 3
struct Shape { int n; const float* bias; };
namespace filter {
static __constant__ float taps[TAPS];
__constant__ Shape shape;
__constant__ int shift;
// optiml: args.x = { size = "n + 2", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: args.taps = { fill = "normal" }
// optiml: args.shape.n = { value = "n" }
// optiml: args.shape.bias = { role = "in", size = "n", fill = "normal" }
// optiml: args.shift = { value = 1 }
// optiml: time = [{ n = 40 }]
__global__ void k(const float* x, float* y) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < shape.n) y[i] = taps[0] * x[i] + taps[1] * x[i + 1] + taps[TAPS - 1] * x[i + 2] + shape.bias[i] + shift;
}
}
"""
NAMES = ["filter::k", "&filter::taps", "&filter::shape", "&filter::shift"]


def test_a_launch_finds_the_contents_in_constant_memory(machine: CpuMachine) -> None:
    (spec,) = specs_in(Program({"k.cu": CODE.encode()}, "k.cu"), None)
    assert spec.expressions == tuple(NAMES)
    binary = machine.build(CODE, "k.cu", spec, NAMES)
    x, taps, bias = np.arange(42, dtype=np.float32), np.array([1, 2, 4], np.float32), np.full(40, 0.5, np.float32)
    buffers = {"x": x, "y": np.zeros(40, np.float32), "taps": taps, "shape.bias": bias}
    scalars = {"shape": bytes(16), "shape.n": np.int32(40), "shift": np.int32(1)}
    jobs = [CpuJob([launch(2, 32)], {**buffers, "taps": taps * k}, scalars, count=True) for k in (1, 3)]
    for k, run in zip((1, 3), machine.run_many(binary, jobs), strict=True):
        assert run.findings == ()
        wanted = k * (x[:40] + 2 * x[1:41] + 4 * x[2:42]) + 1.5
        assert run.outputs["y"].tolist() == wanted.tolist()
    assert machine.races(binary, jobs) == ()


def test_a_sampled_launch_finds_them_too(machine: CpuMachine) -> None:
    (spec,) = specs_in(Program({"k.cu": CODE.encode()}, "k.cu"), None)
    binary = machine.build(CODE, "k.cu", spec, NAMES)
    names = {"x": 42, "y": 40, "taps": 3, "shape.bias": 40}
    buffers = {name: np.ones(min(n, 4), np.float32) for name, n in names.items()}
    scalars = {"shape": bytes(16), "shape.n": np.int32(40), "shift": np.int32(1)}
    sample = Sample(blocks=(1,), entries=names, apart=dict.fromkeys(names, 0))
    (run,) = machine.run_many(binary, [CpuJob([launch(2, 32)], buffers, scalars, sample=sample)])
    assert run.findings == ()
    assert run.writes["y"].entries.tolist() == list(range(32, 40))
    assert run.writes["y"].values.tolist() == [5.0] * 8


def test_a_constant_of_another_size_is_a_finding(machine: CpuMachine) -> None:
    (spec,) = specs_in(Program({"k.cu": CODE.encode()}, "k.cu"), None)
    binary = machine.build(CODE.replace("float taps[TAPS]", "double taps[TAPS]"), "k.cu", spec, NAMES)
    buffers = {n: np.zeros(42 if n != "taps" else 3, np.float32) for n in ("x", "y", "taps", "shape.bias")}
    scalars = {"shape": bytes(16), "shape.n": np.int32(40), "shift": np.int32(1)}
    (run,) = machine.run_many(binary, [CpuJob([launch(2, 32)], buffers, scalars)])
    assert [f.kind for f in run.findings] == ["crash"]
    assert "__constant__ variable 1 of the spec has 24 bytes" in run.findings[0].message


def test_a_name_of_nothing_is_refused(machine: CpuMachine, tmp_path: Path) -> None:
    (spec,) = specs_in(Program({"k.cu": CODE.encode()}, "k.cu"), None)
    with pytest.raises(CompileError):
        machine.build(CODE, "k.cu", spec, [*NAMES, "&filter::none"])
    with pytest.raises(OptimlError):
        machine.build(CODE, "k.cu", spec, [*NAMES, "&filter::taps; int x"])
