"""A tuning run in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from engine.evaluate.model import Signals
from engine.guardrails import stopped
from engine.result import Refusal, faster
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
    assert general.evaluation.measurement is not None
    return faster(f"{kernel} with {values}", general.evaluation.measurement, signals.device, tried)


def verdict_with_dispatch(said: str, dispatch: Dispatch, mode: str) -> str:
    """The verdict with what came of the dispatch code."""
    ratio = (
        f"{dispatch.ratio:.2f}× predicted" if mode == "predicted" else f"{dispatch.ratio:.2f}× as fast as the original"
    )
    if dispatch.refused:
        return f"{said} Dispatch code by {dispatch.key} ({ratio}) is not suggested: {dispatch.refused}."
    return f"{said} Dispatch code by {dispatch.key}: {ratio}."
