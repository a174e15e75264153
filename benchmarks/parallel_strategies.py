"""Which tuning strategies gain from several devices: ours and Kernel Tuner's, on the same spaces, simulated.

    python benchmarks/parallel_strategies.py --kernel-tuner PYTHON [--kernels gemm,convolution,saxpy] [--seeds 10] [--record FILE]

Spaces are those of `tuner_landscapes.py` (times from formulas, every point known) or, with `--cache`, files in which Kernel Tuner timed
every point on a GPU. Each strategy gets a tenth of the points, at most 60. An evaluation takes 20 to 400 ms (by point, uniform).
PYTHON is an interpreter with Kernel Tuner, whose strategies run in its simulation mode. What a strategy hands to the runner at once
is a batch; W devices take a batch's points as they become free, and the next batch begins when the last point is known, as its Ray
runner does. Ours keep W points in flight and choose the next one whenever one is known. Speedup: time with one device over time with W,
the same number of evaluations. Share: speed of the best point found over that of the best point there is; for ours with W in flight.
No noise of measurements on either side.
"""

from __future__ import annotations

import argparse
import datetime
import heapq
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import tuner_landscapes  # noqa: E402 - the path above makes it importable as a script
from benchmarks.examples import commit, machine  # noqa: E402
from benchmarks.tuner_landscapes import Landscape  # noqa: E402
from engine.tune.space import Point  # noqa: E402
from engine.tune.strategy import Start  # noqa: E402
from engine.tune.strategy_choice import choose  # noqa: E402

OURS = ("model", "random")
# What Kernel Tuner's documentation ("Parallel and Remote Tuning") says of each; "" where it does not name it.
THEIRS = {
    "random_sample": "maximum", "genetic_algorithm": "limited", "pso": "limited", "diff_evo": "limited",
    "firefly_algorithm": "limited", "greedy_mls": "none", "greedy_ils": "none", "mls": "none", "simulated_annealing": "none",
    "dual_annealing": "none", "basinhopping": "none", "bayes_opt": "none",
}  # fmt: skip
WORKERS = (1, 2, 4, 8, 16)
EVALUATION_S = (0.020, 0.400)


def takes_s(point: Point) -> float:
    """How long the evaluation of a point takes."""
    return random.Random(repr(point)).uniform(*EVALUATION_S)


def batched_s(batches: Sequence[Sequence[Point]], workers: int) -> float:
    """How long batches take one after the other, each on so many devices."""
    total = 0.0
    for batch in batches:
        free = [0.0] * workers
        for point in batch:
            heapq.heapreplace(free, free[0] + takes_s(point))
        total += max(free)
    return total


def ours(where: Landscape, name: str, seed: int, limit: int, workers: int) -> tuple[float, float]:
    """Seconds, and the share of the best that one of our strategies reaches with so many points in flight."""
    points = tuple(p for p in where.points if p not in where.impossible)
    strategy, _ = choose(name, Start(points, seed, limit))
    for point, known in where.launched.items():
        if known:
            strategy.describe(point, known)
    running: list[tuple[float, int, Point]] = []
    now, begun, best, told = 0.0, 0, math.inf, set[Point]()
    reference = where.time_us[points[0]]
    while True:
        while len(running) < workers and begun < limit:
            held = {point for _, _, point in running}
            asked = strategy.ask(workers + tuner_landscapes.AHEAD)
            for point in [p for p in asked if p not in told]:
                told.add(point)  # it was compiled ahead
                strategy.describe(point, where.compiled.get(point, {}))
            point = next((p for p in asked if p not in held), None)
            if point is None:
                break
            heapq.heappush(running, (now + takes_s(point), begun, point))
            begun += 1
        if not running:
            return now, where.best_us / best
        now, _, point = heapq.heappop(running)
        best = min(best, where.time_us[point])
        strategy.tell(point, math.log2(reference / where.time_us[point]))


def _key(point: Point) -> str:
    return ",".join(map(str, point))


def theirs(python: str, spaces: Mapping[str, Landscape], limits: Mapping[str, int], seeds: int) -> Any:
    """What Kernel Tuner's strategies handed over at once, by space and strategy."""
    given = {"strategies": list(THEIRS), "seeds": seeds, "spaces": {}}
    for name, where in spaces.items():
        width = range(len(where.points[0]))
        given["spaces"][name] = {  # type: ignore[index]
            "parameters": {f"p{i}": sorted({point[i] for point in where.points}) for i in width},
            "time": {_key(p): where.time_us[p] for p in where.points if p not in where.impossible},
            "limit": limits[name],
        }
    side = Path(__file__).with_name("kernel_tuner_parallel_side.py")
    with tempfile.TemporaryDirectory() as folder:
        question, answer = Path(folder) / "in.json", Path(folder) / "out.json"
        question.write_text(json.dumps(given))
        subprocess.run([python, str(side), str(question), str(answer)], check=True, cwd=folder)
        return json.loads(answer.read_text())


