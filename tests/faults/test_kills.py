"""SIGKILL at fifty random moments: whatever was booked is there after --resume, nothing twice, and the result is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine.model import Outcome
from engine.run.optimization import optimize

from .kills import ROOT
from .scripted import ScriptedEvaluator, kernel, options, scripted

pytestmark = pytest.mark.slow


@pytest.mark.timeout(180)
def test_fifty_kills(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.faults.kills", str(tmp_path), "50", "3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=170)
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in done.stdout.splitlines()]
    moments = [count for trial in trials for count in trial["booked_when_killed"]]
    assert len(moments) >= 50
    assert len(set(moments)) > 15, "the kills must fall into different parts of a run"
    for trial in trials:
        assert trial["status"] == 0, trial
        assert (trial["lost"], trial["changed"], trial["twice"]) == (0, 0, 0), trial
        assert trial["same_result"], trial


def test_an_edit_that_could_not_be_applied_is_not_booked_again(tmp_path: Path) -> None:
    with scripted(ScriptedEvaluator()) as machine:
        first, out = optimize(options(kernel(tmp_path), tmp_path / "out"), machine)
        again, _ = optimize(options(tmp_path / "k.cu", out, resume=True), machine)
    assert first.counts[Outcome.SCREENED_OUT] > 10
    assert again.counts == first.counts
