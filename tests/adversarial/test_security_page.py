"""docs/security.md names what is there: every attack, and each row of the table of defences."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.mutate_verifier import CPU, GPU
from engine.selftest.cases import load_cases
from tests.fuzz.targets import TARGETS

PAGE = (Path(__file__).parents[2] / "docs" / "security.md").read_text(encoding="utf-8")
TABLE = PAGE.partition("## Cheating the verifier")[2].partition("\n## ")[0]


def test_every_attack_in_the_table_is_one_and_every_row_is_there() -> None:
    named = {name for line in TABLE.splitlines() if line.startswith("|") for name in re.findall(r"`([a-z-]+)`", line)}
    assert named <= {case.name for case in load_cases("attacks")}
    assert {row.attack for row in (*CPU, *GPU)} <= named


def test_what_else_is_off_is_said() -> None:
    for row in GPU:
        line = next(line for line in TABLE.splitlines() if f"`{row.attack}`" in line)
        assert (" off" in line) is bool(row.also_off), row


def test_the_fuzz_target_in_the_example_is_one() -> None:
    assert re.search(r"fuzz\.run (\w+) --seconds", PAGE)[1] in {target.name for target in TARGETS}  # type: ignore[index]
