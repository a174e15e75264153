"""Writes docs/results.md from the records in benchmarks/results and from nothing else.

    python benchmarks/results_page.py

A test fails when the page and the records differ.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import table  # noqa: E402 - the path above makes it importable when run as a script

RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md"


def page() -> str:
    """The page's text."""
    parts = ["# Results", "Written by `python benchmarks/results_page.py` from the records in `benchmarks/results`."]
    for path in sorted(RESULTS.glob("examples-*.json")):
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        parts += [f"## The ten examples: {path.stem.removeprefix('examples-')}", _where(record, path), table(record)]
        shares = _bandwidth(record)
        if shares:
            parts += [
                "What each does with the copy bandwidth measured in the same run (device to device, read plus written):"
            ]
            parts += [shares]
    return "\n\n".join(parts) + "\n"


def _where(record: dict[str, Any], path: Path) -> str:
    runs = [run["result"] for run in record["runs"] if run["result"]]
    device = runs[0]["signals"]["device"].get("name", "") if runs else ""
    return (
        f"`{shlex.join(record['command'])}` at commit `{str(record['commit'])[:10]}`, {record['date'][:10]}, {device}. "
        f"Every figure: [{path.name}](../benchmarks/results/{path.name})."
    )


def _bandwidth(record: dict[str, Any]) -> str:
    lines = ["| kernel | what the profiler says of the suggestion |", "|---|---|"]
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
