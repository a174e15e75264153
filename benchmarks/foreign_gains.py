"""What kernels of other repositories gain: `optiml optimize` on each, with the spec that it drafts itself.

    python benchmarks/foreign_gains.py --checkouts DIR --work DIR --record benchmarks/results/foreign_gains-h200.json

`DIR` holds a checkout `owner__name` of each repository of `benchmarks/foreign_gains.toml`, at its commit. A kernel marked `worked_on`
was looked at while rules were written; the others were drawn and not looked at before they were measured. A result that is in
`--work` already is taken as it is. Exit code 0, or 2 where a checkout is missing or stands at another commit.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import head, optiml  # noqa: E402 - the path above makes it importable as a script
from benchmarks.foreign import misplaced  # noqa: E402

SCHEMA = "optiml.foreign_gains/1"
LIST = ROOT / "benchmarks" / "foreign_gains.toml"
LIMIT_S = 120.0  # ours: beside a budget of half a minute, of setting up and confirming
_ROOF = 85  # per cent of a copy's bandwidth from which on nothing is to be gained
_OF_COPY = re.compile(r"(\d+) % of copy")


def listed(path: Path = LIST) -> list[dict[str, Any]]:
    """The kernels of the list, each with its repository and commit."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))["repository"]
    return [{"repository": r["name"], "commit": r["commit"], **kernel} for r in found for kernel in r["kernels"]]


def folder_of(kernel: dict[str, Any]) -> str:
    """The name of the folder with a kernel's result."""
    return re.sub(r"\W+", "_", f"{kernel['file']}_{kernel['kernel']}")


def searched(kernel: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The row of one kernel; searches it where no result is there."""
    out = (options.work / folder_of(kernel)).resolve()
    said = ""
    if not (out / "result.json").is_file() and not options.there:
        folder = options.checkouts / kernel["repository"].replace("/", "__")
        command = [
            optiml(),
            "optimize",
            f"{kernel['file']}:{kernel['kernel']}",
            "--device",
            options.device,
            "--no-memory",
        ]
        command += ["--budget", options.budget, "--out", str(out)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=options.limit,
                cwd=folder,
                errors="replace",
                check=False,
            )
            said = (done.stderr.strip().splitlines() or ["nothing said"])[-1]
        except subprocess.TimeoutExpired:
            said = f"did not end in {options.limit:g} s"
    if not (out / "result.json").is_file():
        return {**kernel, "error": said[:300] or "did not end"}
    return {**kernel, **row_of(json.loads((out / "result.json").read_text(encoding="utf-8"))), "error": None}


def row_of(result: dict[str, Any]) -> dict[str, Any]:
    """What a result says: the ratio with its interval, the times, how far it is from a copy, why the search ended."""
    evaluation = result["best"]["evaluation"] if result["best"] else result["original"]
    measured = evaluation["measurement"]
    share = _OF_COPY.search(" ".join(result["diagnosis"]))
    return {
        "ratio": measured["ratio"] if result["best"] else 1.0,
        "low": measured["low"] if result["best"] else 1.0,
        "high": measured["high"] if result["best"] else 1.0,
        "before_us": sum(case["original_us"] for case in measured["cases"]),
        "after_us": sum(case["candidate_us"] for case in measured["cases"]),
        "of_copy_pct": int(share[1]) if share else None,
        "diagnosis": result["diagnosis"][:1],
        "candidates": result["counts"]["candidates"],
        "seconds": result["elapsed_s"],
        "stopped": result["stopped"],
        "gpu": result["signals"]["device"].get("name", ""),
        "date": result["provenance"]["date"],
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """For those that were worked on and for the others: kernels, results, geometric mean, and how many gain or are near the roof."""
    found = {}
    for name, worked in (("worked on", True), ("not looked at before", False)):
        own = [row for row in rows if row["worked_on"] is worked]
        done = [row for row in own if row["error"] is None]
        fine = [row for row in done if row["ratio"] > 1.0 or (row["of_copy_pct"] or 0) >= _ROOF]
        logs = [math.log(row["ratio"]) for row in done]
        mean = math.exp(sum(logs) / len(logs)) if logs else None
        found[name] = {
            "kernels": len(own),
            "results": len(done),
            "geometric_mean": mean,
            "improved_or_at_roof": len(fine),
        }
    return found


def main(given: Sequence[str] | None = None) -> int:
    """Search, print, record."""
    parser = argparse.ArgumentParser(description="Search kernels of other repositories.")
    parser.add_argument(
        "--checkouts", type=Path, required=True, metavar="DIR", help="holds owner__name of each repository"
    )
    parser.add_argument("--work", type=Path, required=True, metavar="DIR", help="where results go, and are taken from")
    parser.add_argument("--list", type=Path, default=LIST, help="the kernels (default: benchmarks/foreign_gains.toml)")
    parser.add_argument("--budget", default="25s", help="of each search (default: 25s)")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, metavar="S", help="seconds for one kernel (default: 120)"
    )
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--there", action="store_true", help="search nothing: only what is in --work already")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    kernels = listed(options.list)
    if not options.there and (wrong := misplaced(options.checkouts, {k["repository"]: k["commit"] for k in kernels})):
        parser.error(wrong)
    start = head(SCHEMA, __file__, given, datetime.datetime.now(datetime.UTC))
    rows: list[dict[str, Any]] = []
    for kernel in kernels:
        row = searched(kernel, options)
        rows.append(row)
        shown = row["error"] or f"{row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f}), {row['stopped']}"
        print(f"{row['kernel']:40} {shown}", flush=True)
        if options.record:  # after each: what is stopped has something to show
            record = {
                **start,
                "budget": options.budget,
                "device": options.device,
                "rows": rows,
                "summary": summary(rows),
            }
            options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name, told in summary(rows).items():
        mean = f"{told['geometric_mean']:.2f}" if told["geometric_mean"] else "-"
        done = f"{told['results']} of {told['kernels']}, {told['improved_or_at_roof']} of them improved or at the roof"
        print(f"{name}: geometric mean {mean} over {done}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
