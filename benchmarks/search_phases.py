"""Processor time of whole searches on the CPU path by phase: what one search of a campaign costs beside its candidates.

    python benchmarks/search_phases.py [--candidates 12] [--repeats 1] [--record FILE] [FILE ...]

Each FILE (default: softmax and gelu_bias of the examples) is searched as by `--device cpu`, once to fill the caches on disk and then so
many times, each in a process of its own.
Seconds of a core, of this process and all that it starts: `open` builds and validates the original, `search` takes the candidates,
`confirm` the suggestion, `whole files` builds these, `rest` sets up and writes. Medians over the repeats. Nothing is measured on a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.evaluate.cpu import CpuEvaluator  # noqa: E402
from engine.run.machine import make_machine  # noqa: E402
from engine.run.optimization import optimize  # noqa: E402
from engine.run.optimize_options import Options  # noqa: E402
from engine.run.suggestion_gate import Gate  # noqa: E402
from engine.search.loop import Search  # noqa: E402
from engine.search.progress import Budget  # noqa: E402

FILES = ("examples/softmax.cu", "examples/gelu_bias.cu")
_PHASES = ((CpuEvaluator, "open", "open"), (Search, "run", "search"), (CpuEvaluator, "confirm", "confirm"),
           (Gate, "judge", "whole files"))  # fmt: skip


def spent_s() -> float:
    """Seconds of a core that this process and its children have taken, those that ended included."""
    parents, taken = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(fields[1])
            taken[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    found = 0.0
    for process in taken:
        above = process
        while above in parents and above != os.getpid():
            above = parents[above]
        found += taken[process] if above == os.getpid() else 0.0
    return found


class Phases:
    """Counts what functions take, those within another not twice."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)

    def watch(self, holder: Any, name: str, phase: str) -> None:
        """Count a function's time as a phase's."""
        function = getattr(holder, name)

        @functools.wraps(function)
        def timed(*given: Any, **named: Any) -> Any:
            begin, before = spent_s(), sum(self.spent.values())
            try:
                return function(*given, **named)
            finally:
                self.spent[phase] += spent_s() - begin - (sum(self.spent.values()) - before)

        setattr(holder, name, timed)


def search(phases: Phases, file: str, candidates: int) -> dict[str, float]:
    """Seconds by phase of one search."""
    begin = spent_s()
    with (
        tempfile.TemporaryDirectory() as out,
        closing(make_machine(device="cpu", arch="sm_90")) as here,
    ):
        optimize(Options(ROOT / file, budget=Budget(candidates=candidates), out=Path(out) / "out"), here)
    whole = spent_s() - begin
    return {**phases.spent, "rest": whole - sum(phases.spent.values()), "all": whole}


def render(rows: dict[str, dict[str, float]]) -> str:
    """A Markdown table."""
    names = list({name: None for row in rows.values() for name in row})
    lines = ["| search | " + " | ".join(names) + " |", "|---|" + "---:|" * len(names)]
    return "\n".join(
        [
            *lines,
            *(
                f"| {file} | " + " | ".join(f"{row.get(n, 0.0):.1f}" for n in names) + " |"
                for file, row in rows.items()
            ),
        ]
    )


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Processor time of whole searches by phase.")
    parser.add_argument("files", nargs="*", default=FILES)
    parser.add_argument("--candidates", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--once", action="store_true", help="one search in this process, as JSON")
    parser.add_argument("--record", type=Path, help="a JSON record to write")
    options = parser.parse_args(given)
    if options.once:
        phases = Phases()
        for each in _PHASES:
            phases.watch(*each)
        print(json.dumps(search(phases, options.files[0], options.candidates)))
        return 0
    rows = {}
    for file in options.files:
        command = [sys.executable, __file__, file, "--candidates", str(options.candidates), "--once"]
        said = [subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout for _ in range(1 + options.repeats)]
        runs = [json.loads(each) for each in said[1:]]
        rows[file] = {name: statistics.median(run.get(name, 0.0) for run in runs) for name in runs[0]}
    print(render(rows))
    if options.record:
        record = {
            "schema": "optiml.search_phases/1",
            "command": ["python", "benchmarks/search_phases.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": commit(),
            "machine": machine(), "candidates": options.candidates, "rows": rows,
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
