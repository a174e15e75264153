"""A disk that is full when the result is written: the run ends with the way out, and an older result stays whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine.errors import MachineError
from engine.model import Program
from engine.optimize import optimize
from engine.search.loop import INTERRUPTED

from .kills import essence, rows
from .scripted import ScriptedEvaluator, kernel, options, scripted

FULL = Path("/dev/full")


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
