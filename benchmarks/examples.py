"""Runs `optiml optimize` over the example kernels and writes one record with every figure and where it comes from.

    python benchmarks/examples.py --budget 30s --record benchmarks/results/examples.json

The record holds the command, date, commit, machine and versions, and for each kernel what its result.json says. The
table on stdout is made from the same record. Exit code 0 when every run ended with a result, 1 when one failed, 2 on
wrong use.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SCHEMA = "optiml.benchmark/1"
# What a run may take beyond its budget: setting up, validating and confirming. Ours; a run over it counts as failed.
_GRACE_S = 300.0


def main(given: Sequence[str] | None = None) -> int:
    """Run the suite; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Run optiml over the example kernels and record the results.")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="kernels (default: examples/*.cu)")
    parser.add_argument("--budget", default="30s", help="of each run, as `optiml optimize` takes it (default: 30s)")
    parser.add_argument("--seed", type=int, default=0, help="of each run's search (default: 0)")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto")
    parser.add_argument(
        "--out", type=Path, default=ROOT / ".optiml" / "benchmarks", help="where each run's folder goes"
    )
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    files = [f.resolve() for f in options.files] or sorted((ROOT / "examples").glob("*.cu"))
    missing = [str(f) for f in files if not f.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}")
    begin = datetime.datetime.now(datetime.UTC)
    runs = []
    for file in files:
        print(f"{file.name} …", file=sys.stderr, flush=True)
        runs.append(run_one(file, options.budget, options.seed, options.device, options.out.resolve()))
    record = {
        "schema": SCHEMA,
        "command": ["python", Path(__file__).relative_to(ROOT).as_posix(), *(sys.argv[1:] if given is None else given)],
        "date": begin.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "budget": options.budget,
        "seed": options.seed,
        "summary": summary(runs),
        "runs": runs,
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    print(table(record))
    return 0 if all(run["error"] is None for run in runs) else 1


def run_one(file: Path, budget: str, seed: int, device: str, out: Path) -> dict[str, Any]:
    """One run of the installed command. `error` is None, or the sentence it ended with; `wall_s`: the whole process."""
    folder = out / file.stem
    command = [
        optiml(), "optimize", str(file), "--budget", budget, "--seed", str(seed), "--device", device,
        "--out", str(folder), "--format", "json",
    ]  # fmt: skip
    run: dict[str, Any] = {"file": file.name, "error": None, "result": None}
    begin = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_seconds(budget) + _GRACE_S, check=False)
        run["exit_code"] = done.returncode
        # 0: nothing to suggest, 1: a suggestion, or refused (then stdout is empty).
        if done.returncode in (0, 1) and done.stdout.strip():
            run["result"] = trimmed(json.loads(done.stdout))
        else:
            run["error"] = done.stderr.strip()[-2000:] or f"exit code {done.returncode} without a word"
    except subprocess.TimeoutExpired:
        run["error"] = "did not end in time"
    run["wall_s"] = round(time.monotonic() - begin, 3)
    return run


def trimmed(result: dict[str, Any]) -> dict[str, Any]:
    """What a record keeps of a result.json: every figure; not the spec, which stands beside the kernel."""
    return {key: value for key, value in result.items() if key != "spec"}


def optiml() -> str:
    """The installed command, first the one beside this interpreter."""
    beside = Path(sys.executable).parent / "optiml"
    found = str(beside) if beside.is_file() else shutil.which("optiml")
    if found is None:
        sys.exit("the command `optiml` is not installed here; run `make test` or `pip install .` first")
    return found


def _seconds(budget: str) -> float:
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    return float(budget[:-1]) * units[budget[-1]] if budget[-1:] in units else 3600.0


def speedup(run: dict[str, Any]) -> dict[str, Any] | None:
    """The suggestion's measurement (or prediction); None where nothing is suggested."""
    best = (run["result"] or {}).get("best")
    measurement: dict[str, Any] | None = best["evaluation"]["measurement"] if best else None
    return measurement


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Geometric mean of the speedups, a run without a suggestion counting as 1.0; candidates over all runs' time."""
    results = [run["result"] for run in runs if run["result"]]
    ratios = [(speedup(run) or {"ratio": 1.0})["ratio"] for run in runs]
    candidates = sum(r["counts"]["candidates"] for r in results)
    elapsed = sum(r["elapsed_s"] for r in results)
    return {
        "kernels": len(runs),
        "failed": sum(run["error"] is not None for run in runs),
        "modes": sorted({r["mode"] for r in results}),
        "geometric_mean": math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None,
        "candidates": candidates,
        "candidates_per_s": candidates / elapsed if elapsed else None,
    }


def table(record: dict[str, Any]) -> str:
    """The record as a Markdown table."""
    lines = [
        "| kernel | mode | speedup | 95 % interval | candidates | per second | seconds |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    for run in record["runs"]:
        result = run["result"]
        if result is None:
            reason = (run["error"].splitlines() or [""])[-1][:100]
            lines.append(f"| {run['file']} | failed | | {reason} | | | {run['wall_s']:.1f} |")
            continue
        measurement = speedup(run)
        ratio = f"{measurement['ratio']:.2f}" if measurement else "none found"
        interval = ""
        if measurement and not measurement["predicted"]:
            interval = f"{measurement['low']:.2f} to {measurement['high']:.2f}"
        count, elapsed = result["counts"]["candidates"], result["elapsed_s"]
        rate = f"{count / elapsed:.1f}" if elapsed else ""
        lines.append(
            f"| {result['kernel']} | {result['mode']} | {ratio} | {interval} | {count} | {rate} | {elapsed:.1f} |"
        )
    total = record["summary"]
    if total["geometric_mean"]:
        lines.append("")
        lines.append(
            f"Geometric mean {total['geometric_mean']:.2f} over {total['kernels']} kernels, {total['failed']} failed."
        )
    return "\n".join(lines)


def head(schema: str, script: str, given: Sequence[str] | None, begin: datetime.datetime) -> dict[str, Any]:
    """What every record of a script says first: its schema, command, date, commit and machine."""
    return {
        "schema": schema,
        "command": ["python", Path(script).resolve().relative_to(ROOT).as_posix(), *shown(sys.argv[1:] if given is None else given)],
        "date": begin.isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
    }  # fmt: skip


def shown(arguments: Sequence[str]) -> list[str]:
    """A command without the folders of one machine: paths relative to the project, others by their names."""
    found = []
    for text in arguments:
        path = Path(text)
        if path.is_absolute():
            text = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name
        found.append(text)
    return found


CHANGED = "+changes"  # behind a commit where files differ from it


def commit() -> str:
    """What `OPTIML_COMMIT` says (a copy's own history may be another one), else the checkout's commit, marked when files differ."""
    if os.environ.get("OPTIML_COMMIT"):
        return os.environ["OPTIML_COMMIT"]
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head + (CHANGED if changed else "")


def one_gpu(name: str) -> dict[str, str]:
    """What the environment of a run on one GPU of several has of its own: numbered as the driver's tools do, whatever the speeds are."""
    return {"CUDA_VISIBLE_DEVICES": name, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def machine() -> dict[str, Any]:
    """System, processor and memory. The GPU's name and clocks stand in each result's `signals`."""
    model = ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        model = platform.processor()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "system": platform.platform(),
        "cpu": model,
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": memory,
    }


if __name__ == "__main__":
    sys.exit(main())
