"""What ending searches at a plateau costs and saves, replayed on the journals of runs that spent their whole budget.

    optiml optimize benchmarks/suite/FILE.cu --budget 45s --exhaust --out RUN     # for each kernel
    python benchmarks/plateau.py RUN... --record benchmarks/results/plateau.json

Each journal is read in order; where `engine.search.progress.Plateau` would have ended the search, its candidates, seconds and best
are compared with those of the whole run. `--curves FILE` keeps what that needs of the journals with commit and device, and takes it from
there again.
"""

from __future__ import annotations

import argparse
import json
import math
import sqlite3
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.model import Outcome  # noqa: E402
from engine.search import progress  # noqa: E402
from engine.tune.inner import TunerPart  # noqa: E402

# Candidates so far (a template's points count), seconds since the run's start, speedup of the best.
Curve = list[tuple[int, float, float]]
_BEST = (Outcome.ACCEPTED.value, Outcome.SCREENED.value)


def main(given: Sequence[str] | None = None) -> int:
    """Replay the runs; see the module's docstring."""
    parser = argparse.ArgumentParser(description="What ending searches at a plateau costs and saves.")
    parser.add_argument(
        "runs", nargs="*", type=Path, metavar="RUN", help="folders of runs that spent their whole budget"
    )
    parser.add_argument("--curves", type=Path, help="JSON of earlier runs' curves: read where there, and added to")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    curves: dict[str, Curve] = {}
    measured: dict[str, Any] = {}
    if options.curves is not None and options.curves.exists():
        measured = json.loads(options.curves.read_text(encoding="utf-8"))
        curves = {name: [(c, s, r) for c, s, r in points] for name, points in measured.pop("curves").items()}
    for run in options.runs:
        curves[run.name] = curve(run / "journal.sqlite")
        device = json.loads((run / "result.json").read_text(encoding="utf-8"))["signals"]["device"]
        measured = {"commit": commit(), "device": device}
    if not curves:
        parser.error("no runs")
    if options.curves is not None:
        options.curves.write_text(json.dumps({**measured, "curves": curves}) + "\n", encoding="utf-8")
    rows = [{"run": name, **replay(points)} for name, points in sorted(curves.items())]
    for row in rows:
        print(
            f"{row['run']:28} {row['ratio']:8.3f} after {row['candidates']:5} candidates, {row['seconds']:5.1f} s; "
            f"ended at {row['ended_candidates']:5}, {row['ended_s']:5.1f} s: {100 * row['loss']:.2f} % less"
        )
    found = summary(rows)
    print(
        f"{len(rows)} runs: {found['time_ratio']:.2f} times less time, geometric mean {100 * found['loss']:.2f} % lower, "
        f"at most {100 * found['worst']:.2f} %"
    )
    if options.record:
        record = {
            "schema": "optiml.plateau/1", "command": ["python", "benchmarks/plateau.py", *(given or sys.argv[1:])],
            "commit": commit(), "machine": machine(), "rows": rows, "summary": found,
            "measured": {**measured, "curves": curves},
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def curve(journal: Path) -> Curve:
    """Where a run's best improved, and its end. Raises sqlite3.Error."""
    points: Curve = [(0, 0.0, 1.0)]
    count, elapsed_s, best = 0, 0.0, 1.0
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
        rows = db.execute("SELECT outcome, ratio, evaluation, elapsed_s FROM candidates WHERE id > 0 ORDER BY id")
        for outcome, ratio, evaluation, elapsed_s in rows:
            count += TunerPart.points_of(json.loads(evaluation)["notes"])
            if outcome in _BEST and ratio is not None and ratio > best:
                best = ratio
                points.append((count, elapsed_s, best))
    return [*points, (count, elapsed_s, best)]


def replay(points: Curve) -> dict[str, Any]:
    """Where the search would have ended, and what it had found by then."""
    plateau = progress.Plateau(0, 1.0)
    count, seconds, ratio = points[-1]
    best, coming = points[0], deque(points[1:])
    ended: tuple[int, float, float] = points[-1]
    for tried in range(count):
        while coming[0][0] <= tried:
            best = coming.popleft()
            plateau.note(best[0], best[2])
        if plateau.reached(tried):
            # Between two improvements the seconds lie on a line.
            share = (tried - best[0]) / (coming[0][0] - best[0])
            ended = tried, best[1] + share * (coming[0][1] - best[1]), best[2]
            break
    return {
        "candidates": count, "seconds": seconds, "ratio": ratio, "ended_candidates": ended[0], "ended_s": ended[1],
        "ended_ratio": ended[2], "loss": 1 - ended[2] / ratio,
    }  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Over all runs: how many times less time, the loss of the geometric mean, and the largest loss of one."""
    logs = [math.log(row["ended_ratio"] / row["ratio"]) for row in rows]
    spent, needed = sum(row["seconds"] for row in rows), sum(row["ended_s"] for row in rows)
    return {
        "time_ratio": spent / needed, "loss": 1 - math.exp(sum(logs) / len(logs)), "worst": max(r["loss"] for r in rows)
    }  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
