"""One search on 1, 2 and 4 devices of this machine: candidates per second, the best found, and one ratio measured on every device.

    python benchmarks/devices_rate.py [--devices 1,2,4] [--budget 60s] [--repeats 3] [--device gpu|cpu] [--record FILE] [FILE ...]

Each FILE (default: examples/matmul.cu and the spaces of benchmarks/tuning) runs through `optiml optimize --cluster local --workers N`,
those of benchmarks/tuning through `optiml tune` as well. Rate: candidates over the seconds between the first and the last row of the
journal, without setting up, opening the original on each device, and confirming. Each run begins with an empty cache of compiled code;
pin this script to some cores to give one device its share of the machine (`taskset -c 0-15`). With several devices the best program of
the first FILE is then confirmed on each alone: its ratios should agree within their intervals. Wanted with four H200: three times the
rate of one, the best equal within intervals. With `--device cpu` it tries the script, and its rates say nothing of a GPU. Exit code 1
where a run failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine, optiml  # noqa: E402 - the path above makes it importable as a script

FILES = ("examples/matmul.cu", *(f"benchmarks/tuning/{name}.cu" for name in ("saxpy", "transpose", "gemm")))

Runner = Callable[[Sequence[str], Path], Mapping[str, Any]]


def run(command: Sequence[str], out: Path) -> Mapping[str, Any]:
    """The result of an `optiml` command that writes to a folder. Raises CalledProcessError."""
    environment = {**os.environ, "OPTIML_CACHE": str(out.parent / "cache")}
    subprocess.run(
        [optiml(), *command, "--out", str(out)], check=True, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    )
    found: dict[str, Any] = json.loads((out / "result.json").read_text(encoding="utf-8"))
    with closing(sqlite3.connect(out / "journal.sqlite")) as journal:
        found["booked_at"] = [at for (at,) in journal.execute("SELECT booked_at FROM candidates ORDER BY booked_at")]
    if found["best"] and command[0] == "optimize":
        found["program"] = patched(ROOT, out / "best.patch", found["best"]["files"])
    return found


def rate(result: Mapping[str, Any]) -> float:
    """Candidates (of the tuner: configurations) for each second from the original's row in the journal to the last one's."""
    booked = result["booked_at"]
    return (len(booked) - 1) / max(1e-9, booked[-1] - booked[0]) if len(booked) > 1 else 0.0


def best(result: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """The confirmed speedup with its interval."""
    found = result["best"]
    held = found["evaluation"]["measurement"] if found else None
    return None if held is None else (held["ratio"], held["low"], held["high"])


def agree(intervals: Sequence[tuple[float, float, float]]) -> bool:
    """Whether all intervals have a value in common."""
    return max(low for _, low, _ in intervals) <= min(high for _, _, high in intervals)


def measure(
    files: Sequence[str], counts: Sequence[int], options: argparse.Namespace, runner: Runner = run
) -> dict[str, Any]:
    """Rows by command; each has a median rate, and the best and the seconds by stage of each run, for each number of devices, and the
    best `program` of the last run."""
    rows: dict[str, Any] = {}
    for file in files:
        for verb in ("optimize", "tune") if "tuning" in file else ("optimize",):
            row: dict[str, Any] = {"rates": {}, "best": {}, "seconds": {}, "errors": []}
            for count in counts:
                rates = []
                for seed in range(options.repeats):
                    command = [
                        verb, file, "--cluster", "local", "--workers", str(count), "--device", options.device, "--budget",
                        options.budget, "--seed", str(seed), "--format", "json",
                    ]  # fmt: skip
                    with tempfile.TemporaryDirectory() as folder:
                        try:
                            result = runner(command, Path(folder) / "out")
                        except (subprocess.CalledProcessError, OSError, ValueError) as error:
                            row["errors"].append(f"{count} devices, seed {seed}: {error}")
                            continue
                    rates.append(rate(result))
                    row["best"].setdefault(str(count), []).append(best(result))
                    row["program"] = result.get("program", row.get("program"))
                    row["seconds"].setdefault(str(count), []).append({"whole": result["elapsed_s"], **result["stages"]})
                if rates:
                    row["rates"][str(count)] = statistics.median(rates)
            rows[f"{verb} {file}"] = row
    return rows


def patched(root: Path, patch: Path, names: Sequence[str]) -> dict[str, bytes]:
    """These files as a patch leaves them."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).write_bytes((root / name).read_bytes())
        subprocess.run(["git", "apply", str(patch.resolve())], check=True, cwd=folder)
        return {name: (Path(folder) / name).read_bytes() for name in names}


