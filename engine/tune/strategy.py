"""How the next points are chosen: one Protocol, and the strategies that need no library.

A strategy sees points and what they were worth (log2 of the speedup, None for what failed), never a program.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.tune.space import Point

# Below this a strategy saves less than a second of device time, and going through all of them misses nothing. Ours.
EXHAUSTIVE_MOST = 32
_KEEP = 3  # one in three goes on to the next rung. Ours; Hyperband's paper uses 3 and 4
_HALVING_LEAST = 9


@dataclass(frozen=True)
class Trial:
    """A point to evaluate, and how long to time it: 0 a look, each step more takes longer."""

    point: Point
    effort: int = 0


@dataclass(frozen=True)
class Known:
    """What a strategy is given to start from; what else is known of a point comes by `describe`."""

    points: tuple[Point, ...]
    seed: int
    limit: int | None  # of evaluations; None: no such limit


class Strategy(Protocol):
    """Chooses among the feasible points."""

    @property
    def name(self) -> str: ...

    @property
    def patient(self) -> bool:
        """Whether the first trial asked for is worth waiting for; else any of those asked for may be evaluated first."""
        ...

    def ask(self, count: int) -> Sequence[Trial]:
        """Up to `count` trials that have not been told, most wanted first; () when nothing is left to try."""
        ...

    def tell(self, trial: Trial, value: float | None) -> None:
        """A trial's worth. Points that were never asked for may be told too."""
        ...

    def describe(self, point: Point, features: Mapping[str, float]) -> None:
        """What is known of a point beyond its values: figures of its launch, then of its machine code (`engine.tune.point_features`)."""
        ...


class Listed:
    """Points in a fixed order: all of them, or by chance."""

    patient = False

    def __init__(self, name: str, known: Known) -> None:
        self.name = name
        order = list(known.points)
        random.Random(known.seed).shuffle(order)  # a run that is cut short has seen a fair sample
        self._left: dict[Point, None] = dict.fromkeys(order)

    def ask(self, count: int) -> Sequence[Trial]:
        return [Trial(p) for p, _ in zip(self._left, range(count), strict=False)]

    def tell(self, trial: Trial, value: float | None) -> None:
        self._left.pop(trial.point, None)

    def describe(self, point: Point, features: Mapping[str, float]) -> None:
        pass


class Halving:
    """Successive halving: many points looked at shortly, the best third timed longer, and again.

    Source: Jamieson and Talwalkar, "Non-stochastic Best Arm Identification and Hyperparameter Optimization" (2016).
    """

    name = "halving"
    patient = False

    def __init__(self, known: Known) -> None:
        order = list(known.points)
        random.Random(known.seed).shuffle(order)
        # Of n evaluations a share of (1 - 1/3) goes to the first rung when rungs shrink by three.
        first = len(order) if known.limit is None else max(1, known.limit - known.limit // _KEEP)
        self._effort = 0
        self._rung: dict[Point, float | None] = {}
        self._open: dict[Point, None] = dict.fromkeys(order[:first])
        self._later = order[first:]

    def ask(self, count: int) -> Sequence[Trial]:
        if not self._open:
            self._promote()
        return [Trial(p, self._effort) for p, _ in zip(self._open, range(count), strict=False)]

    def _promote(self) -> None:
        passed = sorted((p for p, v in self._rung.items() if v is not None), key=lambda p: -(self._rung[p] or 0.0))
        if len(passed) < _HALVING_LEAST // _KEEP or self._effort == 2:
            self._rung, self._effort = {}, 0
            self._open, self._later = dict.fromkeys(self._later), []  # what is left, should there be time for it
            return
        kept = passed[: max(2, len(passed) // _KEEP)]
        self._rung, self._effort = {}, self._effort + 1
        self._open = dict.fromkeys(kept)

    def tell(self, trial: Trial, value: float | None) -> None:
        if trial.effort != self._effort:
            return
        if trial.point in self._open:
            del self._open[trial.point]
            self._rung[trial.point] = value
        elif trial.point in self._later:
            self._later.remove(trial.point)
            self._rung[trial.point] = value

    def describe(self, point: Point, features: Mapping[str, float]) -> None:
        pass
