"""Originals whose widened twin computes something else: what is no reference must not set the tolerance."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from engine.cuda.load import load_program
from engine.run.machine import Machine
from engine.spec.find import find_spec
from tests.adversarial.conftest import cpu as cpu

TEXT = """\
#include <cuda_fp16.h>
// optiml: args.x = { role = "in", size = "8*n", fill = { kind = "integers", low = 0, high = 60 } }
// optiml: args.y = { role = "out", size = "8*n" }
// optiml: check = [{ n = 1 }, { n = 333 }, { n = 700 }]
// optiml: time = [{ n = 1000000 }]
__global__ void unpack(const unsigned char* x, half* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    uint2 a = ((const uint2*)x)[i];
    uint4* to = (uint4*)(y + 8 * i);
    *to = make_uint4(a.x & 0xff00ff00, (a.x & 0x00ff00ff) << 8, a.y & 0xff00ff00, (a.y & 0x00ff00ff) << 8);
}

void launch(const unsigned char* x, half* y, int n) {
    unpack<<<(n + 255) / 256, 256>>>(x, y, n);
}
"""


def test_bits_that_are_stored_as_whole_numbers_are_no_doubles(cpu: Machine, tmp_path: Path) -> None:
    """ "all zeros in 'y' would be accepted": beside what the twin left of doubles every error was rounding."""
    (tmp_path / ".git").mkdir()
    path = tmp_path / "k.cu"
    path.write_text(TEXT)
    spec, spec_path = find_spec(tmp_path, path)
    with closing(cpu.evaluator(spec, tmp_path, spec_path)) as evaluator:
        evaluator.open(load_program(path, spec_file=spec_path))
        assert any("no float64 reference" in missing for missing in evaluator.signals.missing)
