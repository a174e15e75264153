"""One campaign over many kernels on 1 and on 4 GPUs of this machine: how much faster, and whether it suggests the same.

    python benchmarks/campaign_rate.py [--workers 1,4] [--each 15] [--device gpu|cpu] [--record FILE] [FILE ...]

The FILES (default: the ten examples and six kernels of the suite) are copied into a repository, where `optiml all --cluster local
--workers N --budget-each EACH` runs once for each number of workers, with an empty cache of compiled code. `searching`: seconds from the
first search's start to the last one's end; `whole`: of the command. Pin this script to some cores to give one worker its share of the
machine (`taskset -c 0-15`). Wanted with four GPUs: 3.6 times as fast. Exit code 1 where a run failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine, optiml  # noqa: E402 - the path above makes it importable as a script

_SUITE = ("adamw", "layer_norm_residual", "permute", "rms_norm_residual", "row_sum", "swiglu")

Lines = Iterable[tuple[float, str]]
Runner = Callable[[Sequence[str], Path], Lines]


def run(command: Sequence[str], folder: Path) -> Lines:
    """The lines that an `optiml` command prints in a folder, each with the seconds until then. Raises CalledProcessError."""
    begin = time.monotonic()
    environment = {**os.environ, "OPTIML_CACHE": str(folder / ".cache")}
    arguments = [optiml(), *command]
    with subprocess.Popen(arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            yield time.monotonic() - begin, line
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, arguments)


def repository(files: Sequence[Path], folder: Path) -> None:
    """A repository with copies of these files, by the names of their folders."""
    for file in files:
        (folder / file.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, folder / file.parent.name)
    (folder / ".git").mkdir()


def campaign(files: Sequence[Path], workers: int, options: argparse.Namespace, runner: Runner = run) -> dict[str, Any]:
    """One campaign: its seconds, and each kernel's search."""
    command = [
        "all", "--cluster", "local", "--workers", str(workers), "--device", options.device, "--least", "0", "--budget", "1h",
        "--budget-each", str(options.each), "--limit", "3600", "--format", "json",
    ]  # fmt: skip
    kernels: dict[str, dict[str, Any]] = {}
    at = 0.0
    with tempfile.TemporaryDirectory() as folder:
        repository(files, Path(folder))
        for at, line in runner(command, Path(folder)):
            event = json.loads(line)
            if event.get("event") in ("begin", "progress", "end"):
                row = kernels.setdefault(event["kernel"], {"begin_s": at})
                row.update(end_s=at, candidates=event["candidates"], best=event["best"], worker=event["worker"])
    searching = max((k["end_s"] for k in kernels.values()), default=0.0) - min(
        (k["begin_s"] for k in kernels.values()), default=0.0
    )
    return {"whole_s": at, "searching_s": searching, "kernels": kernels}


def render(found: dict[str, dict[str, Any]]) -> str:
    """A Markdown table."""
    lines = [
        "| workers | searching | × of the first | whole command | × of the first | searches together | kernels |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    first = next(iter(found.values()))
    for workers, one in found.items():
        together = sum(k["end_s"] - k["begin_s"] for k in one["kernels"].values())
        faster = [first[key] / max(1e-9, one[key]) for key in ("searching_s", "whole_s")]
        lines.append(
            f"| {workers} | {one['searching_s']:.0f} s | {faster[0]:.2f} | {one['whole_s']:.0f} s | {faster[1]:.2f} | {together:.0f} s | "
            f"{len(one['kernels'])} |"
        )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None, runner: Runner = run) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="One campaign on several devices of this machine.")
    default = [
        *sorted((ROOT / "examples").glob("*.cu")),
        *(ROOT / "benchmarks" / "suite" / f"{name}.cu" for name in _SUITE),
    ]
    parser.add_argument(
        "files", nargs="*", type=Path, default=default, help="kernels (default: ten examples, six of the suite)"
    )
    parser.add_argument("--workers", default="1,4", metavar="LIST")
    parser.add_argument("--each", type=int, default=15, help="candidates for each kernel (default: 15)")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--record", type=Path, help="a JSON record to write")
    options = parser.parse_args(given)
    found: dict[str, dict[str, Any]] = {}
    failed = ""
    for workers in options.workers.split(","):
        try:
            found[workers] = campaign(options.files, int(workers), options, runner)
        except (subprocess.CalledProcessError, OSError, ValueError) as error:
            failed = f"{workers} workers: {error}"
            print(failed, file=sys.stderr)
            continue
        print(render(found), flush=True)
        if options.record:
            record = {
                "schema": "optiml.campaign_rate/1",
                "command": ["python", "benchmarks/campaign_rate.py", *(sys.argv[1:] if given is None else given)],
                "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": commit(),
                "machine": machine(), "campaigns": found,
            }  # fmt: skip
            options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
