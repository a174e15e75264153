"""The benchmark's arithmetic and its record, with the command replaced by one whose answers are known."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import examples

COMMAND = """#!{python}
import json, sys
name = sys.argv[2].rsplit("/", 1)[-1]
if name == "broken.cu":
    print("optiml: broken.cu:3: no spec", file=sys.stderr)
    sys.exit(2)
if name == "refused.cu":
    print("optiml: refused.cu: the spec proves nothing", file=sys.stderr)
    sys.exit(1)
ratio = {{"fast.cu": 8.0, "even.cu": 2.0}}.get(name)
measurement = {{"ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1, "predicted": False}} if ratio else None
print(json.dumps({{
    "kernel": name[:-3] + "_kernel", "mode": "measured", "elapsed_s": 10.0, "counts": {{"candidates": 50}},
    "spec": {{}}, "best": {{"evaluation": {{"measurement": measurement}}}} if ratio else None,
}}))
sys.exit(1 if ratio else 0)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fake = tmp_path / "optiml"
    fake.write_text(COMMAND.format(python=sys.executable))
    fake.chmod(0o755)
    monkeypatch.setattr(examples, "optiml", lambda: str(fake))
    return fake


def _record(tmp_path: Path, *names: str) -> tuple[int, dict[str, Any]]:
    for name in names:
        (tmp_path / name).write_text("")
    target = tmp_path / "results" / "record.json"
    code = examples.main([*(str(tmp_path / n) for n in names), "--record", str(target), "--out", str(tmp_path / "out")])
    return code, json.loads(target.read_text())


@pytest.mark.usefixtures("command")
def test_record_counts_a_kernel_without_suggestion_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, record = _record(tmp_path, "fast.cu", "even.cu", "none.cu")
    assert code == 0
    assert record["summary"]["geometric_mean"] == pytest.approx(16.0 ** (1 / 3))
    assert record["summary"]["candidates_per_s"] == pytest.approx(5.0)
    assert record["summary"]["failed"] == 0
    out = capsys.readouterr().out
    assert "| fast_kernel | measured | 8.00 | 7.90 to 8.10 | 50 | 5.0 | 10.0 |" in out
    assert "| none_kernel | measured | none found |" in out


@pytest.mark.usefixtures("command")
@pytest.mark.parametrize(("name", "reason"), [("broken.cu", "no spec"), ("refused.cu", "proves nothing")])
def test_a_run_without_result_is_a_failure_that_stays_in_the_record(tmp_path: Path, name: str, reason: str) -> None:
    code, record = _record(tmp_path, "fast.cu", name)
    assert code == 1
    assert record["summary"]["failed"] == 1
    assert reason in record["runs"][1]["error"]
    assert record["summary"]["geometric_mean"] == pytest.approx(8.0**0.5)


@pytest.mark.usefixtures("command")
def test_record_says_where_it_comes_from(tmp_path: Path) -> None:
    _, record = _record(tmp_path, "fast.cu")
    assert record["schema"] == examples.SCHEMA
    assert record["command"][:2] == ["python", "benchmarks/examples.py"]
    assert record["machine"]["cpus_usable"] >= 1
    assert record["date"].endswith("+00:00")


def test_a_missing_kernel_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        examples.main([str(tmp_path / "nowhere.cu"), "--record", str(tmp_path / "r.json")])
    assert stopped.value.code == 2


def test_records_that_the_page_names_are_there_or_said_to_be_yours_to_make() -> None:
    """It named four that were not there."""
    results = Path(examples.ROOT) / "benchmarks" / "results"
    kept, yours = set(), set()
    for line in (Path(examples.ROOT) / "benchmarks" / "README.md").read_text().splitlines():
        if line.startswith("|"):
            named = {Path(word).name for word in re.findall(r"[\w./-]+\.json", line)}
            (yours if "none is kept here" in line else kept).update(named)
    assert len(kept) >= 15
    assert sorted(name for name in kept if not (results / name).is_file()) == []
    assert sorted(name for name in yours if (results / name).is_file()) == []


def test_a_copy_says_which_commit_it_is_of(monkeypatch):
    from benchmarks.examples import commit

    monkeypatch.setenv("OPTIML_COMMIT", "0123abc")
    assert commit() == "0123abc"
    monkeypatch.delenv("OPTIML_COMMIT")
    assert commit() != "0123abc"


def test_what_measurements_import_within_functions_is_there() -> None:
    """The comparison with Kernel Tuner, which needs a GPU, imported a function from where it no longer was."""
    missing = []
    for path in sorted(Path(examples.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("engine."):
                try:
                    module = importlib.import_module(str(node.module))
                except ModuleNotFoundError as error:
                    if error.name == "cupy":  # a machine without a GPU has none
                        continue
                    raise
                names = [a.name for a in node.names if not hasattr(module, a.name)]
                modules = [
                    n for n in names if hasattr(module, "__path__") and importlib.util.find_spec(f"{node.module}.{n}")
                ]
                missing += [f"{path.name}: {node.module}.{name}" for name in names if name not in modules]
    assert missing == []
