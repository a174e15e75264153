"""Some blocks of a launch that is too large to be run whole."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest

import engine.cpu.cpu_machine
from engine.cpu.sampled import _LINE, SAMPLE_BYTES, Sample, read_writes
from engine.process.bounded_output import BoundedOutput
from tests.engine.cpu.conftest import Kernel, Make, launch

N = 1 << 30
SHIFT = """__global__ void shift(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + 1.0f;
    if (i == 77) y[i & 63] = 2.0f;
    if (n < 0) y[n] = 0.0f;
}"""
TILE = np.arange(65521, dtype=np.float32)


@pytest.fixture(scope="module")
def kernel(make: Make) -> Kernel:
    arguments = [("x", "in", TILE), ("y", "out", np.zeros(1, np.float32)), ("n", "scalar", np.int32(N))]
    return make(SHIFT, "shift", launch(N // 256, 256), arguments)


def test_blocks_of_four_gibibytes_are_run_over_what_they_touch(kernel: Kernel) -> None:
    last = N // 256 - 1
    sample = Sample((0, 1000, last), {"x": N, "y": N}, {"x": 1 << 20, "y": 48})
    (run,) = kernel.machine.run_many(kernel.binary, [replace(kernel.job(), sample=sample)])
    assert not run.findings
    assert not run.outputs
    writes = run.writes["y"]
    wanted = np.concatenate([np.arange(b * 256, b * 256 + 256) for b in sample.blocks])
    assert (writes.entries == wanted).all()
    expected = (wanted % TILE.size + 1).astype(np.float32)
    expected[77 & 63] = 2.0
    assert (writes.values == expected).all()
    assert writes.entries[writes.several].tolist() == [77 & 63]
    assert writes.lowest == {place: block * 256 for place, block in enumerate(sample.blocks)}


def test_an_access_outside_is_found_at_any_size(kernel: Kernel) -> None:
    sample = Sample((N // 256 - 1,), {"x": N, "y": N - 5}, {"x": 0, "y": 0})
    (run,) = kernel.machine.run_many(kernel.binary, [replace(kernel.job(), sample=sample)])
    assert [found.kind for found in run.findings] == ["out_of_bounds"]


def test_a_sample_that_writes_more_than_is_listed_did_not_fail_to_end(make: Make) -> None:
    text = "__global__ void ones(float* y, int n) { for (int i = 0; i < n; i++) y[i] = 1.0f; }"
    many = make(text, "ones", launch(1, 1), [("y", "out", np.zeros(1, np.float32)), ("n", "scalar", np.int32(300_000))])
    (run,) = many.machine.run_many(many.binary, [replace(many.job(), sample=Sample((0,), {"y": 300_000}, {"y": 0}))])
    assert [found.kind for found in run.findings] == ["sample_full"]


def test_results_of_any_number_of_samples_are_there(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 386 samples the last were killed: together their results were more than a process may write. These were the large ones."""
    monkeypatch.setattr(engine.cpu.cpu_machine, "_FILE_BYTES", 64 << 20)
    sample = Sample((0, 1000), {"x": N, "y": N}, {"x": 0, "y": 0})
    runs = kernel.machine.run_many(kernel.binary, [replace(kernel.job(), sample=sample)] * 12)
    assert [(len(run.writes["y"].entries), run.findings) for run in runs] == [(512, ())] * 12


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2)])
def test_a_list_is_read_in_whatever_order_it_was_written(order: tuple[int, ...]) -> None:
    lines = np.zeros(4, np.dtype(_LINE))
    for place, (buffer, element) in enumerate([(0, 7), (1, 2), (1, 5), (9, 0)]):
        lines[place] = (buffer, place, place % 2, element, np.float32(10 + place).tobytes().ljust(16, b"\0"))
    data = len(lines).to_bytes(8, "little") + lines[list(order)].tobytes()
    with BoundedOutput(SAMPLE_BYTES) as results:
        os.pwrite(results.fileno(), data, 0)
        found = read_writes(results, 0, {"x": np.dtype(np.float32), "y": np.dtype(np.float32)})
    assert {name: writes.entries.tolist() for name, writes in found.items()} == {"x": [7], "y": [2, 5]}
    assert found["y"].values.tolist() == [11.0, 12.0]
    assert found["y"].several.tolist() == [True, False]
