"""Generation on a real GPU: kernels run in the GPU worker and are held against the reference there."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cuda.load import load_program
from engine.generate.author import place_kernel, workplace
from engine.generate.oracle import Oracle, prepare, read_reference
from engine.generate.task import read_task
from engine.generate.trial import Trial, check_plan
from engine.model import Outcome
from engine.run.machine import make_machine
from engine.spec.find import find_spec

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "benchmarks" / "generate"

STRAYS = """
Grid: (cols + 127) / 128
Block: 128
```cuda
__global__ void column_sum_kernel(const float* x, float* sums, int rows, int cols) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
    for (int r = 0; r < rows && col < cols; ++r) {
        sum += x[(size_t)r * cols + col];
    }
    sums[col] = sum;
}
```
"""


def test_each_ending_of_a_trial_on_the_gpu(tmp_path: Path) -> None:
    """Right, beyond an array's end, an endless loop, a wrong sum, and CUB; the real shape too."""
    machine = make_machine(device="gpu")
    oracle = Oracle(read_reference(f"{RECORDED / 'column_sum' / 'ref.py'}:column_sum"), machine.box)
    task = read_task((RECORDED / "column_sum" / "task.md").read_text(), required=oracle.required, known=oracle.required)
    (tmp_path / ".git").mkdir()
    (tmp_path / "k.cu").write_text(task.file(("Task",)))
    spec, _ = find_spec(tmp_path, tmp_path / "k.cu")
    skeleton = load_program(tmp_path / "k.cu")
    known = prepare(spec, task, [oracle], check_plan(spec, random.Random(1), real=True))
    trial = Trial(task, spec, tmp_path, machine, skeleton, known)
    place = workplace(skeleton, spec, machine.target, skeleton)
    right = (RECORDED / "column_sum" / "memory.md").read_text()
    try:
        for text, outcome in (
            (right, Outcome.SCREENED),
            (STRAYS, Outcome.MEMORY_ERROR),
            (right, Outcome.SCREENED),  # the worker is whole again
            # It writes on the way: a loop that does nothing may be left out by the compiler.
            (right.replace("r += 8) {", "r += 0) {\n            sums[col] = sum;"), Outcome.TIMED_OUT),
            ((RECORDED / "column_sum" / "library.md").read_text(), Outcome.SCREENED),
            (right.replace("k = 1; k < 8", "k = 1; k < 7"), Outcome.WRONG_RESULT),
        ):
            tried = trial(place_kernel(text, place)[1])
            assert tried.outcome is outcome, tried.failure
    finally:
        trial.close()
        oracle.close()
        machine.close()


def test_a_reference_in_cupy_computes_on_the_gpu(tmp_path: Path) -> None:
    (tmp_path / "ref.py").write_text("import cupy as cp\n\ndef column_sum(x):\n    return cp.sum(x, axis=0)\n")
    machine = make_machine(device="gpu")
    oracle = Oracle(read_reference(f"{tmp_path / 'ref.py'}:column_sum"), machine.box, gpu=True, device=machine.device)
    try:
        task = read_task(
            (RECORDED / "column_sum" / "task.md").read_text(), required=oracle.required, known=oracle.required
        )
        (tmp_path / "k.cu").write_text(task.file(("Task",)))
        spec, _ = find_spec(tmp_path, tmp_path / "k.cu")
        known = prepare(spec, task, [oracle], check_plan(spec, random.Random(1), real=False))
        one = next(k for k in known if k.case.sizes["rows"] == 7)
        want = one.buffers["x"].astype(float).reshape(7, -1).sum(axis=0)
        assert one.wide["sums"] == pytest.approx(want, rel=1e-12, abs=1e-12)
    finally:
        oracle.close()
        machine.close()


def test_recorded_answers_become_measured_kernels(tmp_path: Path) -> None:
    command = [
        sys.executable, str(ROOT / "benchmarks" / "generate_tasks.py"), "column_sum", "--device", "gpu", "--budget", "30s",
        "--work", str(tmp_path / "work"), "--record", str(tmp_path / "record.json"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    runs = json.loads((tmp_path / "record.json").read_text())["runs"]
    assert [run["result"]["mode"] for run in runs] == ["measured", "measured"]
    assert all(s["right"] for s in runs[0]["result"]["strategies"])
    assert runs[0]["result"]["ratio"] > 1.5
    assert runs[1]["result"]["ratio"] >= 0.95 * runs[0]["result"]["ratio"]
