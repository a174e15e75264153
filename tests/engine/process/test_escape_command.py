"""The command that tries to get out; a full run is `python benchmarks/escapes.py --seeds 3 --without-defences`."""

from __future__ import annotations

import pytest

from benchmarks.escape_attempts import ATTEMPTS
from benchmarks.escape_parent import PARENT_ATTEMPTS
from benchmarks.escapes import main

from .inside import needs_sandbox


def test_there_are_forty_kinds_at_least() -> None:
    names = [attempt.name for attempt in ATTEMPTS] + list(PARENT_ATTEMPTS)
    assert len(names) == len({*names}) >= 40


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["write_core", "other_families", "signal", "read_a_file", "verdict", "pipe", "flood_the_output"]
)
def test_an_attempt_fails_and_succeeds_without_its_defences(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--as-one", "--without-defences", "--only", name])
    said = capsys.readouterr().out
    assert code == 0, said
    assert " 0 succeeded" in said
