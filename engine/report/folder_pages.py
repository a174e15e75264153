"""The pages of runs' output folders."""

from pathlib import Path
from typing import Any

from engine.report.page import render, render_comparison, render_tuning
from engine.report.run_folder import read_patch, read_result, read_run
from engine.run.result import OptimizationResult
from engine.tune.tuning_result import TuneResult


def run_page(folder: Path) -> str:
    """The page of a run of `optimize` or `tune`. Raises UsageError, MachineError."""
    result: Any = read_result(folder, {"result.json": (OptimizationResult, TuneResult)})
    if not isinstance(result, TuneResult):
        return render(read_run(folder))
    made = {"best.patch": result.best, "dispatch.patch": result.dispatch}
    found = {name: read_patch(folder, name) for name, suggested in made.items() if suggested is not None}
    return render_tuning(result, {name: patch for name, patch in found.items() if patch})


def comparison_page(a: Path, b: Path) -> str:
    """The page of two runs of `optimize` beside each other. Raises UsageError, MachineError."""
    return render_comparison(read_run(a), read_run(b), (str(a), str(b)))
