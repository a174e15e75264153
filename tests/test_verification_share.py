"""The share of the full verification: of the record that lies here, and of one that is over what is allowed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.verification_share import main

RECORD = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "examples.json"


def test_every_recorded_run_has_its_share(capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(RECORD.read_text(encoding="utf-8"))["rows"].values()
    over = any(row["stages"]["confirm"] > 0.25 * row["elapsed_s"] for row in rows)
    assert main([str(RECORD)]) == int(over)
    said = capsys.readouterr().out
    assert all(f"| {row['kernel']} |" in said for row in rows)


def test_a_run_over_it_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluation = {"evaluation": {"stage_s": {"verify": 3.0, "time": 2.0}}}
    result = {
        "kernel": "k", "elapsed_s": 10.0, "stages": {"confirm": 5.0, "verify": 1.0}, "best": evaluation, "refused": [evaluation],
    }  # fmt: skip
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    assert main([str(path)]) == 1
    assert "| k | 10.0 | 1.0 | 5.0 | 50 % | time 4.0, verify 6.0 |" in capsys.readouterr().out
