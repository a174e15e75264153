"""`optiml selftest` as a command: what is said while it works."""

from __future__ import annotations

import functools
import time
from types import SimpleNamespace
from typing import Any

import pytest

from engine.cli import main
from engine.model import Outcome
from engine.report.terminal import Live
from engine.selftest.case_runs import Verdict


def test_cases_are_counted_while_they_are_judged(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing was said for minutes: the verdicts that are as expected are not printed."""

    def judge(cases: Any, machine: Any, on_verdict: Any, rounds: int) -> list[Verdict]:
        found = [Verdict(case, Outcome.WRONG_RESULT, "differs", case.name != "zeros") for case in cases]
        seen = ""
        for number, verdict in enumerate(found, 1):
            on_verdict(verdict)
            while f"cases: {number} of {len(cases)}, about " not in seen:
                time.sleep(0.01)
                seen += capfd.readouterr().err
        said.append(seen)
        return found

    said: list[str] = []
    machine = SimpleNamespace(mode="predicted", arch="sm_90", close=lambda: None)
    monkeypatch.setattr("engine.commands.selftest.make_machine", lambda **options: machine)
    monkeypatch.setattr("engine.commands.selftest.run_cases", judge)
    monkeypatch.setattr("engine.commands.selftest.Live", functools.partial(Live, every_s=0.01))
    assert main(["selftest", "zeros", "single-block", "shrinks-grid"]) == 1
    assert "attacks refused on the CPU path: 2 of 3" in capfd.readouterr().out
    assert "\r" not in said[0]
