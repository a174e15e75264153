"""The public functions: the engine's own, with a machine that is set up and closed around one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from engine import arith
from engine.run.machine import make_machine
from engine.run.optimization import Options
from engine.run.optimization import optimize as _optimize
from engine.run.result import OptimizationResult
from engine.run.template_run import tune as _tune
from engine.search.progress import Progress
from engine.tune.tune_options import TuneOptions
from engine.tune.tuning_result import TuneResult

Device = Literal["auto", "gpu", "cpu"]

__all__ = ["Device", "Options", "arithmetic", "optimize", "tune"]


def optimize(
    options: Options, *, device: Device = "auto", on_progress: Callable[[Progress], None] = lambda progress: None
) -> tuple[OptimizationResult, Path]:
    """Search one kernel of one file; the result, and the folder with its patch, journal and result.json.

    `device`: "gpu" measures, "cpu" screens and predicts, "auto" takes the GPU where there is one. Raises OptimlError: wrong input
    (UsageError, SpecError, SourceError), a spec that proves nothing (RefusedError), a machine that lacks a part (MachineError).
    """
    machine = make_machine(device=device)
    try:
        return _optimize(options, machine, on_progress)
    finally:
        machine.close()


def tune(
    options: TuneOptions, *, device: Device = "auto", on_progress: Callable[[Progress], None] = lambda progress: None
) -> TuneResult:
    """Search one template of one kernel: its named constants, or what a rule leaves open. Raises OptimlError as `optimize` does."""
    machine = make_machine(device=device)
    try:
        return _tune(options, machine, on_progress)
    finally:
        machine.close()


def arithmetic(expression: str, values: Mapping[str, int | float]) -> int | float:
    """The value of a size or launch expression of a spec, with C's rules for integers.

    Raises OptimlError for what is no expression, an unknown name, or no value (a division by zero).
    """
    return arith.evaluate(expression, values)
