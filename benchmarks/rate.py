"""How many candidates per second go through compiling, verifying and timing, for a small kernel on this GPU.

    python benchmarks/rate.py --record benchmarks/results/rate.json

Runs `optiml optimize benchmarks/kernels/saxpy.cu` without the profiler and counts the candidates that went through all
three stages: not those that are the same machine code as an earlier one, and not those that failed before. The time is
that of the search alone, from the first candidate booked to the last.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine, optiml  # noqa: E402 - the path above makes it importable as a script

KERNEL = ROOT / "benchmarks" / "kernels" / "saxpy.cu"


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 0, or 1 when the run failed."""
    parser = argparse.ArgumentParser(description="Candidates per second through compile, verify and time.")
    parser.add_argument("--budget", default="20s", help="of the run (default: 20s)")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as name:
        command = [optiml(), "optimize", str(KERNEL), "--budget", options.budget, "--out", name, "--device", "gpu"]
        command += ["--no-profile", "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(done.stderr, file=sys.stderr)
            return 1
        result = json.loads(done.stdout)
        with closing(sqlite3.connect(Path(name) / "journal.sqlite")) as db:
            rows = list(db.execute("SELECT outcome, elapsed_s FROM candidates WHERE id > 0 ORDER BY id"))
    seconds = rows[-1][1] - rows[0][1]
    timed = sum(outcome in ("accepted", "slower", "no_difference") for outcome, _ in rows)
    record = {
        "schema": "optiml.rate/1",
        "command": ["python", "benchmarks/rate.py", *(sys.argv[1:] if given is None else given)],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "device": result["signals"]["device"],
        "versions": result["provenance"]["versions"],
        "seconds": seconds,
        "candidates": len(rows),
        "timed": timed,
        "timed_per_s": timed / seconds,
        "candidates_per_s": len(rows) / seconds,
        "stages": result["stages"],
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{timed} candidates compiled, verified and timed in {seconds:.1f} s: {timed / seconds:.1f} per second")
    print(f"{len(rows)} with those of known machine code and those that failed: {len(rows) / seconds:.1f} per second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
