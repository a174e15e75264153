"""Specs that are drafted where none is declared: what is tried, and what keeps a draft from being tried."""

from __future__ import annotations

from pathlib import Path

from engine.process.sandbox import sandbox
from engine.run.ready_spec import SpecMaker


def test_an_empty_struct_is_no_unknown_type(tmp_path: Path) -> None:
    code = """
struct Twice { __device__ float operator()(float x) const { return 2 * x; } };
template <typename MapFn> __global__ void k(const float* x, float* y, int n, MapFn f) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = f(x[i]);
}
void run(const float* x, float* y, int n) { k<Twice><<<(n + 255) / 256, 256>>>(x, y, n, Twice()); }
"""
    (tmp_path / "k.cu").write_text(code)
    spec = SpecMaker(tmp_path, sandbox(False)).ready(tmp_path / "k.cu", "k").spec
    assert spec.argument("f").value == "hex:00"
    assert (spec.argument("x").size, spec.argument("y").role) == ("n", "out")
