"""The incumbent: one that fails, one that another device timed, and candidates that cannot take its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine.errors import MachineError
from engine.evaluate.evaluator import WIN
from engine.evaluate.gpu import GpuEvaluator
from engine.evaluate.samples import on_other_device
from engine.gpu.runner import Timing
from engine.model import CaseTiming, Measurement, Outcome
from engine.verify.plan import Check
from tests.engine.profile.fake_ncu import spec

from .fake_gpu import program


@pytest.mark.parametrize("code", ["kills", "hangs", "faults"])
def test_an_incumbent_of_an_earlier_run_that_fails_now_is_held_against_no_candidate(
    bench: GpuEvaluator, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was verified before: the machine or the driver has changed, and every candidate beside it would count as crashed."""
    bench._limit_s = 0.2 if code == "hangs" else bench._limit_s
    with pytest.raises(MachineError, match="best of the earlier run") as caught:
        bench.evaluate(
            bench.build(program("2.0"), by_rules=False), bench.build(program(f"timed {code}"), by_rules=False)
        )
    assert "without --resume" in caught.value.do


@pytest.mark.parametrize("beside", [False, True])
def test_what_another_device_says_of_a_suggestion_is_not_found_out_again(
    bench: GpuEvaluator, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def judge(original: object, built: object) -> tuple[None, tuple[()]]:
        asked.append("on the CPU")
        return None, ()

    monkeypatch.setattr(bench, "_cpu", SimpleNamespace(judge=judge, refuted=lambda built: None, give_up=lambda: None))
    monkeypatch.setattr(bench, "_sanitize", lambda built, checks: asked.append("sanitizers") or ())
    confirmed = bench.confirm(bench.build(program("2.0"), by_rules=False), beside=beside)
    assert confirmed.outcome is Outcome.ACCEPTED
    assert sorted(asked) == ([] if beside else ["on the CPU", "sanitizers"])


def test_an_incumbent_that_another_device_timed_is_not_timed_again(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = bench.build(program("2.0"), by_rules=False)
    case = CaseTiming(spec().time[0].name, 1.0, 30.0, 15.0, 2.0, 1.9, 2.1, 8)
    measured = on_other_device(
        Measurement((case,), 2.0, 1.9, 2.1), Measurement((replace(case, original_us=40.0),), 1.0, 1.0, 1.0)
    )
    assert measured is not None
    assert (measured.cases[0].original_us, measured.cases[0].candidate_us) == (40.0, 20.0)
    assert on_other_device(measured, Measurement((replace(case, case="other"),), 1.0, 1.0, 1.0)) is None
    bench.take_over(best, measured)
    asked: list[Sequence[str]] = []
    timed = bench._time
    monkeypatch.setattr(bench, "_time", lambda timing: asked.append(timing.programs) or timed(timing))
    evaluation, against = bench.evaluate(bench.build(program("1.0"), by_rules=False), best)
    assert asked == [("incumbent", "candidate")]
    assert against == pytest.approx(0.5, rel=0.05)
    assert evaluation.measurement is not None
    assert evaluation.measurement.ratio == pytest.approx(1.0, rel=0.05)


def test_the_best_of_an_earlier_run_is_timed_here_before_others_are_held_against_it(bench: GpuEvaluator) -> None:
    """In a resumed run it comes from the journal: this process has not measured it."""
    best = bench.build(program("2.0"), by_rules=False)
    evaluation, against = bench.evaluate(bench.build(program("3.0"), by_rules=False), best)
    assert evaluation.outcome is Outcome.ACCEPTED
    assert evaluation.measurement is not None
    assert evaluation.measurement.ratio == pytest.approx(3.0, rel=0.01)
    assert against == pytest.approx(1.5, rel=0.01)
    with pytest.raises(MachineError, match="the best of the earlier run is not confirmed here"):
        bench.evaluate(
            bench.build(program("3.0"), by_rules=False), bench.build(program("timed faults"), by_rules=False)
        )


@pytest.mark.parametrize(("speed", "steps"), [("1.9", 2), ("2.0 again", 3), ("2.004", 3), ("2.02", 5)])
def test_what_cannot_take_the_incumbents_place_gets_no_close_look(
    bench: GpuEvaluator, monkeypatch: pytest.MonkeyPatch, speed: str, steps: int
) -> None:
    """Where many are as fast as the best, half of them won by a hair and were timed closely beside a slow original, and each
    that came near was verified on the real shapes, which takes longer than all else."""
    best = bench.build(program("2.0"), by_rules=False)
    bench.evaluate(best, None)
    asked: list[str] = []
    time, verify = bench._time, bench._runner.verify

    def noted(timing: Timing) -> Any:
        asked.append(timing.effort)
        return time(timing)

    def verified(key: str, checks: Sequence[Check], **named: Any) -> Any:
        real = {c.case for c in checks} & set(range(len(spec().check), len(spec().check) + len(spec().time)))
        asked.append("real shapes" if real else "check shapes")
        return verify(key, checks, **named)

    monkeypatch.setattr(bench, "_time", noted)
    monkeypatch.setattr(bench._runner, "verify", verified)
    evaluation, against = bench.evaluate(bench.build(program(speed), by_rules=False), best, brief=True)
    assert evaluation.outcome is Outcome.ACCEPTED
    assert asked == ["check shapes", "look", "duel", "real shapes", "duel"][:steps]
    assert against is not None
    assert (against > WIN) == (steps == 5)
    asked.clear()
    bench.evaluate(bench.build(program(f"{speed} "), by_rules=False), best)
    assert asked == ["check shapes", "look", "duel", "real shapes", "close"][:steps]
