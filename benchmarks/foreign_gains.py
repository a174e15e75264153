"""The table of kernels of other repositories: `optiml optimize` on each, with the spec that it drafts itself.

    optiml bench foreign --checkouts DIR [--only ROWS] [--gpus N]

`DIR` holds a checkout `owner__name` of each repository of `benchmarks/foreign_gains.toml` and `benchmarks/foreign_tasks.toml`, at its
commit. A kernel marked `worked_on` was looked at while rules were written; the others were drawn and not looked at before they were
measured. With `--candidates` a search has a budget of candidates instead of seconds.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bench import Place, Row, Settings, Table
from benchmarks.examples import optiml
from benchmarks.foreign import misplaced
from benchmarks.searches import watched
from engine.errors import MachineError, UsageError

ROOT = Path(__file__).resolve().parent.parent
LISTS = (ROOT / "benchmarks" / "foreign_gains.toml", ROOT / "benchmarks" / "foreign_tasks.toml")
_SECONDS = 25.0
_GRACE_S = 600.0  # ours: beside the budget, of setting up and confirming
_ROOF = 85  # per cent of a copy's bandwidth from which on nothing is to be gained
_OF_COPY = re.compile(r"(\d+) % of copy")
_KINDS = (("worked on", True), ("not looked at before", False))


@dataclass(frozen=True)
class Kernel:
    """One kernel of a list, with its repository and the commit of that."""

    repository: str
    commit: str
    file: str
    kernel: str
    worked_on: bool

    @property
    def key(self) -> str:
        """The name of its row."""
        return f"{self.repository}/{self.file}:{self.kernel}"


def listed(paths: Sequence[Path] = LISTS) -> list[Kernel]:
    """The kernels of the lists, each once."""
    found: dict[str, Kernel] = {}
    for path in paths:
        for repository in tomllib.loads(path.read_text(encoding="utf-8"))["repository"]:
            name, commit = repository["name"], repository["commit"]
            for kernel in (Kernel(name, commit, **each) for each in repository["kernels"]):
                found.setdefault(kernel.key, kernel)
    return list(found.values())


def table() -> Table:
    """Kernels of other repositories, searched 25 s each."""
    return Table(
        "foreign",
        "kernels of other repositories, one search each (--checkouts)",
        Settings(seconds=_SECONDS),
        lambda place, settings: [kernel.key for kernel in listed()],
        measure,
        summary,
        render,
        lambda settings, row: (settings.seconds or _SECONDS) + 20.0,
        checkouts=True,
    )


def measure(place: Place, settings: Settings, key: str) -> Row:
    """The row of one kernel. Raises UsageError without its checkout, MachineError where the search gives no result."""
    kernel = next(each for each in listed() if each.key == key)
    assert place.checkouts is not None
    if wrong := misplaced(place.checkouts, {kernel.repository: kernel.commit}):
        raise UsageError(wrong, "--checkouts")
    seconds = settings.seconds or _SECONDS
    budget = f"{seconds:g}s" if settings.candidates is None else str(settings.candidates)
    folder = place.checkouts / kernel.repository.replace("/", "__")
    with tempfile.TemporaryDirectory(prefix="optiml-bench") as out:
        command = [
            optiml(), "optimize", f"{kernel.file}:{kernel.kernel}", "--device", settings.device, "--no-memory", "--budget", budget,
            "--out", out, "--format", "json",
        ]  # fmt: skip
        code, said, errors, _ = watched(command, seconds + _GRACE_S, folder)
    if code != 0 or not said.strip():
        raise MachineError((errors.strip().splitlines() or [f"exit code {code} without a word"])[-1][:400], key)
    return {"repository": kernel.repository, "worked_on": kernel.worked_on, **row_of(json.loads(said))}


def row_of(result: Mapping[str, Any]) -> Row:
    """What a result says: the ratio with its interval, the times, how far it is from a copy, why the search ended."""
    evaluation = result["best"]["evaluation"] if result["best"] else result["original"]
    measured = evaluation["measurement"]
    share = _OF_COPY.search(" ".join(result["diagnosis"]))
    return {
        "kernel": result["kernel"],
        "mode": result["mode"],
        "ratio": measured["ratio"] if result["best"] else 1.0,
        "low": measured["low"] if result["best"] else 1.0,
        "high": measured["high"] if result["best"] else 1.0,
        "before_us": sum(case["original_us"] for case in measured["cases"]),
        "after_us": sum(case["candidate_us"] for case in measured["cases"]),
        "of_copy_pct": int(share[1]) if share else None,
        "diagnosis": result["diagnosis"][:1],
        "candidates": result["counts"]["candidates"],
        "elapsed_s": result["elapsed_s"],
        "stopped": result["stopped"],
        "device": result["signals"]["device"],
        "versions": result["provenance"]["versions"],
    }


def summary(rows: Mapping[str, Row]) -> dict[str, Any]:
    """For those that were worked on and for the others: kernels, results, geometric mean, and how many gain or are near the roof."""
    marked = {kernel.key: kernel.worked_on for kernel in listed()}
    found = {}
    for name, worked in _KINDS:
        own = [row for key, row in rows.items() if marked.get(key) is worked]
        done = [row for row in own if not row.get("error")]
        fine = [row for row in done if row["ratio"] > 1.0 or (row["of_copy_pct"] or 0) >= _ROOF]
        logs = [math.log(row["ratio"]) for row in done]
        mean = math.exp(sum(logs) / len(logs)) if logs else None
        found[name] = {
            "kernels": sum(each is worked for each in marked.values()),
            "results": len(done),
            "geometric_mean": mean,
            "improved_or_at_roof": len(fine),
        }
    return found


def render(record: Mapping[str, Any]) -> str:
    """The table, and a line for each kind of kernel."""
    lines = ["| kernel | speedup | µs before, after | of copy | candidates | ended |", "|---|---:|---:|---:|---:|---|"]
    for key, row in sorted(record["rows"].items()):
        if row.get("error"):
            lines.append(f"| `{key}` | - | - | - | - | {row['error'][:120]} |")
            continue
        copy = "-" if row["of_copy_pct"] is None else f"{row['of_copy_pct']} %"
        lines.append(
            f"| `{key}` | {row['ratio']:.2f} ({row['low']:.2f} to {row['high']:.2f}) | {row['before_us']:.1f}, {row['after_us']:.1f} "
            f"| {copy} | {row['candidates']} | {row['stopped']} |"
        )
    lines.append("")
    for name, told in record["summary"].items():
        mean = f"{told['geometric_mean']:.2f}" if told["geometric_mean"] else "-"
        done = f"{told['results']} of {told['kernels']} kernels, {told['improved_or_at_roof']} of them improved or at the roof"
        lines.append(f"{name}: geometric mean {mean} of {done}")
    return "\n".join(lines)
