"""A tuning run in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from engine.evaluate.model import Signals
from engine.guardrails import stopped
from engine.result import Refusal
from engine.tune.result import Dispatch, General


def configurations(decided: int, feasible: int, evaluations: int, mode: str) -> str:
    """How much of the feasible set was tried."""
    said = f"{decided} of {feasible} feasible points tried"
    return said if mode == "predicted" else f"{said}, {evaluations} of them on the device"


def verdict(
    kernel: str, general: General | None, refused: Sequence[Refusal], signals: Signals, interrupted: bool, tried: str
) -> str:
    """What came of the general configuration."""
    if general is None and interrupted:
        return f"The tuning of {kernel} was interrupted, and nothing was confirmed: {tried}."
    if general is None:
        return stopped(kernel, refused, tried) or f"No point of the template is faster than {kernel} as it is: {tried}."
    values = ", ".join(f"{n} = {v}" for n, v in general.values.items())
    measurement = general.evaluation.measurement
    assert measurement is not None
    if measurement.predicted:
        arch = signals.device.get("arch", "the target")
        return (
            f"{kernel} with {values}: {measurement.ratio:.2f}× predicted for {arch}, not measured; "
            f"screened on the CPU, not verified ({tried})."
        )
    return (
        f"{kernel} with {values} is {measurement.ratio:.2f}× faster (95 % interval {measurement.low:.2f} to "
        f"{measurement.high:.2f}), verified ({tried})."
    )


def verdict_with_dispatch(said: str, dispatch: Dispatch, mode: str) -> str:
    """The verdict with what came of the dispatch code."""
    ratio = (
        f"{dispatch.ratio:.2f}× predicted" if mode == "predicted" else f"{dispatch.ratio:.2f}× as fast as the original"
    )
    if dispatch.refused:
        return f"{said} Dispatch code by {dispatch.key} ({ratio}) is not suggested: {dispatch.refused}."
    return f"{said} Dispatch code by {dispatch.key}: {ratio}."
