"""The host's clock against the events': a worker whose events tell less time than passed is not believed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from engine.evaluate.build import Builder
from engine.evaluate.gpu import GpuEvaluator
from engine.gpu.monitor import Snapshot
from engine.gpu.runner import GpuRunner, Timing
from engine.spec.kernel_spec import Case, KernelSpec
from engine.verify.defences import ALL, Defences


def _snapshot() -> Snapshot:
    return Snapshot(1980, 3201, 40, (), ())


class Liar:
    """A worker's answers to `time`: twice as fast by the events, `gap` times as long by the host's clock."""

    def __init__(self, gap: float) -> None:
        self.gap, self.asked, self.read = gap, 0, 0
        self.monitor = SimpleNamespace(read=self._read, recent=_snapshot)

    def start_ahead(self) -> None:
        """It answers from the start."""

    def _read(self) -> Snapshot:
        self.read += 1
        return _snapshot()

    def time(self, timing: Timing, **named: Any) -> list[dict[str, Any]]:
        self.asked += 1
        answer = {"failure": None, "host_over_events": self.gap, "given_up": False}
        return [{"samples_us": [[10.0] * 8, [5.0] * 8], **answer}]


def _measured(gap: float, defences: Defences) -> tuple[bool, int]:
    runner = Liar(gap)
    return _timed(runner, defences), runner.asked


def _timed(runner: Liar, defences: Defences = ALL, effort: str = "close") -> bool:
    """Whether what the worker says is believed."""
    spec = KernelSpec("k.cu", (), (), (Case("small", {"n": 3}),), (Case("real", {"n": 9}),))
    builder = cast(Builder, SimpleNamespace(defences=defences))
    evaluator = GpuEvaluator(spec, builder, lambda: cast(GpuRunner, runner), lambda built, checks: ())
    measurement, failure, _ = evaluator._time(evaluator._timing(["original", "candidate"], effort))
    assert failure is None
    assert measurement.ratio == pytest.approx(2.0)
    return measurement.stable


def test_events_that_agree_with_the_host_are_believed() -> None:
    assert _measured(1.1, ALL) == (True, 1)


def test_events_that_tell_less_time_than_passed_are_taken_again_and_not_believed() -> None:
    assert _measured(3.0, ALL) == (False, 2)


def test_without_this_defence_they_would_be() -> None:
    assert _measured(3.0, replace(ALL, host_time=False)) == (True, 1)


@pytest.mark.parametrize(("effort", "read"), [("look", 0), ("duel", 0), ("close", 1), ("final", 1)])
def test_the_gpu_is_read_anew_after_what_is_said_of_a_candidate(effort: str, read: int) -> None:
    runner = Liar(1.0)
    assert _timed(runner, effort=effort)
    assert runner.read == read
