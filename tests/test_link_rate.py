"""The script that measures what links to workers allow, with one local worker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import link_rate


@pytest.mark.timeout(120)
def test_it_counts_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "rates.json"
    given = ["--workers", "1", "--takes", "20", "--seconds", "0.5", "--record", str(record)]
    assert link_rate.main(given) == 0
    found = json.loads(record.read_text())
    rate = found["answers_per_second"]["1"]
    assert 0 < found["own_ms_per_answer"]["1"] < 1000
    assert 0 < rate <= 60  # three requests are on their way when the clock starts
    assert f"1 workers: {rate:.1f} answers a second" in capsys.readouterr().out
