"""Which strategy searches a template: the one asked for, or one for so many points."""

from engine.errors import UsageError
from engine.tune.strategy import EXHAUSTIVE_MOST, Listed, Start, Strategy
from engine.tune.surrogate import Surrogate

NAMES = ("exhaustive", "model", "random")


def choose(name: str | None, known: Start) -> tuple[Strategy, str]:
    """The strategy of that name, or the one for a set of this size; with the reason. Raises UsageError."""
    if name is None:
        points = len(known.points)
        if points <= EXHAUSTIVE_MOST and (known.limit is None or known.limit >= points):
            return Listed("exhaustive", known), f"{points} points are few enough to try all of them"
        many = f"{points} points are too many to try all"
        few = many if points > EXHAUSTIVE_MOST else f"the budget is for {known.limit} of {points} points"
        return Surrogate(known), f"{few}: a model fitted to the measurements chooses"
    if name in ("exhaustive", "random"):
        return Listed(name, known), "asked for"
    if name == "model":
        return Surrogate(known), "asked for"
    raise UsageError(f"unknown strategy '{name[:40]}'", "--strategy", f"use one of {', '.join(NAMES)}")
