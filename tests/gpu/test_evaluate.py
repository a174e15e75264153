"""The measured path on a real GPU: honest candidates pass, each way to fail has its outcome, a broken worker is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.compile.built import Built
from engine.cuda.load import load_program
from engine.errors import RefusedError
from engine.evaluate.cpu import CpuEvaluator
from engine.evaluate.gpu import GpuEvaluator
from engine.model import Evaluation, Outcome, Program
from engine.run.machine import Machine, make_machine
from engine.spec.find import find_spec
from tests.processes import below

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
ROWSUM = (ROOT / "engine/selftest/originals/rowsum.cu").read_text()

SCALE = """\
// optiml: args.x = { role = "in", size = "n", fill = "normal" }
// optiml: args.y = { role = "out", size = "n" }
// optiml: check = [{ n = 1 }, { n = 333 }, { n = 5000 }]
// optiml: time = [{ n = 33554432 }]
__global__ void scale(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        y[i] = expf(x[i] * 0.25f) + 2.0f;
    }
}

void launch(const float* x, float* y, int n) {
    scale<<<(n + 63) / 64, 64>>>(x, y, n);
}
"""


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    found = make_machine(device="gpu")
    yield found
    found.close()


class Bench:
    def __init__(self, machine: Machine, folder: Path, text: str) -> None:
        path = folder / "k.cu"
        path.write_text(text)
        self.spec, spec_path = find_spec(folder, path)
        self.program = load_program(path, spec_file=spec_path)
        evaluator = machine.evaluator(self.spec, folder, spec_path)
        assert isinstance(evaluator, CpuEvaluator | GpuEvaluator)  # tests without a GPU use this too
        self.evaluator = evaluator
        self.original, self.evaluation = self.evaluator.open(self.program)

    def build(self, old: str, new: str) -> Built:
        text = self.program.data.decode()
        assert old in text
        return self.evaluator.build(Program({"k.cu": text.replace(old, new).encode()}, "k.cu"), by_rules=False)

    def __call__(self, old: str, new: str) -> Evaluation:
        return self.evaluator.evaluate(self.build(old, new), None)[0]


@pytest.fixture(scope="module")
def bench(machine: Machine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    found = Bench(machine, tmp_path_factory.mktemp("scale"), SCALE)
    yield found
    found.evaluator.close()


def test_the_original_is_no_faster_than_itself(bench: Bench) -> None:
    measurement = bench.evaluation.measurement
    assert 0.97 < measurement.ratio < 1.03
    evaluation = bench("+ 2.0f;", "+ 1.0f + 1.0f;")
    assert evaluation.outcome in (Outcome.NO_DIFFERENCE, Outcome.ACCEPTED, Outcome.SLOWER)
    assert 0.97 < evaluation.measurement.ratio < 1.03


def test_opening_compiles_no_kernel_of_cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where CuPy compares, fills and draws it compiles kernels first, in each run that finds no cache."""
    monkeypatch.setenv("OPTIML_CACHE", str(tmp_path / "cache"))
    with contextlib.closing(make_machine(device="gpu")) as cold:
        found = Bench(cold, tmp_path, SCALE)
        try:
            assert found("+ 2.0f;", "+ 1.0f + 1.0f;").outcome is not Outcome.CRASHED
        finally:
            found.evaluator.close()
    assert [path.name for path in (tmp_path / "cache").rglob("cupy/*")] == []


def test_another_order_of_a_sum_is_no_fault_where_few_results_are_finite(machine: Machine, tmp_path: Path) -> None:
    """Of thirteen rows with NaN in them one or two have a sum, and the original may have been exact there by luck."""
    found = Bench(machine, tmp_path, ROWSUM)
    try:
        outcomes = [
            found("for (int c = t; c < cols; c += 128) {", f"for (int c = (t + {step}) % 128; c < cols; c += 128) {{")
            for step in range(1, 40)
        ]
        assert [each.failure for each in outcomes if each.outcome is Outcome.WRONG_RESULT] == []
    finally:
        found.evaluator.close()


def test_what_is_far_too_slow_is_given_up_after_two_launches(bench: Bench) -> None:
    body = (
        "float v = x[i]; for (int k = 0; k < 3000; ++k) { v = v * 0.5f + x[i] * 0.5f; } y[i] = expf(v * 0.25f) + 2.0f;"
    )
    evaluation = bench("y[i] = expf(x[i] * 0.25f) + 2.0f;", body)
    assert evaluation.outcome is Outcome.SLOWER, evaluation
    assert evaluation.measurement.cases[0].samples == 2
    assert 0.01 < evaluation.measurement.ratio < 0.7


