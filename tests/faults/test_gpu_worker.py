"""A worker that dies, hangs, has no memory left or lost its context; a GPU that is lost: what it costs is that one candidate."""

from __future__ import annotations

import os
import random
import select
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import engine.evaluate.gpu
import engine.gpu.process
from engine.errors import MachineError
from engine.evaluate.gpu import GpuEvaluator
from engine.model import Outcome
from engine.process.worker_process import Worker
from engine.run.optimization import optimize
from engine.verify.plan import real_shapes
from tests.engine.profile.fake_ncu import spec

from .fake_gpu import Nvml, command, evaluated, evaluator, program
from .kills import rows
from .scripted import ScriptedEvaluator, kernel, options, scripted


def test_every_sample_has_the_state_of_its_gpu(bench: GpuEvaluator) -> None:
    sample, failed = evaluated(bench, "2.0"), evaluated(bench, "wrong")
    assert sample.measurement is not None
    assert set(sample.device) == {"uuid", "driver", "sm_mhz", "memory_mhz", "temperature_c"}
    assert sample.device["temperature_c"] == 40
    assert failed.device == {}  # nothing was timed


@pytest.mark.parametrize(
    ("code", "outcome", "says"),
    [
        ("kills", Outcome.CRASHED, "crashed the worker process"),
        ("hangs", Outcome.TIMED_OUT, "did not finish in time"),
        ("oom", Outcome.CRASHED, "not enough device memory"),
        ("faults", Outcome.MEMORY_ERROR, "illegal memory access"),
        ("wrong", Outcome.WRONG_RESULT, "'y' differs"),
    ],
)
def test_what_fails_or_takes_the_worker_down_costs_one_candidate(
    bench: GpuEvaluator, code: str, outcome: Outcome, says: str
) -> None:
    usual_s = bench._limit_s
    bench._limit_s = 0.5 if code == "hangs" else usual_s
    begin = time.monotonic()
    evaluation = evaluated(bench, code)
    assert time.monotonic() - begin < 40  # and not the minute that it would hang
    bench._limit_s = usual_s
    assert evaluation.outcome is outcome
    assert evaluation.failure is not None
    assert says in evaluation.failure.reason
    following = evaluated(bench, "2.0")
    assert following.outcome is Outcome.ACCEPTED
    assert following.measurement is not None
    assert following.measurement.ratio == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize(
    ("code", "outcome"), [("faults", Outcome.MEMORY_ERROR), ("wrong leaves", Outcome.WRONG_RESULT)]
)
def test_what_was_found_counts_though_the_worker_ended_before_the_request_for_the_timing(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch, code: str, outcome: Outcome
) -> None:
    sends = Worker.send

    def late(worker: Worker, header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> None:
        if header.get("if_right"):
            worker._process.wait(timeout=20)
        sends(worker, header, blobs)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "send", late)
        assert evaluated(bench, code).outcome is outcome
    assert evaluated(bench, "2.0").outcome is Outcome.ACCEPTED


