"""Where the original, the steps and the best stand under the roof of the device.

The instruction roofline of Ding and Williams, "An Instruction Roofline Model for GPUs" (PMBS 2019): warp instructions per second over
warp instructions per byte. Every run counts both; floating point operations would say nothing of integer, copy or sort kernels.
"""

from dataclasses import dataclass
from typing import Literal

from engine.errors import OptimlError
from engine.model import Measurement
from engine.predict.targets import figures_for
from engine.process.decode import NotThis, decode
from engine.profile.evidence import heaviest_case
from engine.report.run_folder import StoredRun
from engine.spec.kernel_spec import KernelSpec

_LEAST = 1e-9  # warp instructions per byte; its inverse is as far from anything real


@dataclass(frozen=True)
class Point:
    """One program: `intensity` in warp instructions per byte, `per_s` in warp instructions a second, `share` of the roof above it."""

    label: str
    kind: Literal["original", "step", "best"]
    intensity: float
    per_s: float
    share: float


@dataclass(frozen=True)
class Roofline:
    """Points under min(intensity × `bytes_per_s`, `issue_per_s`), and the words of the figure."""

    points: tuple[Point, ...]
    predicted: bool
    bytes_per_s: float
    issue_per_s: float
    memory_roof: str
    issue_roof: str
    x_words: str
    y_words: str
    caption: str


def roofline(run: StoredRun) -> Roofline | str:
    """The roofline of a run, or one sentence why there is none."""
    result = run.result
    predicted = result.mode == "predicted"
    device = result.signals.get("device")
    device = device if isinstance(device, dict) else {}
    try:
        figures = figures_for(str(device.get("arch", "")))
    except OptimlError:
        return "No roofline: no limits are recorded for this device."
    processors = device.get("multiprocessors", figures.target.multiprocessors)
    processors = (
        processors if isinstance(processors, int) and 0 < processors < 10_000 else figures.target.multiprocessors
    )
    issue = processors * figures.schedulers * figures.clock_hz
    if predicted:
        rate = figures.l2_bytes_s
    else:
        copy = device.get("copy_bytes_per_s")
        rate = float(copy) if isinstance(copy, int | float) and 0 < copy < 1e16 else figures.dram_bytes_s
    points = tuple(_points(run, rate, issue, predicted))
    if not points:
        return "No roofline: no counters, as without Nsight Compute or with --profile none."
    issue_words = f"issue limit {issue / 1e9:.0f} billion/s (data sheet)"
    if predicted:
        return Roofline(
            points, predicted, rate, issue, f"L2 {rate / 1e12:.1f} TB/s (table)", issue_words,
            "predicted warp instructions per byte of L2 traffic", "predicted billion warp instructions per second",
            f"Predicted, not measured: the instruction roofline of {figures.name}. Counts and times come from a model of the target.",
        )  # fmt: skip
    measured = "measured copy" if rate != figures.dram_bytes_s else "table"
    return Roofline(
        points, predicted, rate, issue, f"device memory {rate / 1e12:.2f} TB/s ({measured})", issue_words,
        "warp instructions per byte of device memory", "billion warp instructions per second",
        "Measured: the instruction roofline. Bytes, instructions and times are from the profiler, for the heaviest case.",
    )  # fmt: skip


def _points(run: StoredRun, rate: float, issue: float, predicted: bool) -> list[Point]:
    result = run.result
    heaviest = _heaviest(run) if predicted else None
    programs = [(0, "original", result.original.measurement)]
    programs += [(step.id, str(n), step.evaluation.measurement) for n, step in enumerate(result.trajectory, 1)]
    last = len(programs) - 1
    points: list[Point] = []
    for at, (id, label, measurement) in enumerate(programs):
        seen = run.counted.get(id)
        if seen is None:
            continue
        time_us = seen.time_us if not predicted else _case_us(measurement, heaviest)
        if time_us is None or time_us <= 0:
            continue
        kind: Literal["original", "step", "best"] = (
            "original" if at == 0 else "best" if at == last and result.best else "step"
        )
        intensity, per_s = seen.instructions / seen.bytes_moved, seen.instructions / time_us * 1e6
        if not (_LEAST < intensity < 1 / _LEAST and 1.0 < per_s < 1 / _LEAST**2):
            continue  # no device counts so: a damaged journal
        name = label if kind != "best" else f"{label} (best)"
        points.append(Point(name, kind, intensity, per_s, per_s / min(intensity * rate, issue)))
    return points


def _heaviest(run: StoredRun) -> str | None:
    """The name of the timing case that was counted."""
    try:
        spec = decode(KernelSpec, dict(run.result.spec), "spec", later=True)
        return spec.time[heaviest_case(spec) - len(spec.check)].name
    except (NotThis, OptimlError, IndexError, ValueError):
        return None


def _case_us(measurement: Measurement | None, name: str | None) -> float | None:
    return (
        next((c.candidate_us for c in measurement.cases if c.case == name), None) if measurement is not None else None
    )
