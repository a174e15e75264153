"""How good and how fast the tuner is on its own spaces: against every point of them, with a tenth of the evaluations.

    python benchmarks/tuning.py --record benchmarks/results/tuning.json

For each template under `benchmarks/tuning/` all points are evaluated once, which gives the best time there is. Then the default
strategy gets a tenth of that many evaluations, on several seeds, and an equal number goes to points taken by chance. Times
are those of the confirmation in a second process.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.run.machine import make_machine  # noqa: E402
from engine.run.template_run import tune  # noqa: E402
from engine.search.progress import Budget  # noqa: E402
from engine.tune.tune_options import TuneOptions  # noqa: E402
from engine.tune.tuning_result import TuneResult  # noqa: E402

KERNELS = ("saxpy", "transpose", "row_sum", "gemm", "convolution")


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 0; a kernel that cannot be tuned raises."""
    parser = argparse.ArgumentParser(description="The tuner against all points of its spaces.")
    parser.add_argument("--kernels", default=",".join(KERNELS), help=f"of {', '.join(KERNELS)} (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each strategy (default: 3)")
    parser.add_argument("--strategies", default="model,random", help="that get a tenth (default: model,random)")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="gpu", help="as for optiml tune")
    parser.add_argument("--record", type=Path, required=True, help="the JSON record to write")
    options = parser.parse_args(given)
    rows = []
    parts = make_machine(device=options.device)
    print(
        f"{'kernel':12} {'strategy':10} {'points':>6} {'tried':>6} {'device':>6} {'conf/s':>7} {'best µs':>9} {'of all':>7} {'to 2 %':>6}"
    )
    try:
        with tempfile.TemporaryDirectory() as folder:
            for kernel in options.kernels.split(","):
                path = ROOT / "benchmarks" / "tuning" / f"{kernel}.cu"
                best: float | None = None
                runs = [
                    ("exhaustive", 0),
                    *((s, seed) for s in options.strategies.split(",") for seed in range(options.seeds)),
                ]
                limit: int | None = None
                for strategy, seed in runs:
                    result = tune(
                        TuneOptions(
                            path=path, strategy=strategy, seed=seed, budget=Budget(candidates=limit), out=Path(folder) / "run"
                        ), parts,
                    )  # fmt: skip
                    row = summary(kernel, result, best)
                    best = best or row["best_us"]
                    limit = limit or max(1, result.space.feasible // 10)
                    rows.append(row)
                    to = row["evaluations_to_2_percent"]
                    print(
                        f"{kernel:12} {strategy:10} {row['points']:6} {row['configurations']:6} {row['evaluations']:6} "
                        f"{row['configurations_per_s']:7.1f} {row['best_us']:9.2f} {row['share_of_best']:7.3f} {to or '-':>6}",
                        flush=True,
                    )  # fmt: skip
    finally:
        parts.close()
    record = {
        "schema": "optiml.tuning/1",
        "command": ["python", "benchmarks/tuning.py", *(sys.argv[1:] if given is None else given)],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "rows": rows,
    }
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return 0


def summary(kernel: str, result: TuneResult, best_us: float | None) -> dict[str, Any]:
    """One row: the confirmed time of the best point, and how it compares with the best of all points."""
    evaluation = result.best.evaluation if result.best is not None else result.original
    assert evaluation.measurement is not None
    cases = evaluation.measurement.cases
    weight = sum(c.weight for c in cases)
    time_us = math.exp(sum(c.weight * math.log(c.candidate_us) for c in cases) / weight)
    best_us = best_us or time_us
    final = result.trace[-1].time_us if result.trace else time_us
    goal = best_us * final / time_us * 1.02  # the trace's times are looks; the confirmation scales them
    return {
        "kernel": kernel,
        "strategy": result.strategy,
        "seed": result.seed,
        "points": result.space.feasible,
        "configurations": result.counts["configurations"],
        "evaluations": result.counts["evaluations"],
        "configurations_per_s": result.rates["configurations_per_s"],
        "evaluations_per_s": result.rates["evaluations_per_s"],
        "searched_s": result.rates["searched_s"],
        "elapsed_s": result.elapsed_s,
        "best_us": time_us,
        "original_us": math.exp(sum(c.weight * math.log(c.original_us) for c in cases) / weight),
        "share_of_best": best_us / time_us,
        "evaluations_to_2_percent": next((m.evaluations for m in result.trace if m.time_us <= goal), None),
        "values": dict(result.best.values) if result.best is not None else None,
        "stages": dict(result.stages),
        "counts": dict(result.counts),
        "device": result.signals["device"],
        "versions": result.provenance["versions"],
    }


if __name__ == "__main__":
    sys.exit(main())
