"""Kernel Tuner and `optiml tune` on the same five spaces: configurations a second, best time, evaluations to come near it.

Kernel Tuner runs in a process of its own (benchmarks/kernel_tuner_side.py) on every point, in a random order, for as long as
`--seconds` says; ours evaluates every point once, then gets a tenth of Kernel Tuner's evaluations on several seeds. Both verify every
configuration. What each found best is then built anew and timed side by side with cold caches.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bench import Place, Row, Settings, Table
from benchmarks.sidebyside import Stage, compared, interleaved
from engine.errors import MachineError

KERNELS = ("saxpy", "transpose", "row_sum", "gemm", "convolution")
SECONDS, SEEDS = 240.0, 3
WANTED_RATE, WANTED_SHARE = 10.0, 0.1
_OURS_S = 70.0  # set-up, every point, three short runs and the comparison; a space of 328 points took 20 s
_LARGE = 150  # points: from here on a tenth of the evaluations must do
_EQUAL = 1.01  # times this near are equal: what an interleaved comparison of two runs of one kernel is good to


def table() -> Table:
    """The five spaces."""
    return Table(
        "peers-kernel-tuner", "optiml tune compared with Kernel Tuner on the same spaces", Settings(seconds=SECONDS, seeds=SEEDS),
        lambda place, settings: list(KERNELS), measure, summary, render, lambda settings, row: (settings.seconds or SECONDS) + _OURS_S,
    )  # fmt: skip


def measure(place: Place, settings: Settings, kernel: str) -> Row:
    """One space. Raises OptimlError."""
    from engine.run.machine import make_machine
    from engine.run.template_run import tune
    from engine.search.progress import Budget
    from engine.tune.chosen_template import make_template
    from engine.tune.template import program_at
    from engine.tune.tune_options import TuneOptions

    theirs = _theirs(place, kernel, settings.seconds or SECONDS)
    timed = [r for r in theirs["rows"] if r["time_us"] is not None]
    if not timed:
        raise MachineError("Kernel Tuner timed no configuration", kernel)
    best = min(timed, key=lambda r: r["time_us"])
    tried = len(theirs["rows"])
    path = place.root / "benchmarks" / "tuning" / f"{kernel}.cu"
    machine = make_machine(device="gpu")
    try:
        with tempfile.TemporaryDirectory(prefix="optiml-bench") as name:

            def run(strategy: str | None, candidates: int | None, seed: int) -> Any:
                options = TuneOptions(
                    path=path,
                    strategy=strategy,
                    seed=seed,
                    budget=Budget(candidates=candidates),
                    out=Path(name) / "run",
                )
                return tune(options, machine)

            all_points = run("exhaustive", None, 0)
            tenth = max(1, math.floor(WANTED_SHARE * tried))
            short = [run(None, tenth, seed) for seed in range(settings.seeds or SEEDS)]
    finally:
        machine.close()
    stage = Stage(place, f"benchmarks/tuning/{kernel}.cu")
    try:
        options = TuneOptions(path=path)
        template, _ = make_template(options, stage.program, stage.spec, stage.spec_path, stage.machine.target)
        names = template.space.names

        def call(point: Sequence[int]) -> Any:
            return stage.call(stage.builder.candidate(program_at(stage.program, template, tuple(point))))

        own = [tuple(r.best.values[n] for n in names) if r.best is not None else template.default for r in short]
        whole = tuple(all_points.best.values[n] for n in names) if all_points.best is not None else template.default
        contestants = {"kernel tuner": call(best["point"]), "all points": call(whole or best["point"])}
        contestants |= {f"seed {i}": call(point or best["point"]) for i, point in enumerate(own)}
        samples = interleaved(contestants, dict.fromkeys(contestants, stage.reset))
    finally:
        stage.close()
    versus = [
        compared({"ours": samples[f"seed {i}"], "kernel tuner": samples["kernel tuner"]}) for i in range(len(own))
    ]
    ratios = [v["ratios"]["kernel tuner"] for v in versus]
    return {
        "points": theirs["points"], "theirs": {
            "configurations": tried, "elapsed_s": theirs["elapsed_s"], "per_s": tried / theirs["elapsed_s"], "stages": theirs["stages"],
            "best": dict(zip(names, best["point"], strict=True)), "best_us": best["time_us"],
            "to_2_percent": _to_two_percent([r["time_us"] for r in theirs["rows"]]),
        },
        "ours": {
            "configurations": all_points.counts["configurations"], "per_s": all_points.rates["configurations_per_s"],
            "evaluations_per_s": all_points.rates["evaluations_per_s"], "elapsed_s": all_points.elapsed_s,
            "stages": dict(all_points.stages), "best": dict(zip(names, whole or (), strict=False)),
        },
        "tenth": {
            "configurations": tenth, "strategy": short[0].strategy, "best": [dict(zip(names, p or (), strict=False)) for p in own],
            "to_2_percent": [_ours_to_two_percent(r) for r in short], "elapsed_s": [r.elapsed_s for r in short],
        },
        "times_us": compared({"ours": samples["all points"], **samples})["times_us"],
        "all_points_ratio": compared({"ours": samples["all points"], "kernel tuner": samples["kernel tuner"]})["ratios"]["kernel tuner"],
        "tenth_ratios": ratios, "device": dict(all_points.signals["device"]),
        "versions": {**all_points.provenance["versions"], "kernel_tuner": theirs["version"]},
    }  # fmt: skip


def _theirs(place: Place, kernel: str, limit_s: float) -> dict[str, Any]:
    from engine.run.device_choice import visible_gpu

    gpu = visible_gpu()
    if gpu is None:
        raise MachineError("no NVIDIA GPU answers here", do="run it on a machine with one")
    with tempfile.TemporaryDirectory(prefix="optiml-bench") as name:
        out = Path(name) / "theirs.json"
        command = [
            sys.executable,
            str(place.root / "benchmarks" / "kernel_tuner_side.py"),
            kernel,
            str(limit_s),
            str(out),
            gpu[1],
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s + 200, check=False)
        if done.returncode or not out.is_file():
            raise MachineError(
                f"Kernel Tuner ended with an error: {(done.stderr or done.stdout).strip()[-1200:]}", kernel
            )
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
        return found


def _to_two_percent(times: Sequence[float | None]) -> int | None:
    """After how many evaluations the best so far was within 2 % of the best of all."""
    known = [t for t in times if t is not None]
    return (
        next((i for i, t in enumerate(times, 1) if t is not None and t <= 1.02 * min(known)), None) if known else None
    )


def _ours_to_two_percent(result: Any) -> int | None:
    goal = 1.02 * min((m.time_us for m in result.trace), default=0.0)
    return next((m.configurations for m in result.trace if m.time_us <= goal), None)


def summary(rows: Mapping[str, Row]) -> dict[str, Any]:
    """What the project promises: ten times the rate; Kernel Tuner's best or better with a tenth of its evaluations."""
    rates = {k: r["ours"]["per_s"] / r["theirs"]["per_s"] for k, r in rows.items()}
    large = {k: r for k, r in rows.items() if r["points"] >= _LARGE}
    return {
        "rate_ratios": rates,
        "rate_geometric_mean": math.exp(sum(map(math.log, rates.values())) / len(rates)),
        "rate_least": min(rates.values()),
        "as_good_with_a_tenth": {
            k: sum(t["ratio"] * _EQUAL >= 1.0 for t in r["tenth_ratios"]) for k, r in large.items()
        },
        "runs_each": {k: len(r["tenth_ratios"]) for k, r in large.items()},
    }