def test_a_better_block_is_accepted_with_its_interval_and_confirmed(bench: Bench) -> None:
    built = bench.build("scale<<<(n + 63) / 64, 64>>>", "scale<<<(n + 255) / 256, 256>>>")
    evaluation, _ = bench.evaluator.evaluate(built, None)
    assert evaluation.outcome is Outcome.ACCEPTED
    assert evaluation.measurement.low > 1.0
    confirmed = bench.evaluator.confirm(built)
    assert confirmed.outcome is Outcome.ACCEPTED
    assert confirmed.measurement.ratio == pytest.approx(evaluation.measurement.ratio, rel=0.05)


def test_a_worker_that_is_held_up_now_and_then_is_believed(machine: Machine, tmp_path: Path) -> None:
    """A busy host's pauses: each spoils a batch of launches, and no comparison of a second is without one."""
    text = SCALE.replace("time = [{ n = 33554432 }]", "time = [{ n = 65536 }]")
    bench = Bench(machine, tmp_path, text)
    try:
        worker = below(bench.evaluator._runner._worker.pid)[-1]
        over = threading.Event()

        def hold_up() -> None:
            while not over.wait(0.05):
                os.kill(worker, signal.SIGSTOP)
                time.sleep(0.01)
                os.kill(worker, signal.SIGCONT)

        beside = threading.Thread(target=hold_up)
        beside.start()
        try:
            timings = [bench.evaluator._timing(["original", "original"], "final") for _ in range(5)]
            found = [bench.evaluator._time(timing)[0] for timing in timings]
        finally:
            over.set()
            beside.join()
        assert [m.notes for m in found if not m.stable] == []
        assert all(0.98 < m.ratio < 1.02 for m in found)
    finally:
        bench.evaluator.close()


def test_a_worker_starts_without_what_takes_longest_to_import() -> None:
    pytest.importorskip("scipy")
    code = "import sys, cupy; had = set(sys.modules); import engine.gpu.timing; sys.exit(int('scipy' in set(sys.modules) - had))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("old", "new", "outcome", "says"),
    [
        ("+ 2.0f", "+ 2.001f", Outcome.WRONG_RESULT, "differs at"),
        ("if (i < n) {", "if (i < n - 1) {", Outcome.WRONG_RESULT, "index"),
        ("if (i < n) {", "if (i < n) { y[n] = 0.0f;", Outcome.MEMORY_ERROR, "outside an array, after y"),
        ("if (i < n) {", "if (i < n) { y[-1] = 0.0f;", Outcome.MEMORY_ERROR, "outside an array, after x"),
        ("if (i < n) {", "if (i < n) { ((float*)x)[i] = 0.0f;", Outcome.MEMORY_ERROR, "changed the input 'x'"),
        ("if (i < n) {", "if (i < n) { y[i + (1ll << 40)] = 0.0f;", Outcome.MEMORY_ERROR, "faulted"),
        ("if (i < n) {", "while (n > 0) { if (y[0] == 1.5f) break; } if (i < n) {", Outcome.TIMED_OUT, "finish in time"),
        ("expf(x[i] * 0.25f)", "__half2float(__float2half(expf(x[i] * 0.25f)))", Outcome.COMPILE_ERROR, ""),
        ("(n + 63) / 64, 64>>>", "n / 64 + 1, 2048>>>", None, "2048 threads"),
    ],
)  # fmt: skip
def test_each_failure_has_its_outcome_and_the_next_candidate_is_unharmed(
    bench: Bench, old: str, new: str, outcome: Outcome | None, says: str
) -> None:
    from engine.compile.built import NotBuilt

    try:
        evaluation: Evaluation | None = bench(old, new)
    except NotBuilt as error:
        evaluation = error.evaluation
        outcome = outcome or Outcome.SCREENED_OUT
    assert evaluation is not None
    assert evaluation.outcome is outcome
    assert says in evaluation.failure.reason
    assert bench("+ 2.0f;", "+ 0.5f + 1.5f;").outcome in (Outcome.NO_DIFFERENCE, Outcome.ACCEPTED, Outcome.SLOWER)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("if (i < n) {", "if (i <= n) {", "outside an array"),
        ("if (i < n) {", "if (i < n && i % 2 == 0) {", "unwritten"),
        ("expf(x[i] * 0.25f) + 2.0f", "2.0f", "depends on the input 'x'"),
        ("expf(x[i] * 0.25f) + 2.0f", "fmaxf(x[i], -1e30f)", "a copy of an input"),
        ("y[i] = expf(x[i] * 0.25f) + 2.0f;", "y[i] = expf(x[i]) + (float)(clock64() & 1023);", "from run to run"),
        ("n = 33554432", "n = 34359738368", "outside of int32"),
    ],
)
def test_a_spec_that_proves_nothing_is_refused(
    machine: Machine, tmp_path: Path, old: str, new: str, message: str
) -> None:
    import re

    with pytest.raises(Exception, match=message) as error:
        Bench(machine, tmp_path, SCALE.replace(old, new))
    assert isinstance(error.value, RefusedError) or re.search("SpecError", type(error.value).__name__)


