"""Records of benchmarks/selftest.py: which cases are run again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import selftest


def test_the_unexpected_cases_of_every_round_and_suite_run_again() -> None:
    record = {
        "rounds": [
            {"scores": {"attacks": {"unexpected": [{"case": "a"}]}, "honest": {"unexpected": []}}},
            {
                "scores": {
                    "attacks": {"unexpected": [{"case": "a"}, {"case": "b"}]},
                    "honest": {"unexpected": [{"case": "c"}]},
                }
            },
        ]
    }
    assert selftest.unexpected(record) == {"a", "b", "c"}


def test_a_record_of_other_cases_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.json"
    record.write_text(json.dumps({"rounds": [{"scores": {"attacks": {"unexpected": [{"case": "of-another-set"}]}}}]}))
    with pytest.raises(SystemExit, match="2"):
        selftest.main(["--again", str(record)])
    assert "not among these cases: of-another-set" in capsys.readouterr().err
