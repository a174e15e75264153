"""Writes docs/results.md from the records in benchmarks/results and from nothing else.

    python benchmarks/results_page.py

A test fails when the page and the records differ. The tables are those of `optiml bench`; records of other kinds are listed.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import bench, examples, model_arms, tuner_landscapes  # noqa: E402 - the path above makes it importable when run as a script
from benchmarks.recorded_words import in_todays_words  # noqa: E402
from benchmarks.tables import TABLES  # noqa: E402

RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md"


def page(results: Path = RESULTS) -> str:
    """The page's text. Raises UsageError for a table's record of another version."""
    parts = [
        "# Results",
        "Written by `python benchmarks/results_page.py` from the records in `benchmarks/results`. The command "
        "above each table repeats it; methods and targets are in [benchmarks/README.md](../benchmarks/README.md).",
    ]
    for name, table in TABLES.items():
        record = bench.load(results / f"{name}.json", name)
        begun = bench.load(results / f"{name}.part.json", name) if record is None else None
        if record is not None:
            parts += [f"## {name}: {table.title}", _where(record, name), table.render(record)]
        elif begun is not None and begun.get("summary"):
            parts += [
                f"## {name}: {table.title}",
                _where(begun, f"{name}.part"),
                _missing(table, begun),
                table.render(begun),
            ]
        elif name == "examples":
            parts += _earlier_examples(results)
    return in_todays_words("\n\n".join([*parts, *_model_arms(results), *_tuner_landscapes(results)])) + "\n"


def _missing(table: bench.Table, record: Mapping[str, Any]) -> str:
    """Which rows a record that was begun lacks."""
    place = bench.Place(ROOT, RESULTS, RESULTS)
    rows = table.rows(place, bench.Settings(**record["settings"]))
    lacking = [row for row in rows if record["rows"].get(row, {"error": ""})["error"] is not None]
    return f"**Begun, not finished**: {len(rows) - len(lacking)} of {len(rows)} rows. Missing or failed: {', '.join(lacking)}."


def _model_arms(results: Path) -> list[str]:
    """What recorded answers of a model add to rules and tuner."""
    path = results / "model_arms-h200.json"
    if not path.is_file():
        return []
    record = json.loads(path.read_text(encoding="utf-8"))
    return [
        "## model_arms: searches with and without a model's recorded answers",
        f"`{shlex.join(_plain(record['command']))}` at commit `{record['commit'][:10]}`, {record['date'][:10]}, {record['candidates']} "
        f"candidates a search. Every value: [{path.name}](../benchmarks/results/{path.name}); who wrote the answers, and how: "
        "[provenance.json](../benchmarks/answers/provenance.json).",
        model_arms.table(record["rows"], record["arms"]),
        *([record["note"]] if record.get("note") else []),
    ]


def _tuner_landscapes(results: Path) -> list[str]:
    """How soon the tuner's strategies find a fast point where times are simulated, and where they were recorded."""
    parts = []
    for name, title in (
        ("tuner_landscapes", "the tuner's strategies on simulated kernels"),
        ("tuner_landscapes-recorded", "the same on spaces timed by Kernel Tuner's authors"),
    ):
        path = results / f"{name}.json"
        if path.is_file():
            record = json.loads(path.read_text(encoding="utf-8"))
            said = (
                f"`{shlex.join(_plain(record['command']))}` at commit `{record['commit'][:10]}`, {record['date'][:10]}, no GPU, "
                f"{record['seeds']} seeds. All values: [{path.name}](../benchmarks/results/{path.name})."
            )
            parts += [f"## {name}: {title}", said, tuner_landscapes.render(record["rows"])]
    return parts


def _where(record: Mapping[str, Any], name: str) -> str:
    rows = record["rows"].values()
    commits = sorted({row["commit"][:10] for row in rows})
    dates = sorted({row["date"][:10] for row in rows})
    device = record["device"].get("name", "")
    if record.get("gpus_at_once", 1) > 1:
        device += f", rows on up to {record['gpus_at_once']} of one machine at once"
    when = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    at = ", ".join(f"`{commit}`" for commit in commits if commit) or "(not known)"
    command = shlex.join(_plain(record["commands"][-1]))
    return (
        f"`{command}` at commit {at}, {when}, {device}. All values: [{name}.json](../benchmarks/results/{name}.json)."
    )


def _plain(command: list[str]) -> list[str]:
    """A command without what says where its records lie and in how many parts it ran."""
    kept: list[str] = []
    skip = False
    for word in command:
        if skip:
            skip = False
        elif word in ("--out", "--checkout", "--limit", "--only"):
            skip = True
        elif word != "--resume":
            kept.append(word)
    return kept


def _earlier_examples(results: Path) -> list[str]:
    """The examples as the script before `optiml bench examples` recorded them."""
    parts = []
    for path in sorted(results.glob("examples-*.json")):
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        runs = [run["result"] for run in record["runs"] if run["result"]]
        device = runs[0]["signals"]["device"].get("name", "") if runs else ""
        parts += [
            f"## The ten examples: {path.stem.removeprefix('examples-')}",
            f"`{shlex.join(record['command'])}` at commit `{str(record['commit'])[:10]}`, {record['date'][:10]}, {device}. "
            f"All values: [{path.name}](../benchmarks/results/{path.name}).",
            examples.table(record),
        ]
        shares = _bandwidth(record)
        if shares:
            said = "Each kernel relative to the copy bandwidth measured in the same run (device to device, read plus written):"
            parts += [said, shares]
    return parts


def _bandwidth(record: Mapping[str, Any]) -> str:
    lines = ["| kernel | profiler diagnosis of the suggestion |", "|---|---|"]
    for run in record["runs"]:
        result = run["result"]
        said = result["trajectory"][-1]["diagnosis"] if result and result["trajectory"] else []
        if said:
            lines.append(f"| {result['kernel']} | {said[0]} |")
    return "\n".join(lines) if len(lines) > 2 else ""


def main() -> int:
    """Write the page; exit code 0."""
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