def test_an_interrupt_beside_a_timing_leaves_no_answer_for_the_next_request(bench: GpuEvaluator) -> None:
    """NVML is asked while the worker is busy: its answer would have been taken for that to whatever was asked next."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    assert evaluated(bench, "2.0").outcome is Outcome.ACCEPTED
    with pytest.raises(KeyboardInterrupt):
        bench._runner.time(bench._timing(["original", "candidate"], "look"), timeout_s=5.0, meanwhile=interrupted)
    following = evaluated(bench, "3.0")
    assert following.measurement is not None
    assert following.measurement.ratio == pytest.approx(3.0, rel=0.01)


def test_a_timing_that_nobody_fetches_leaves_no_answer_for_the_next_request(bench: GpuEvaluator) -> None:
    """It begins beside the answer of the checks before it."""
    checks = real_shapes(spec(), random.Random(0))
    timing = bench._timing(["original", "candidate"], "look")
    bench._runner.verify(
        "candidate", checks, timeout_s=5.0, built=bench.build(program("2.0"), by_rules=False), then=timing
    )
    following = evaluated(bench, "3.0")
    assert following.measurement is not None
    assert following.measurement.ratio == pytest.approx(3.0, rel=0.01)


def test_a_cache_that_cannot_be_written_costs_the_cache_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml: Nvml
) -> None:
    monkeypatch.setattr(engine.gpu.process, "python_command", command(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "scratch").write_text("where the folder should be")
    bench = evaluator(spec(), tmp_path)
    try:
        bench.open(program("1.0"))
        assert evaluated(bench, "2.0").outcome is Outcome.ACCEPTED
    finally:
        bench.close()


def test_it_may_happen_in_the_confirmation_too(bench: GpuEvaluator) -> None:
    built = bench.build(program("kills"), by_rules=False)
    assert bench.confirm(built).outcome is Outcome.CRASHED
    assert bench.confirm(bench.build(program("2.0"), by_rules=False)).outcome is Outcome.ACCEPTED


def _waiting(bench: GpuEvaluator) -> Worker:
    """The second process, started ahead of the confirmation."""
    assert bench._second is not None
    assert bench._second._worker is not None
    return bench._second._worker


def test_the_second_process_starts_with_the_first_candidate_worth_confirming(bench: GpuEvaluator) -> None:
    built = bench.build(program("2.0"), by_rules=False)
    assert bench.evaluate(bench.build(program("0.5"), by_rules=False), None)[0].outcome is Outcome.SLOWER
    assert bench._second is None
    bench.evaluate(built, None)
    ahead = _waiting(bench)
    bench.evaluate(bench.build(program("3.0"), by_rules=False), built)
    assert _waiting(bench) is ahead
    first = bench._runner._worker
    assert bench.confirm(built).outcome is Outcome.ACCEPTED
    assert bench._runner._worker is ahead is not first
    assert first is not None
    assert not first.alive
    assert bench._second is None


@pytest.mark.parametrize("answered", [False, True], ids=["before it answered", "after it answered"])
def test_a_second_process_that_dies_while_it_waits_costs_nothing(bench: GpuEvaluator, answered: bool) -> None:
    built = bench.build(program("2.0"), by_rules=False)
    bench.evaluate(built, None)
    ahead = _waiting(bench)
    while answered and not select.select([ahead._answers._socket], [], [], 0.01)[0]:
        pass
    os.kill(ahead.pid, signal.SIGKILL)
    while ahead.alive:
        time.sleep(0.01)
    assert bench.confirm(built).outcome is Outcome.ACCEPTED


def test_a_second_process_that_is_not_needed_ends_with_the_evaluator(bench: GpuEvaluator) -> None:
    bench.evaluate(bench.build(program("2.0"), by_rules=False), None)
    ahead = _waiting(bench)
    bench.close()
    assert not ahead.alive


def test_a_wall_clock_set_back_hides_no_other_process(nvml: Nvml, monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML stamps its samples by the wall clock: what is asked for must not lie in a future that was taken back."""
    from engine.gpu.monitor import Monitor

    asked: list[int] = []
    nvml.nvmlDeviceGetProcessUtilization = lambda handle, since: asked.append(since) or []
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now)
    monitor = Monitor()
    monitor.read()
    monkeypatch.setattr(time, "time_ns", lambda: now - 3_600_000_000_000)
    monitor.read()
    assert asked[1] <= asked[0] - 3_600_000_000


def test_a_lost_gpu_ends_the_run_with_everything_booked(bench: GpuEvaluator, nvml: Nvml, tmp_path: Path) -> None:
    class Losing(ScriptedEvaluator):
        seen = 0

        def evaluate(self, built, incumbent):  # type: ignore[no-untyped-def]
            self.seen += 1
            nvml.lost = self.seen > 10
            bench._runner.monitor.read()
            return super().evaluate(built, incumbent)

    path = kernel(tmp_path)
    with scripted(Losing()) as machine, pytest.raises(MachineError, match="GPU is lost") as caught:
        optimize(options(path, tmp_path / "out"), machine)
    assert "nvidia-smi" in caught.value.do
    kept = rows(tmp_path / "out")
    assert len(kept) > 10
    with scripted(ScriptedEvaluator()) as machine:
        result, _ = optimize(options(path, tmp_path / "out", resume=True), machine)
    assert result.counts["candidates"] == 88
    assert kept.items() <= rows(tmp_path / "out").items()


def test_no_gpu_answers_at_the_start(nvml: Nvml, tmp_path: Path) -> None:
    nvml.lost = True
    with pytest.raises(MachineError, match="NVML does not answer: GPU is lost"):
        evaluator(spec(), tmp_path)
