"""The structure of the engine: what was reached stays. A limit here may fall, never rise."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.metrics import Metrics, cycles, load, local_imports, main, measure, wide_functions

LIMITS = {
    "package_cycles": 0,
    "local_imports": 30,
    "local_imports_without_reason": 0,
    "functions_with_8_parameters": 0,
    "functions_with_7_parameters": 0,
    "rules_import_lines": 500,
    "modules_of_one_name": 0,
    "classes_of_one_name": 0,
}


@pytest.fixture(scope="module")
def measured() -> Metrics:
    return measure()


@pytest.mark.parametrize("name", LIMITS)
def test_what_was_reached_stays(measured: Metrics, name: str) -> None:
    value = getattr(measured, name)
    count = value if isinstance(value, int) else len(value)
    assert count <= LIMITS[name], value


def test_a_cycle_is_found_through_others() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [["b", "c"]]
    assert cycles({"a": {"b"}, "b": {"c"}}) == []


def test_local_imports_need_a_reason(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "one.py").write_text(
        "import os\n\n\ndef f(self, a, b, c, d, e, g):\n    import re\n\n    # the parser takes 40 ms to load\n    import ast\n"
        "    import json\n    import csv  # noqa: F401\n\n    import sys  # only where asked\n\n    import math  # noqa: F401\n"
    )
    module = load(tmp_path)[0]
    assert local_imports(module) == [(5, False), (8, True), (9, True), (10, True), (12, True), (14, False)]
    assert wide_functions([module], 7) == ["engine/one.py:4 f (7)"]
    assert wide_functions([module], 8) == []


def test_the_command_prints_every_number(
    measured: Metrics, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.metrics.measure", lambda: measured)
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    assert "engine lines" in out
    assert "package cycles" in out
