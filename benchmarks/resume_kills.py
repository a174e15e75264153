"""Kills real runs of `optiml optimize` with SIGKILL at random moments and goes on with --resume; looks at what is left.

    python benchmarks/resume_kills.py --kills 50 --record benchmarks/results/resume_kills.json

After every kill: is each candidate that was booked before still booked, unchanged, and none twice? At the end of every run:
did it reach its budget, and is what it suggests at least as good as the best that was booked before? On the CPU path a
program's figures follow from the program alone, so that they can be compared between runs too. A run is killed up to ten
times. (That the *same* result comes out is shown where the order of candidates cannot matter: tests/faults/test_kills.py.)
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine, optiml  # noqa: E402 - the path above makes it importable as a script

KERNEL = ROOT / "benchmarks" / "kernels" / "saxpy.cu"
_MOST_KILLS = 10  # of one run
_FURTHER = 4  # a kill waits for up to so many further candidates; one in five falls into the start
_START_S = 3.0
_AFTER_S = 0.5  # and then for up to so long
_END_S = 300.0


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 0 when nothing was lost, changed or booked twice, and every run came to its end."""
    parser = argparse.ArgumentParser(description="Kill runs at random moments and resume them.")
    parser.add_argument("--kills", type=int, default=50, help="kills that must hit a run that is alive (default: 50)")
    parser.add_argument("--candidates", type=int, default=40, help="the budget of a run (default: 40)")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="which path (default: cpu)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default: 0)")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    chance = random.Random(options.seed)
    begin = time.monotonic()
    runs: list[dict[str, Any]] = []
    figures: dict[str, Any] = {}
    while sum(len(run["booked_when_killed"]) for run in runs) < options.kills:
        left = options.kills - sum(len(run["booked_when_killed"]) for run in runs)
        with tempfile.TemporaryDirectory() as folder:
            runs.append(one(Path(folder), options, chance, min(left, _MOST_KILLS), figures))
        print(json.dumps(runs[-1]), flush=True)
    record = {
        "schema": "optiml.resume_kills/1",
        "command": ["python", "benchmarks/resume_kills.py", *(sys.argv[1:] if given is None else given)],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "seconds": time.monotonic() - begin,
        "kills": sum(len(run["booked_when_killed"]) for run in runs),
        "programs_seen": len(figures),
        "runs": runs,
    }
    bad = [run for run in runs if not run["right"]]
    print(f"{record['kills']} kills over {len(runs)} runs, {len(bad)} runs in which something was wrong")
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return 1 if bad else 0


def one(
    out: Path, options: argparse.Namespace, chance: random.Random, kills: int, figures: dict[str, Any]
) -> dict[str, Any]:
    """One run, killed so many times and then brought to its end."""
    before: dict[int, tuple[Any, ...]] = {}
    killed: list[int] = []
    lost = changed = 0
    for _ in range(kills):
        with start(out, options) as process:
            wait_for_moment(process, out, len(before), chance)
            process.send_signal(signal.SIGKILL)
            process.wait()
        after = rows(out)
        lost += len(before.keys() - after.keys())
        changed += sum(after[id] != row for id, row in before.items() if id in after)
        before = after
        if process.returncode != -signal.SIGKILL:
            break
        killed.append(len(after))
    with start(out, options) as process:
        status = process.wait(timeout=_END_S)
    after = rows(out)
    lost += len(before.keys() - after.keys())
    changed += sum(after[id] != row for id, row in before.items() if id in after)
    texts = [(row["parent"], row["rule"], row["parameters"], row["digest"]) for row in map(_named, after.values())]
    differing = 0
    for row in map(_named, after.values()):
        if row["ratio"] is not None and options.device == "cpu":
            differing += figures.setdefault(row["digest"], row["ratio"]) != row["ratio"]
    result = json.loads((out / "result.json").read_text())
    best = max((row["ratio"] or 0.0 for row in map(_named, before.values())), default=0.0)
    suggested = result["best"]["evaluation"]["measurement"]["ratio"] if result["best"] else 0.0
    kept = options.device != "cpu" or suggested >= 0.99 * best or bool(result["refused"])
    found = {
        "status": status,
        "booked_when_killed": killed,
        "booked": len(after),
        "lost": lost,
        "changed": changed,
        "twice": len(texts) - len(set(texts)),
        "figures_that_differ": differing,
        "best_before_the_last_start": best,
        "suggested": suggested,
    }
    whole = len(after) == options.candidates + 1 and result["counts"]["candidates"] == options.candidates
    return {**found, "right": whole and kept and status == 0 and not (lost or changed or found["twice"] or differing)}


def wait_for_moment(process: subprocess.Popen[bytes], out: Path, booked: int, chance: random.Random) -> None:
    """Let a run go on until it is to be killed, or ends."""
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0, _START_S))
        return
    wanted = booked + chance.randint(0, _FURTHER) + (booked == 0)
    begin = time.monotonic()
    while process.poll() is None and len(rows(out)) < wanted and time.monotonic() - begin < _END_S:
        time.sleep(0.05)
    time.sleep(chance.uniform(0, _AFTER_S))


def start(out: Path, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start the run, or go on with it."""
    command = [optiml(), "optimize", str(KERNEL), "--budget", str(options.candidates), "--out", str(out)]
    command += ["--device", options.device, "--profile", "none"]
    if (out / "journal.sqlite").exists():
        command.append("--resume")
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)


_COLUMNS = "id, parent, rule, parameters, digest, outcome, ratio, evaluation, checksum"


def rows(out: Path) -> dict[int, tuple[Any, ...]]:
    """What the journal holds, by id."""
    if not (out / "journal.sqlite").exists():
        return {}
    with closing(sqlite3.connect(out / "journal.sqlite")) as db:
        try:
            return {row[0]: row for row in db.execute(f"SELECT {_COLUMNS} FROM candidates ORDER BY id")}
        except sqlite3.OperationalError:
            return {}  # killed before the tables were there


def _named(row: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(_COLUMNS.split(", "), row, strict=True))


if __name__ == "__main__":
    sys.exit(main())