def test_a_plain_copy_has_a_spec(machine: Machine, tmp_path: Path) -> None:
    """A copy of its input is its result, and no control."""
    bench = Bench(machine, tmp_path, SCALE.replace("expf(x[i] * 0.25f) + 2.0f", "x[i]"))
    assert bench("if (i < n) {", "if (i < n - 1) {").outcome is Outcome.WRONG_RESULT


@pytest.mark.parametrize("reference", [True, False])
def test_a_sum_in_another_order_passes_with_and_without_a_reference(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: bool
) -> None:
    """INFINITY cost a softmax its float64 reference, and then every other order of its sum was refused: its largest elements are many
    times the root mean square."""
    from engine.run.optimization import Options, optimize
    from engine.search.progress import Budget

    if not reference:
        monkeypatch.setattr("engine.evaluate.gpu_original.widen", lambda text, expressions: None)
    file = ROOT / "benchmarks" / "suite" / "softmax_rows.cu"
    result, _ = optimize(Options(file, budget=Budget(candidates=8), out=tmp_path / "out", profile="none"), machine)
    assert any("float64 reference" in note for note in result.notes) is not reference
    assert result.counts.get("wrong_result", 0) == 0
    assert result.best is not None
    assert result.best.evaluation.measurement.low > 5.0


def test_a_killed_run_goes_on_with_every_candidate(tmp_path: Path) -> None:
    import os
    import signal
    import sqlite3

    file, out = ROOT / "examples" / "gelu_bias.cu", tmp_path / "out"
    arguments = [sys.executable, "-m", "engine.cli", "optimize", str(file), "--budget", "120", "--out", str(out)]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)

    def rows() -> list[tuple[Any, ...]]:
        try:
            db = sqlite3.connect(f"file:{out / 'journal.sqlite'}?mode=ro", uri=True)
            found = list(db.execute("SELECT id, digest, outcome, ratio FROM candidates ORDER BY id"))
            db.close()
            return found
        except sqlite3.OperationalError:
            return []

    deadline = time.monotonic() + 60
    while len(rows()) < 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = rows()
    assert 20 <= len(before) < 121
    done = subprocess.run([*arguments, "--resume", "--format", "json"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert rows()[: len(before)] == before
    assert json.loads(done.stdout)["counts"]["candidates"] == 120


GATHER = """\
// optiml: args.offsets = { role = "in", size = "rows + 1", fill = { kind = "csr_offsets", of = "columns" } }
// optiml: args.columns = { role = "in", size = "entries", fill = { kind = "csr_columns", of = "offsets", high = "cols" } }
// optiml: args.order = { role = "in", size = "rows", fill = "permutation" }
// optiml: args.ends = { role = "in", size = "rows", fill = { kind = "sorted", low = 0.5, high = 1.5 } }
// optiml: args.x = { role = "in", size = "cols", fill = "normal" }
// optiml: args.y = { role = "out", size = "rows" }
// optiml: check = [{ rows = 1, cols = 4, entries = 2 }, { rows = 33, cols = 65, entries = 300 }]
// optiml: time = [{ rows = 65536, cols = 65536, entries = 4194304 }]
__global__ void gather(const int* offsets, const int* columns, const int* order, const float* ends, const float* x, float* y,
                       int rows) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows) {
        int row = order[i];
        float sum = ends[i];
        for (int e = offsets[row]; e < offsets[row + 1]; ++e) {
            sum += x[columns[e]];
        }
        y[row] = sum;
    }
}

void launch(const int* offsets, const int* columns, const int* order, const float* ends, const float* x, float* y, int rows) {
    gather<<<(rows + 255) / 256, 256>>>(offsets, columns, order, ends, x, y, rows);
}
"""


def test_sparse_permuted_and_sorted_inputs_are_drawn_on_the_device_in_no_time(machine: Machine, tmp_path: Path) -> None:
    """Every call that times drew four million columns on the host, for two seconds."""
    bench = Bench(machine, tmp_path, GATHER)
    try:
        evaluation = bench("float sum = ends[i];", "float sum = 0.5f * ends[i]; sum += 0.5f * ends[i];")
        assert evaluation.outcome in (Outcome.NO_DIFFERENCE, Outcome.ACCEPTED, Outcome.SLOWER)
        assert evaluation.stage_s["time"] < 1.0
        wrong = bench("int row = order[i];", "int row = i;")
        assert wrong.outcome is Outcome.WRONG_RESULT
        unsorted = bench("float sum = ends[i];", "float sum = i > 0 ? fmaxf(ends[i], ends[i - 1]) : ends[i];")
        assert unsorted.outcome not in (Outcome.WRONG_RESULT, Outcome.MEMORY_ERROR)  # the same, where they ascend
    finally:
        bench.evaluator.close()
