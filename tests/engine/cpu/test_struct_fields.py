"""Buffers whose addresses stand in a struct: red zones around them as around any other, and roles as trials show them."""

from __future__ import annotations

import numpy as np
import pytest

from engine.cpu import CpuJob, CpuMachine, CpuRun
from engine.model import Program
from engine.spec.reader import specs_in
from tests.engine.cpu.conftest import launch

CODE = """
struct Shape { int n; };
struct Params { const float* x; Shape shape; float* parts[2]; const float* none; };
// optiml: args.p.x = { size = "n", fill = "normal" }
// optiml: args.p.shape.n = {}
// optiml: args.p.parts.1 = { role = "out", size = "n" }
// optiml: time = [{ n = 40 }]
__global__ void k(Params p) {
  int i = threadIdx.x;
  if (i < p.shape.n) p.parts[1][i + EXTRA] = p.x[i] + (p.none ? p.none[i] : 1.0f);
}
"""


@pytest.mark.parametrize(("extra", "kinds"), [("0", set()), ("1", {"out_of_bounds"}), ("(p.x == p.parts[1])", set())])
def test_a_struct_of_pointers_runs(extra: str, kinds: set[str], machine: CpuMachine) -> None:
    text = CODE.replace("EXTRA", extra)
    (spec,) = specs_in(Program({"k.cu": text.encode()}, "k.cu"), None)
    x = np.arange(40, dtype=np.float32)
    buffers = {"p.x": x, "p.parts.1": np.zeros(40, np.float32)}
    scalars = {"p": bytes(40), "p.shape.n": np.int32(40)}
    binary = machine.build(text, "k.cu", spec, ["k"])
    job = CpuJob([launch(1, 64)], buffers, scalars, count=True)
    run: CpuRun = machine.run_many(binary, [job])[0]
    assert {f.kind for f in run.findings} == kinds
    if kinds:
        assert run.findings[0].array == "p.parts.1"
        return
    assert run.outputs["p.parts.1"].tolist() == (x + 1).tolist()
    assert run.touched == {"p.x": 40, "p.parts.1": 40}
    assert machine.races(binary, [job]) == ()