def measure(spaces: Mapping[str, Landscape], python: str | None, seeds: int, most: int) -> dict[str, Any]:
    """Rows by space and strategy."""
    limits = {name: min(most, math.floor(tuner_landscapes.SHARE * len(where.points))) for name, where in spaces.items()}
    rows: dict[str, Any] = {name: {"points": len(spaces[name].points), "evaluations": limits[name]} for name in spaces}
    for name, where in spaces.items():
        for strategy in OURS:
            every = {
                w: [ours(where, strategy, seed, limits[name], w) for seed in range(seeds)] for w in WORKERS
            }  # fmt: skip
            alone = statistics.mean(s for s, _ in every[1])
            rows[name][f"optiml {strategy}"] = {
                "speedup": {w: alone / statistics.mean(s for s, _ in found) for w, found in every.items()},
                "share": {w: statistics.mean(share for _, share in found) for w, found in every.items()},
            }
    if python is not None:
        said = theirs(python, spaces, limits, seeds)
        for name, strategies in said["runs"].items():
            for strategy, runs in strategies.items():
                rows[name][f"kernel_tuner {strategy}"] = _theirs(spaces[name], runs)
        rows["kernel_tuner"] = said["version"]
    return rows


def _theirs(where: Landscape, runs: Sequence[Any]) -> dict[str, Any]:
    errors = [run["error"] for run in runs if "error" in run]
    held = [
        [[tuple(map(int, key.split(","))) for key in b] for b in run["batches"]] for run in runs if "batches" in run
    ]
    held = [run for run in held if run]
    if not held:
        return {"error": errors[0] if errors else "no evaluations"}
    seconds = {w: statistics.mean(batched_s(run, w) for run in held) for w in WORKERS}
    best = [min(where.time_us[point] for batch in run for point in batch) for run in held]
    return {
        "speedup": {w: seconds[1] / s for w, s in seconds.items()},
        "share": {1: statistics.mean(where.best_us / b for b in best)},
        "batch": statistics.mean(len(batch) for run in held for batch in run),
        "evaluations": statistics.mean(sum(map(len, run)) for run in held), "failed": len(errors),
    }  # fmt: skip


def render(rows: Mapping[str, Any]) -> str:
    """A Markdown table: means over the spaces."""
    spaces = [name for name, row in rows.items() if isinstance(row, dict)]
    names = list(dict.fromkeys(k for s in spaces for k in rows[s] if " " in k))
    lines = [
        "| strategy | its documentation: parallelism | points at once | "
        + " | ".join(f"{w} devices" for w in WORKERS[1:])
        + " | share of the best: 1 device | 16 devices |",
        "|---|---|---:|" + "---:|" * (len(WORKERS) - 1) + "---:|---:|",
    ]
    for name in names:
        found = [rows[s][name] for s in spaces if "speedup" in rows[s].get(name, {})]
        if not found:
            lines.append(f"| {name} | did not run | " + " | " * (len(WORKERS) + 2))
            continue
        speedups = [statistics.mean(_at(f["speedup"], w) for f in found) for w in WORKERS[1:]]
        mine = name.startswith("optiml")
        batch = "all in flight" if mine else f"{statistics.mean(f['batch'] for f in found):.1f}"
        told = "-" if mine else THEIRS[name.split()[1]] or "-"
        first = statistics.mean(_at(f["share"], 1) for f in found)
        last = statistics.mean(_at(f["share"], WORKERS[-1]) for f in found) if mine else first
        lines.append(
            f"| {name} | {told} | {batch} | "
            + " | ".join(f"{x:.1f}×" for x in speedups)
            + f" | {first:.3f} | {last:.3f} |"
        )
    return "\n".join(lines)


def _at(found: Mapping[Any, float], workers: int) -> float:
    return found[workers] if workers in found else found[str(workers)]


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Strategies with several devices, simulated.")
    parser.add_argument(
        "--kernel-tuner", metavar="PYTHON", help="an interpreter with Kernel Tuner (default: ours alone)"
    )
    parser.add_argument("--kernels", default="saxpy,gemm,convolution", help="of tuner_landscapes.py")
    parser.add_argument("--cache", type=Path, action="append", default=[], help="a space that was timed")
    parser.add_argument("--seeds", type=int, default=10, help="runs of each strategy (default: 10)")
    parser.add_argument("--most", type=int, default=tuner_landscapes.MOST, help="evaluations at most (default: 60)")
    parser.add_argument("--record", type=Path, help="a JSON record to write")
    options = parser.parse_args(given)
    spaces = {name: tuner_landscapes.landscape(name, 0) for name in options.kernels.split(",") if name}
    spaces |= {f"{p.parent.name}/{p.name.partition('.')[0]}": tuner_landscapes.recorded(p) for p in options.cache}
    rows = measure(spaces, options.kernel_tuner, options.seeds, options.most)
    print(render(rows))
    if options.record:
        record = {
            "schema": "optiml.parallel_strategies/1",
            "command": ["python", "benchmarks/parallel_strategies.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), "commit": commit(),
            "machine": machine(), "seeds": options.seeds, "evaluation_s": EVALUATION_S, "rows": rows,
        }  # fmt: skip
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
