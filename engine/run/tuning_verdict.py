"""A tuning run in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from engine.evaluate.evaluator import Signals
from engine.evaluate.guardrails import stopped
from engine.model import Refusal
from engine.predicted_number import approximate
from engine.run.result import faster
from engine.tune.tuning_result import Dispatch, General


def configurations(tried: int, feasible: int, evaluations: int, mode: str, original: bool, ruled_out: int) -> str:
    """How much of the feasible set was tried: of what could be, without the original and what its own compile ruled out."""
    beside = " beside the original" if original else ""
    said = f"{tried} of {feasible - original - ruled_out} feasible points{beside} tried"
    return said if mode == "predicted" else f"{said}, {evaluations} evaluation{'s' * (evaluations != 1)} on the device"


@dataclass(frozen=True)
class TuningExtent:
    """How far a tuning run came, in words. `untried` are the seconds that listing the points and setting up the original took,
    where they left no time for a point."""

    tried: str
    interrupted: bool = False
    untried: tuple[float, float] | None = None


def verdict(
    kernel: str, general: General | None, refused: Sequence[Refusal], signals: Signals, extent: TuningExtent
) -> str:
    """What came of the general configuration."""
    tried, untried = extent.tried, extent.untried
    if general is None and extent.interrupted:
        return f"The tuning of {kernel} was interrupted, and nothing was confirmed: {tried}."
    if untried is not None:
        listing_s, original_s = untried
        return (
            f"No point of the template was tried for {kernel}: the budget was spent on enumerating the feasible points "
            f"({listing_s:.1f} s) and on setting up the original ({original_s:.1f} s)."
        )
    if general is None:
        return (
            stopped(kernel, refused, tried)
            or f"No point of the template is faster than the original {kernel}: {tried}."
        )
    values = ", ".join(f"{n} = {v}" for n, v in general.values.items())
    return faster(f"{kernel} with {values}", general.evaluation, signals.device, tried)


def verdict_with_dispatch(said: str, dispatch: Dispatch, mode: str) -> str:
    """The verdict with what came of the dispatch code."""
    ratio = (
        f"{approximate(dispatch.ratio)}× predicted"
        if mode == "predicted"
        else f"{dispatch.ratio:.2f}× as fast as the original"
    )
    if dispatch.refused:
        return f"{said} Dispatch code by {dispatch.key} ({ratio}) is not suggested: {dispatch.refused}."
    return f"{said} Dispatch code by {dispatch.key}: {ratio}."
