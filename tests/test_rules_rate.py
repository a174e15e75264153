"""The rate at which rules match and what they write compiles: one real run, and what counts as passed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from benchmarks import rules_gain, rules_rate
from engine.rewrite.proposal import Proposal

ROOT = Path(__file__).parent.parent


def test_a_run_counts_what_matches_and_what_compiles(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.json"
    chosen = ["--rules", "invariant_division,swap_axes", "--record", str(record)]
    code = rules_rate.main([str(ROOT / "examples" / "gelu_bias.cu"), *chosen])
    assert code == 1  # one of the two has nothing to do there
    found = json.loads(record.read_text())
    assert found["kernels"] == ["gelu_bias"]
    assert found["rules"]["invariant_division"] == {
        "kernels": ["gelu_bias"], "proposals": 1, "compiled": 1, "failed": [],
    }  # fmt: skip
    assert found["rules"]["swap_axes"]["proposals"] == 0
    out = capsys.readouterr().out
    assert "| invariant_division | 1 | 1 | 1 |" in out
    assert "No kernel for swap_axes." in out


def test_an_unknown_rule_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        rules_rate.main(["--rules", "restrict,nonesuch", "--record", str(tmp_path / "r.json")])
    assert ended.value.code == 2


def _record(kernels: list[str], proposals: int, compiled: int, later: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    row = {"kernels": kernels, "proposals": proposals, "compiled": compiled, "failed": []}
    after = {"proposals": later[0], "compiled": later[1], "failed": []}
    return {"rules": {"a": row}, "after_one_edit": {"a": after}}


@pytest.mark.parametrize(
    ("record", "fine"),
    [
        (_record(["k"], 10, 9), True),
        (_record(["k"], 10, 8), False),
        (_record([], 0, 0), False),
        (_record(["k"], 10, 10, (10, 8)), False),
        (_record(["k"], 10, 10, (10, 9)), True),
    ],
)
def test_nine_of_ten_must_compile_and_each_rule_must_match(record: dict[str, Any], fine: bool) -> None:
    assert rules_rate.passed(record) is fine


def test_programs_one_edit_away_come_from_as_many_rules_as_there_are() -> None:
    found = [Proposal("rules", rule, "", {}, {"k": k}) for rule in ("a", "b", "c") for k in range(5)]
    chosen = rules_rate._some(found, 3, random.Random(3))
    assert {p.rule for p in chosen} == {"a", "b", "c"}
    assert len(rules_rate._some(found, 100, random.Random(3))) == 15


def test_gains_are_told_by_rule_and_kernel() -> None:
    row = {"rule": "a", "kernel": "k", "reason": "", "low": 1.1, "high": 1.3, "parameters": {"x": 1}}
    rows = [
        row | {"outcome": "accepted", "ratio": 1.2},
        row | {"outcome": "slower", "ratio": 0.9, "parameters": {"x": 2}},
    ]
    rows.append(row | {"outcome": "wrong_result", "ratio": None, "reason": "y[3] differs"})
    text = rules_gain.table({"mode": "measured", "proposals": rows, "skipped": {}})
    assert "| a | k | 1 accepted, 1 slower, 1 wrong_result | 1.200 | 1.100 to 1.300 | x=1 |" in text
    assert "wrong_result: y[3] differs" in text
