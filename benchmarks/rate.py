"""The table `rate`: how many candidates per second go through compiling, verifying and timing, for a small kernel.

Runs `optiml optimize benchmarks/kernels/saxpy.cu` without the profiler and counts the candidates that went through all
three stages: not those that are the same machine code as an earlier one, and not those that failed before. The time is
that of the search alone, from the first candidate booked to the last.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.bench import Settings, Table
from benchmarks.examples import ROOT, optiml
from engine.errors import MachineError

KERNEL = ROOT / "benchmarks" / "kernels" / "saxpy.cu"


def table() -> Table:
    """The rate as a table of `optiml bench`, with one row."""
    return Table(
        "rate", "candidates per second through compiling, verifying and timing", Settings(seconds=20.0),
        lambda place, settings: ["saxpy"], lambda place, settings, row: measured(f"{settings.seconds:g}s", settings.device),
        lambda rows: {"timed_per_s": rows["saxpy"]["timed_per_s"], "candidates_per_s": rows["saxpy"]["candidates_per_s"]},
        lambda record: sentence(record["rows"]["saxpy"]), lambda settings, row: (settings.seconds or 20.0) + 15.0,
    )  # fmt: skip


def measured(budget: str, device: str) -> dict[str, Any]:
    """Candidates per second, timed ones and all, with what the run says of itself. Raises MachineError when the run failed."""
    with tempfile.TemporaryDirectory() as name:
        command = [optiml(), "optimize", str(KERNEL), "--budget", budget, "--out", name, "--device", device]
        command += ["--profile", "none", "--format", "json"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise MachineError(done.stderr.strip()[-1500:] or "the run failed without a word", str(KERNEL))
        result = json.loads(done.stdout)
        with closing(sqlite3.connect(Path(name) / "journal.sqlite")) as db:
            rows = list(db.execute("SELECT outcome, elapsed_s FROM candidates WHERE id > 0 ORDER BY id"))
    if len(rows) < 2:
        raise MachineError("the run tried fewer than two candidates", str(KERNEL), "give it more time")
    seconds = rows[-1][1] - rows[0][1]
    timed = sum(outcome in ("accepted", "slower", "no_difference", "screened") for outcome, _ in rows)
    return {
        "device": result["signals"]["device"],
        "versions": result["provenance"]["versions"],
        "mode": result["mode"],
        "seconds": seconds,
        "candidates": len(rows),
        "timed": timed,
        "timed_per_s": timed / seconds,
        "candidates_per_s": len(rows) / seconds,
        "stages": result["stages"],
    }


def sentence(found: Mapping[str, Any]) -> str:
    """The figures in words."""
    how = "compiled, verified and timed" if found["mode"] == "measured" else "compiled, screened and predicted"
    return (
        f"{found['timed']} candidates {how} in {found['seconds']:.1f} s: {found['timed_per_s']:.1f} per second; with those of "
        f"known machine code and those that failed {found['candidates']}: {found['candidates_per_s']:.1f} per second."
    )
