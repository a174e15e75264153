"""A disk that is full when the result is written: the run ends with the way out, and an older result stays whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from engine.errors import MachineError
from engine.optimize import optimize

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
