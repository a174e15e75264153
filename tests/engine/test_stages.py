"""Where a run's time went: what its result says of it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.searches import overhead
from engine.evaluate.model import Built
from engine.model import Evaluation, Program
from engine.optimize import optimize
from engine.profile.turns import WAITED
from tests.faults.scripted import ScriptedEvaluator, kernel, options, scripted


class Slow(ScriptedEvaluator):
    """Takes 0.3 s to start and 0.2 s to validate; each confirmation takes 0.3 s, of which it waits two thirds for a turn."""

    def open(self, original: Program) -> tuple[Built, Evaluation]:
        time.sleep(0.5)
        built, evaluation = super().open(original)
        return built, replace(evaluation, stage_s={"validate": 0.2})

    def confirm(self, built: Built) -> Evaluation:
        evaluation = super().confirm(built)
        if not self._confirming:
            return evaluation
        time.sleep(0.3)
        return replace(evaluation, stage_s={"verify": 0.1, WAITED: 0.2})

    def evaluate(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        self._confirming = False
        try:
            return super().evaluate(built, incumbent)
        finally:
            self._confirming = True

    _confirming = True


def test_the_start_is_overhead_and_a_wait_for_a_turn_is_no_part_of_the_confirmation(tmp_path: Path) -> None:
    with scripted(Slow()) as machine:
        result, _ = optimize(options(kernel(tmp_path), tmp_path / "out", candidates=12), machine)
    assert result.best is not None
    assert not result.refused
    assert result.stages["start"] == pytest.approx(0.3, abs=0.15)
    assert result.stages["confirm"] == pytest.approx(0.1, abs=0.05)
    spent = {"elapsed_s": result.elapsed_s, "stages": result.stages, "original": {"stage_s": result.original.stage_s}}
    idle = result.elapsed_s * overhead(spent)
    assert idle >= result.stages["start"]
