"""The share of the full verification: of the record that lies here, and of one that is over what is allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.verification_share import main

RECORD = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "examples-h200.json"


def test_the_recorded_runs_are_within_what_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(RECORD)]) == 0
    assert "| softmax_kernel |" in capsys.readouterr().out


def test_a_run_over_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = {"evaluation": {"stage_s": {"verify": 3.0, "time": 2.0}}}
    result = {
        "kernel": "k", "elapsed_s": 10.0, "stages": {"confirm": 5.0, "verify": 1.0}, "best": evaluation, "refused": [evaluation],
    }  # fmt: skip
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    assert main([str(path)]) == 1
    assert "| k | 10.0 | 1.0 | 5.0 | 50 % | time 4.0, verify 6.0 |" in capsys.readouterr().out