def on_each_device(
    file: str, changed: Mapping[str, bytes], options: argparse.Namespace
) -> dict[str, tuple[float, float, float]]:
    """The speedup of a kernel's changed files, confirmed on each device of this machine alone."""
    from engine.cluster.connection import connect
    from engine.cluster.links import links
    from engine.cluster.scheduler import ClusterRequest
    from engine.cuda.load import load_program
    from engine.evaluate.remote import DeviceLost, RemoteEvaluator
    from engine.run.device_service import answer
    from engine.run.machine import make_machine
    from engine.spec.find import find_spec

    path, count = ROOT / file, max(options.counts)
    spec, spec_path = find_spec(ROOT, path)
    program = load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
    found: dict[str, tuple[float, float, float]] = {}
    with (
        connect(ClusterRequest("local", options.device, count)) as cluster,
        links(cluster, answer, DeviceLost) as devices,
    ):
        gpu = cluster.workers[0].identity.gpu
        here = make_machine(device="cpu", arch=gpu.arch if gpu is not None else None)
        here.mode = "measured" if cluster.measures else "predicted"
        try:
            for device in devices:
                alone = RemoteEvaluator(spec, spec_path, here.builder(spec, ROOT, spec_path), [device], here.mode)
                alone.open(program)
                held = alone.confirm(alone.build(program.replace(changed), by_rules=False)).measurement
                alone.close()
                if held is not None:
                    found[device.name] = (held.ratio, held.low, held.high)
        finally:
            here.close()
    return found


def render(rows: Mapping[str, Any]) -> str:
    """A Markdown table."""
    counts = sorted({int(count) for row in rows.values() for count in row["rates"]})
    lines = [
        "| run | " + " | ".join(f"{c}: candidates/s | {c}: × of one | {c}: best" for c in counts) + " |",
        "|---|" + "---:|" * (3 * len(counts)),
    ]
    for name, row in rows.items():
        cells = []
        for count in map(str, counts):
            value, alone = row["rates"].get(count), row["rates"].get(str(counts[0]))
            reached = [found[0] for found in row["best"].get(count, ()) if found is not None]
            cells += [
                f"{value:.2f}" if value else "-", f"{value / alone:.2f}" if value and alone else "-",
                f"{statistics.median(reached):.3f}×" if reached else "-",
            ]  # fmt: skip
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="One search on several devices of this machine.")
    parser.add_argument("files", nargs="*", default=FILES, help="kernels (default: matmul and three tuning spaces)")
    parser.add_argument("--devices", default="1,2,4", metavar="LIST")
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--record", type=Path, help="a JSON record to write")
    options = parser.parse_args(given)
    options.counts = [int(count) for count in options.devices.split(",")]
    rows = measure(options.files, options.counts, options)
    print(render(rows), flush=True)
    programs = {name: row.pop("program", None) for name, row in rows.items()}
    _write(options, given, rows, {})  # what is measured stays, whatever becomes of the rest
    several = max(options.counts) > 1 and programs.get(f"optimize {options.files[0]}")
    each = on_each_device(options.files[0], several, options) if several else {}
    for name, (ratio, low, high) in each.items():
        print(f"{options.files[0]} on {name}: {ratio:.3f}× ({low:.3f} to {high:.3f})")
    if each:
        print("the intervals have a value in common" if agree(list(each.values())) else "the intervals differ")
    _write(options, given, rows, each)
    return 1 if any(row["errors"] for row in rows.values()) else 0


def _write(
    options: argparse.Namespace, given: Sequence[str] | None, rows: Mapping[str, Any], each: Mapping[str, Any]
) -> None:  # fmt: skip
    if options.record:
        record = {
            "schema": "optiml.devices_rate/1",
            "command": ["python", "benchmarks/devices_rate.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": commit(),
            "machine": machine(), "rows": rows, "each_device": each,
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
