"""Where a run's time went: what its result says of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import engine.run.optimization
import engine.search.books
import engine.search.loop
import engine.search.progress
from benchmarks.searches import overhead
from engine.compile.built import Built
from engine.evaluate.analysis import Analysis
from engine.evaluate.evaluator import nothing
from engine.model import Evaluation, Program
from engine.predict.targets import target_for
from engine.process.fair_lock import WAITED
from engine.run.confirmation import search_limit_s
from engine.run.optimization import optimize
from engine.search.progress import Budget
from engine.spec.kernel_spec import KernelSpec
from engine.tune.offers import Offer
from tests.faults.scripted import ScriptedEvaluator, kernel, options, scripted


class Clock:
    """Time that also passes where a test says so: hours, beside which it does not count how long the test really takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed_h = 0.0
        for module in (engine.run.optimization, engine.search.books, engine.search.loop, engine.search.progress):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return time.monotonic() + 3600 * self.passed_h


class Slow(ScriptedEvaluator):
    """Takes 3 h to start and 2 h to validate; each confirmation takes 3 h, of which it waits two thirds for a turn."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        self._clock.passed_h += 5
        built, evaluation = super().open(original, ready)
        return built, replace(evaluation, stage_s={"validate": 2 * 3600})

    def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
        evaluation = super().confirm(built)
        if not self._confirming:
            return evaluation
        self._clock.passed_h += 3
        return replace(evaluation, stage_s={"verify": 1 * 3600, WAITED: 2 * 3600})

    def evaluate(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        self._confirming = False
        try:
            return super().evaluate(built, incumbent)
        finally:
            self._confirming = True

    _confirming = True


def test_the_start_is_overhead_and_a_wait_for_a_turn_is_no_part_of_the_confirmation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scripted(Slow(Clock(monkeypatch))) as machine:
        result, _ = optimize(options(kernel(tmp_path), tmp_path / "out", candidates=12), machine)
    assert result.best is not None
    assert not result.refused
    assert result.stages["start"] == pytest.approx(3 * 3600, abs=1800)
    assert result.stages["confirm"] == pytest.approx(1 * 3600, abs=1800)
    spent = {"elapsed_s": result.elapsed_s, "stages": result.stages, "original": {"stage_s": result.original.stage_s}}
    idle = result.elapsed_s * overhead(spent)
    assert idle >= result.stages["start"]


@pytest.mark.parametrize(("seconds", "patience"), [(None, 40.0), (5.0, 10.0), (30.0, 15.0), (600.0, 40.0)])
def test_a_short_run_does_not_wait_long_for_its_evidence(seconds: float | None, patience: float) -> None:
    """With several profilers on one machine a run of 9 s waited for 17 more, and one of 20 s could wait for 40."""
    assert engine.run.optimization._patience_s(Budget(seconds=seconds)) == patience


@pytest.mark.parametrize(
    ("seconds", "without", "more"), [(4.0, 2.0, 0.0), (10.0, 8.0, 3.0), (60.0, 52.0, 3.0), (600.0, 592.0, 3.0)]
)
def test_a_run_without_a_profiler_keeps_no_time_for_one(seconds: float, without: float, more: float) -> None:
    """Most drivers let root alone read counters: a run of 10 s gave up three for what could not be had."""
    assert search_limit_s(seconds) == without
    assert search_limit_s(seconds, 3.0) == without - more


class Heavy(ScriptedEvaluator):
    """Builds every second candidate for as long as it is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self._closed = threading.Event()

    def build(self, program: Program, *, by_rules: bool = False) -> Built:
        if int(program.digest[-1], 16) % 2:
            self._closed.wait(60.0)
        return super().build(program, by_rules=by_rules)

    def close(self) -> None:
        self._closed.set()


def test_the_end_does_not_wait_for_what_is_still_built(tmp_path: Path) -> None:
    """Whole unrolled loops compile for ten seconds and more: a run of 52 s took 68."""
    wanted = replace(options(kernel(tmp_path), tmp_path / "out"), budget=Budget(seconds=1.0))
    with scripted(Heavy()) as machine:
        result, _ = optimize(wanted, machine)
    assert result.counts["candidates"]
    assert result.elapsed_s < 20
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("build")]  # nor does it go on


class Started(Analysis):
    """A front that notes whose worker was started."""

    def __init__(self, log: list[str], spec: KernelSpec, root: Path, spec_path: str | None = None) -> None:
        super().__init__(spec, root, target_for("sm_90"), spec_path)
        self._log = log

    def warm(self, original: Program, at_once: int) -> None:
        self.original_program = original  # a worker is told of it once, when it starts
        self._log.append("front")

    def offers(self, program: Program) -> list[Offer]:
        return []

    def close(self) -> None:
        self._log.append("closed")


def test_every_worker_is_started_beside_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen compilers and readers started when the first candidates needed them, each half a second, and the device stood idle."""
    log: list[str] = []

    class Opening(ScriptedEvaluator):
        def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
            log.append("open")
            return super().open(original, ready)

    with scripted(Opening()) as machine:
        monkeypatch.setattr(machine.compiler, "warm", lambda count: log.append("compilers"))
        monkeypatch.setattr(machine, "front", lambda *arguments: Started(log, *arguments))
        result, _ = optimize(options(kernel(tmp_path), tmp_path / "out", candidates=5), machine)
    assert result.counts["candidates"] == 5
    assert sorted(log[: log.index("open")]) == ["compilers", "front"]
    assert log[-1] == "closed"
