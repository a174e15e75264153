"""Kernel Tuner's side of `parallel_strategies.py`, for an interpreter that has it: `python kernel_tuner_parallel_side.py IN OUT`.

Each strategy runs in Kernel Tuner's simulation mode over a recorded space. Written is, for each run, which configurations it handed to
the runner at once, those evaluated for the first time alone: its parallel runner could evaluate these on several GPUs.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np


def main() -> int:
    """Exit code 0."""
    import kernel_tuner
    from kernel_tuner.runners import simulation

    given = json.loads(Path(sys.argv[1]).read_text())
    found: dict[str, Any] = {"version": importlib.metadata.version("kernel_tuner"), "runs": {}}
    inner = simulation.SimulationRunner.run
    batches: list[list[str]] = []

    def run(self: Any, parameter_space: Any, tuning_options: Any) -> Any:
        space, before = list(parameter_space), set(self.visited_results)
        results = inner(self, space, tuning_options)
        keys = [",".join(map(str, config)) for config in space]
        batches.append([key for key in dict.fromkeys(keys) if key in self.visited_results and key not in before])
        return results

    simulation.SimulationRunner.run = run
    for name, space in given["spaces"].items():
        feasible = set(space["time"])
        names, values = list(space["parameters"]), space["parameters"]
        with tempfile.TemporaryDirectory() as folder:
            cache = Path(folder) / "cache.json"
            cache.write_text(json.dumps(_cache(name, names, values, space["time"])))

            def allowed(*config: int, feasible: set[str] = feasible) -> bool:
                return ",".join(map(str, config)) in feasible

            for strategy in given["strategies"]:
                runs = []
                for seed in range(given["seeds"]):
                    random.seed(seed)
                    np.random.seed(seed)
                    batches.clear()
                    try:
                        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                            kernel_tuner.tune_kernel(
                                name, "", 1, [], values, restrictions=allowed, cache=str(cache), simulation_mode=True,
                                strategy=strategy, strategy_options={"max_fevals": space["limit"]}, objective="time",
                                quiet=True, lang="CUDA", verify=None,
                            )  # fmt: skip
                    except Exception as error:
                        runs.append({"error": f"{type(error).__name__}: {str(error)[:200]}"})
                        continue
                    runs.append({"batches": [batch for batch in batches if batch]})
                found["runs"].setdefault(name, {})[strategy] = runs
    Path(sys.argv[2]).write_text(json.dumps(found))
    return 0


def _cache(kernel: str, names: list[str], values: dict[str, list[int]], times: dict[str, float]) -> dict[str, Any]:
    rows = {
        key: {
            **dict(zip(names, map(int, key.split(",")), strict=True)), "time": time, "times": [time] * 7, "compile_time": 100.0,
            "verification_time": 0.0, "benchmark_time": 7 * time, "strategy_time": 0, "framework_time": 0,
            "timestamp": "2026-01-01 00:00:00+00:00",
        }
        for key, time in times.items()
    }  # fmt: skip
    return {
        "schema_version": "1.0.0", "device_name": "simulated", "kernel_name": kernel, "problem_size": 1,
        "tune_params_keys": names, "tune_params": values, "objective": "time", "cache": rows,
    }  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
