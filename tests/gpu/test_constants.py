"""Constant memory that host code fills, on a real GPU: set for original and candidates alike, before checks and timed launches."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.model import Outcome
from engine.run.machine import Machine, make_machine
from tests.gpu.test_evaluate import Bench

pytestmark = pytest.mark.gpu

# An array in a namespace and static, a number, a struct with an address: what a launch of 2 ms and one of some microseconds find.
FILTER = """\
// optiml: args.x = { role = "in", size = "n + 2", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: args.taps = { fill = "normal" }
// optiml: args.gain = { value = 0.75 }
// optiml: args.shape.n = { value = "n" }
// optiml: args.shape.bias = { role = "in", size = "n", fill = "normal" }
// optiml: check = [{ n = 1 }, { n = 333 }, { n = 5000 }]
// optiml: time = [{ n = TIMED }]
struct Shape { int n; const float* bias; };
namespace filter {
static __constant__ float taps[3];
__constant__ float gain;
__constant__ Shape shape;
__global__ void k(const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < shape.n) {
        y[i] = gain * (taps[0] * x[i] + taps[1] * x[i + 1] + taps[2] * x[i + 2]) + shape.bias[i];
    }
}
}
void launch(const float* x, float* y, int n) {
    filter::k<<<(n + 63) / 64, 64>>>(x, y);
}
"""
RIGHT = "taps[2] * x[i + 2] + taps[1] * x[i + 1] + taps[0] * x[i]"
SUM = "taps[0] * x[i] + taps[1] * x[i + 1] + taps[2] * x[i + 2]"


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    found = make_machine(device="gpu")
    yield found
    found.close()


@pytest.fixture(params=["33554432", "65536"])
def bench(request: pytest.FixtureRequest, machine: Machine, tmp_path: Path) -> Iterator[Bench]:
    found = Bench(machine, tmp_path, FILTER.replace("TIMED", request.param))
    yield found
    found.evaluator.close()


def test_the_original_validates_and_has_its_own_speed(bench: Bench) -> None:
    measurement = bench.evaluation.measurement
    assert 0.9 < measurement.ratio < 1.1


def test_an_honest_edit_passes_its_checks(bench: Bench) -> None:
    evaluation = bench(SUM, RIGHT)
    assert evaluation.outcome in (Outcome.NO_DIFFERENCE, Outcome.ACCEPTED, Outcome.SLOWER), evaluation
    built = bench.build("filter::k<<<(n + 63) / 64, 64>>>", "filter::k<<<(n + 255) / 256, 256>>>")
    assert bench.evaluator.evaluate(built, None)[0].outcome in (Outcome.NO_DIFFERENCE, Outcome.ACCEPTED, Outcome.SLOWER)


@pytest.mark.parametrize(
    ("old", "new"),
    [("gain * (", "0.75f * 1.01f * ("), ("taps[2] * x", "taps[1] * x"), ("+ shape.bias[i]", "+ shape.bias[0]")],
)
def test_an_edit_that_takes_other_contents_is_incorrect(bench: Bench, old: str, new: str) -> None:
    assert bench(old, new).outcome is Outcome.WRONG_RESULT
