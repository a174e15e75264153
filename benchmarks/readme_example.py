"""Writes the example in README.md from the record of the ten examples and from nothing else.

    python benchmarks/readme_example.py

A test fails when the README and the record differ.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import bench  # noqa: E402 - the path above makes it importable when run as a script
from benchmarks.recorded_words import in_todays_words  # noqa: E402

RECORD, README = ROOT / "benchmarks" / "results" / "examples.json", ROOT / "README.md"
ROW = "layer_norm"  # several steps of different kinds, and neither the largest nor the smallest speedup
BEGIN, END = "<!-- example of the record: begin -->\n", "<!-- example of the record: end -->\n"


def example(record: Mapping[str, Any]) -> str:
    """The example as Markdown: the run in one sentence, its steps, its times for each shape, and where all this comes from."""
    row = record["rows"][ROW]
    steps = [f"{number}. {step}" for number, step in enumerate(row["steps"], 1)]
    table = ["| shape | before µs | after µs |", "|---|---:|---:|"]
    table += [f"| `{case['case']}` | {case['original_us']:.1f} | {case['best_us']:.1f} |" for case in row["cases"]]
    diagnosis = [f"Profiler diagnosis of the result: {'; '.join(row['diagnosis'])}."] if row["diagnosis"] else []
    source = (
        f"One run of `optiml optimize {row['file']} --budget {record['settings']['seconds']:.0f}s` on one {record['device']['name']}, "
        f"{row['date'][:10]}, {row['elapsed_s']:.0f} s in total; from [examples.json](benchmarks/results/examples.json)."
    )
    text = "\n\n".join([f"**{row['verdict']}**", "\n".join(steps), "\n".join(table), *diagnosis, source])
    return in_todays_words(text) + "\n"


def replaced(readme: str, text: str) -> str:
    """The README with this example between its marks."""
    before, _, rest = readme.partition(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    """Write the example into the README. Exit code 0."""
    record = bench.load(RECORD, "examples")
    if record is None:
        sys.exit(f"{RECORD} does not exist: measure it with 'optiml bench examples'")
    README.write_text(replaced(README.read_text(encoding="utf-8"), example(record)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