def render(record: Mapping[str, Any]) -> str:
    """Two lines of figures a space, in Markdown."""
    lines = [
        "| space | points | Kernel Tuner /s | ours /s | ratio | its best µs | our best of all µs | with a tenth, µs by seed "
        "| its time over that | to within 2 %, its / ours |",
        "|---|---:|---:|---:|---:|---:|---:|---|---|---|",
    ]
    for key, row in record["rows"].items():
        if row["error"] is not None:
            lines.append(
                f"| {key} | failed: {' '.join(row['error'].split())[:100].replace('|', '/')} | | | | | | | | |"
            )
            continue
        times = row["times_us"]
        tenth = ", ".join(f"{times[f'seed {i}']:.2f}" for i in range(len(row["tenth_ratios"])))
        ratios = ", ".join(f"{r['ratio']:.3f} ({r['low']:.3f} to {r['high']:.3f})" for r in row["tenth_ratios"])
        near = ", ".join(str(n) for n in row["tenth"]["to_2_percent"])
        theirs, ours = row["theirs"]["per_s"], row["ours"]["per_s"]
        lines.append(
            f"| {key} | {row['points']} | {theirs:.1f} | {ours:.1f} | {ours / theirs:.1f} | {times['kernel tuner']:.2f} "
            f"| {times['all points']:.2f} | {tenth} | {ratios} | {row['theirs']['to_2_percent']} / {near} |"
        )
    total = record["summary"]
    good = ", ".join(f"{k} {n} of {total['runs_each'][k]}" for k, n in total["as_good_with_a_tenth"].items())
    seconds = record["settings"]["seconds"]
    said = (
        f"Verified configurations per second: geometric mean {total['rate_geometric_mean']:.1f} times Kernel Tuner's, at least "
        f"{total['rate_least']:.1f} times (target: {WANTED_RATE:g}). Runs that reach its best time within 1 % with a tenth of its "
        f"evaluations: {good}. Kernel Tuner: NVCUDA back-end, every point in random order for at most {seconds:g} s a space, "
        "seven iterations, its own verification. The times in µs are of both best configurations, side by side with cold caches."
    )
    return "\n".join([*lines, "", said, *_below(record["rows"], total["rate_ratios"])])


def _below(rows: Mapping[str, Row], ratios: Mapping[str, float]) -> list[str]:
    """Where the rate is below what is wanted: what either spends on a configuration, in ms of its one line of time."""
    said = []
    for key, ratio in ratios.items():
        if ratio < WANTED_RATE:
            theirs, ours = rows[key]["theirs"], rows[key]["ours"]
            spent = {n: 1e3 * s / theirs["configurations"] for n, s in theirs["stages"].items()}
            own = {n: 1e3 * ours["stages"].get(n, 0.0) / ours["configurations"] for n in ("verify", "time")}
            said.append(
                f"- Below the target, {key}: Kernel Tuner compiles in {spent['compile_time']:.0f} ms, one configuration after the other, "
                f"and then needs {spent['verification_time']:.1f} ms to verify it on the timed shape and "
                f"{spent['benchmark_time']:.1f} ms to time it. Ours compiles ahead; verifying on fresh inputs of several "
                f"shapes takes {own['verify']:.1f} ms, and timing with cold "
                f"caches, new inputs in every round and the best beside it {own['time']:.1f} ms."
            )
    return ["", *said] if said else []
