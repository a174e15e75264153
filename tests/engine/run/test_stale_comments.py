"""The patch of a run has no comment about a statement that the rewrite removed, where the machine code stays the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import engine.evaluate.analysis
from engine.compile.built import Built
from engine.cuda.kernel import Edit, Span
from engine.model import Evaluation, Measurement, Outcome, Program
from engine.rewrite.proposal import Proposal
from engine.run.optimization import optimize
from engine.run.suggestion_gate import Gate
from tests.faults.scripted import TEXT, ScriptedEvaluator, kernel, options, scripted

OLD = "    // one element for each thread\n    y[i] = 2.0f * x[i];\n"
NEW = "    reinterpret_cast<float2*>(y)[0] = make_float2(x[0], x[1]);\n"
COMMENTED = TEXT.replace("    if (i < n) y[i] = 2.0f * x[i];\n", f"    if (i >= n) return;\n{OLD}")


class Timed(ScriptedEvaluator):
    """Every edit doubles the speed; `comments` says whether they change the machine code, as `__LINE__` may."""

    def __init__(self, comments: bool) -> None:
        super().__init__()
        self._comments = comments
        self.confirmed: list[str] = []
        self.begun: list[str] = []

    def build(self, program: Program, *, by_rules: bool = False) -> Built:
        return self._built(program)

    def _built(self, program: Program) -> Built:
        built = super()._built(program)
        code = program.data.decode() if self._comments else re.sub(r"\s*//.*", "", program.data.decode())
        return replace(built, binary=replace(built.binary, code_hash=code))

    def begin_confirming(self, build: Callable[[], Built]) -> None:
        self.begun.append(build().program.data.decode())

    def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
        self.confirmed.append(built.program.data.decode())
        return Evaluation(
            Outcome.ACCEPTED, Measurement((), 2.0, 2.0, 2.0), None, built.binary.resources, built.binary.code_hash
        )


def rewrite(site: Any, failures: list[Any]) -> Iterator[Proposal]:
    at = site.program.data.find(OLD.splitlines(keepends=True)[1].encode())
    if at >= 0:
        edit = Edit(Span(at, at + len(OLD.splitlines(keepends=True)[1])), NEW)
        yield Proposal("rules", "two", "Store two at once", {site.program.kernel_file: (edit,)}, {}, 0.5)


@pytest.mark.parametrize("comments", [False, True])
def test_the_patch_takes_a_stale_comment_with_it(tmp_path: Path, comments: bool) -> None:
    path, evaluator = kernel(tmp_path), Timed(comments)
    path.write_text(COMMENTED)
    with (
        scripted(evaluator) as machine,
        mock.patch.object(engine.evaluate.analysis, "proposals", rewrite),
        mock.patch.object(Gate, "judge", lambda gate, evaluation, original, built: evaluation),
    ):
        result, out = optimize(options(path, tmp_path / "out", candidates=4), machine)
    assert result.best is not None, result.refused
    patch = (out / "best.patch").read_text()
    assert ("-    // one element for each thread\n" in patch) != comments
    assert evaluator.confirmed[-1] in evaluator.begun
    # What was confirmed is what the patch gives.
    assert evaluator.confirmed[-1] == COMMENTED.replace(
        OLD, OLD.splitlines(keepends=True)[0] + NEW if comments else NEW
    )
