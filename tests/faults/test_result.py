"""The end of a run whose disk is full or whose compiler is gone: it ends with the way out, and nothing that was there is lost."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from engine.compile.built import Built, NotBuilt
from engine.errors import MachineError
from engine.model import Evaluation, Measurement, Outcome, Program
from engine.run.optimization import _nearly, optimize
from engine.search.profiling import StepEvidence
from engine.search.progress import INTERRUPTED, Budget

from .kills import essence, rows
from .scripted import ScriptedEvaluator, kernel, options, scripted

FULL = Path("/dev/full")


@pytest.mark.slow
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize("name", ["result.json", "best.patch"])
def test_no_space_for_the_result(tmp_path: Path, name: str) -> None:
    path, out = kernel(tmp_path), tmp_path / "out"
    with scripted(ScriptedEvaluator()) as machine:
        optimize(options(path, out, candidates=20), machine)
        before = {entry: (out / entry).read_bytes() for entry in ("result.json", "best.patch")}
        os.symlink(FULL, out / f".{name}.new")
        with pytest.raises(MachineError, match="No space left") as caught:
            optimize(options(path, out, resume=True), machine)
        assert "--resume" in caught.value.do
        assert len(rows(out)) == 89
        assert (out / "result.json").read_bytes() == before["result.json"]
        json.loads(before["result.json"])
        (out / f".{name}.new").unlink(missing_ok=True)
        result, _ = optimize(options(path, out, resume=True), machine)
        optimize(options(path, tmp_path / "whole"), machine)
    assert result.counts["candidates"] == 88
    assert essence(out) == essence(tmp_path / "whole")
    assert not list(out.glob(".*.new"))


def test_an_interrupt_leaves_an_earlier_suggestion(tmp_path: Path) -> None:
    """A run that went on with a finished one and was interrupted took the patch away."""
    path, out = kernel(tmp_path), tmp_path / "out"

    def interrupt(program: Program) -> None:
        raise KeyboardInterrupt

    with scripted(ScriptedEvaluator()) as machine:
        optimize(options(path, out, candidates=20), machine)
    before = {entry: (out / entry).read_bytes() for entry in ("result.json", "best.patch")}
    with scripted(ScriptedEvaluator(on_evaluate=interrupt)) as machine:
        with pytest.raises(KeyboardInterrupt):
            optimize(options(path, out, resume=True), machine)
        assert {entry: (out / entry).read_bytes() for entry in before} == before
        with pytest.raises(KeyboardInterrupt):
            optimize(options(path, out), machine)  # begun anew: the old suggestion is another run's
    assert not (out / "best.patch").exists()
    assert json.loads((out / "result.json").read_text())["stopped"] == INTERRUPTED


class BuildsOnce(ScriptedEvaluator):
    """Each step is worth something; a compiler that does nothing twice."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def build(self, program: Program, *, by_rules: bool = False) -> Built:
        if program.digest in self.seen:
            raise NotBuilt("the compiler is gone")
        self.seen.add(program.digest)
        return self._built(program)

    def evaluate(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        return self.confirm(built), None

    def begin_confirming(self, build: object) -> None:
        """Nothing is begun ahead."""

    def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
        ratio = 1.1 ** built.program.data.count(b"// step")
        return Evaluation(Outcome.ACCEPTED, Measurement((), ratio, ratio, ratio), code_hash=built.binary.code_hash)


class Seer:
    """Evidence of every step, where one can be built."""

    def passed(self, node: Any, built: Any) -> None:
        pass

    def arrivals(self) -> list[Any]:
        return []

    def trajectory(self, path: list[Any], patience_s: float) -> list[StepEvidence]:
        return [StepEvidence(("seen",)) for _ in path]


def test_a_compiler_that_is_gone_after_the_search_costs_the_evidence_and_no_more(tmp_path: Path) -> None:
    path = kernel(tmp_path)
    with scripted(BuildsOnce()) as machine:
        machine.watch = lambda *arguments: Seer()  # type: ignore[method-assign, assignment, return-value]
        result, out = optimize(options(path, tmp_path / "out"), machine)
    assert result.best is not None
    assert len(result.trajectory) > 1
    assert result.diagnosis == ()
    assert any("the compiler is gone" in note for note in result.notes)
    assert (out / "best.patch").exists()


def test_what_cannot_be_built_again_is_refused_and_the_result_written(tmp_path: Path) -> None:
    class Gone(ScriptedEvaluator):
        def build(self, program: Program, *, by_rules: bool = False) -> Built:
            raise NotBuilt("the compiler is gone")

    path, out = kernel(tmp_path), tmp_path / "out"
    with scripted(ScriptedEvaluator()) as machine:
        optimize(options(path, out, candidates=20), machine)
    with scripted(Gone()) as machine:
        result, _ = optimize(options(path, out, resume=True, candidates=20), machine)
    assert result.best is None
    assert [r.evaluation.failure.reason for r in result.refused if r.evaluation.failure] == ["the compiler is gone"] * 5


@pytest.mark.parametrize(
    ("budget", "ahead"),
    [
        (Budget(60.0), Budget(54.0)),
        (Budget(2.5), Budget(1.25)),
        (Budget(candidates=100), Budget(candidates=85)),
        (Budget(candidates=5000), Budget(candidates=4880)),  # from 85 % on the last minute of a run had no counters
        (Budget(), Budget()),
    ],
)
def test_the_likely_trajectory_is_asked_for_some_seconds_before_the_end(budget: Budget, ahead: Budget) -> None:
    assert _nearly(budget) == ahead
