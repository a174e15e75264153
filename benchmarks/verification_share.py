"""What part of a search's time the full verification of promoted candidates took.

    python benchmarks/verification_share.py .optiml/softmax-softmax_kernel/result.json
    python benchmarks/verification_share.py benchmarks/results/examples.json --record FILE

Reads results, or records that hold several, and prints a row for each run: the search's seconds, those of the checks that every
candidate passes (stage `verify`, or `screen` on the CPU path), and those of the full verification of what would be suggested
(stage `confirm`: a second process, twice the seeds, full timing, checks after it, the sanitizers), with its share and its own
stages. `--record` keeps these rows, with the command, commit, date and GPU of each run. Exit code 0 when no share is over the
25 % that are allowed, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.examples import head

SCHEMA = "optiml.verification_share/1"
ALLOWED = 0.25


def main(given: Sequence[str] | None = None) -> int:
    """Print the table; see the module's docstring."""
    parser = argparse.ArgumentParser(description="The share of the full verification in a search's time.")
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE", help="result.json, or a record of runs")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    begin = datetime.datetime.now(datetime.UTC)
    worst = 0.0
    rows = []
    print("| kernel | seconds | checks of all candidates | full verification | share | its stages |")
    print("|---|---:|---:|---:|---:|---|")
    for path in options.files:
        for result in results(json.loads(path.read_text(encoding="utf-8"))):
            stages = result["stages"]
            share = stages.get("confirm", 0.0) / result["elapsed_s"]
            worst = max(worst, share)
            checks = stages.get("verify", 0.0) + stages.get("screen", 0.0)
            rows.append(
                {
                    "kernel": result["kernel"], "seconds": result["elapsed_s"], "share": share, "stages": stages,
                    "confirmations": confirmations(result), "provenance": result.get("provenance", {}),
                    "device": result.get("signals", {}).get("device", result.get("device", {})),
                }
            )  # fmt: skip
            split = ", ".join(f"{name} {seconds:.1f}" for name, seconds in sorted(confirmations(result).items()))
            print(
                f"| {result['kernel']} | {result['elapsed_s']:.1f} | {checks:.1f} | {stages.get('confirm', 0.0):.1f} | "
                f"{100 * share:.0f} % | {split or '-'} |"
            )
    if options.record is not None:
        record = {**head(SCHEMA, __file__, given, begin), "allowed": ALLOWED, "largest": worst, "rows": rows}
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"\nThe largest share: {100 * worst:.0f} % of {100 * ALLOWED:.0f} % allowed")
    return 0 if worst <= ALLOWED else 1


def results(data: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The result itself, those of a record's runs, or the rows of a table of `optiml bench`."""
    if "stages" in data and "kernel" in data:
        yield data
    for row in (data.get("rows") or {}).values():
        if "stages" in row:
            yield row
    for run in data.get("runs", ()):
        if run.get("result"):
            yield run["result"]


def confirmations(result: Mapping[str, Any]) -> dict[str, float]:
    """Seconds by stage of all confirmations, the refused ones too."""
    found: dict[str, float] = {}
    looked = [*result.get("refused", ()), *([result["best"]] if result.get("best") else [])]
    for one in looked:
        for stage, seconds in one["evaluation"]["stage_s"].items():
            found[stage] = found.get(stage, 0.0) + seconds
    return found


if __name__ == "__main__":
    sys.exit(main())
