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


@dataclass(frozen=True)
class Start:
    """What a strategy is given to start from; what else is known of a point comes by `describe`."""

    points: tuple[Point, ...]
    seed: int
    limit: int | None  # of evaluations; None: no such limit
    at_once: int = 1  # devices that evaluate: so many results come in the time of one


class Strategy(Protocol):
    """Chooses among the feasible points."""

    @property
    def name(self) -> str: ...

    @property
    def patient(self) -> bool:
        """Whether the first point asked for is worth waiting for; else any of those asked for may be evaluated first."""
        ...

    def ask(self, count: int) -> Sequence[Point]:
        """Up to `count` points that have not been told, most wanted first; () when nothing is left to try."""
        ...

    def tell(self, point: Point, value: float | None) -> None:
        """A point's worth. Points that were never asked for may be told too."""
        ...

    def describe(self, point: Point, features: Mapping[str, float]) -> None:
        """What is known of a point beyond its values: figures of its launch, then of its machine code (`engine.tune.point_features`)."""
        ...


class Listed:
    """Points in a fixed order: all of them, or by chance."""

    patient = False

    def __init__(self, name: str, known: Start) -> None:
        self.name = name
        order = list(known.points)
        random.Random(known.seed).shuffle(order)  # a run that is cut short has seen a fair sample
        self._left: dict[Point, None] = dict.fromkeys(order)

    def ask(self, count: int) -> Sequence[Point]:
        return [p for p, _ in zip(self._left, range(count), strict=False)]

    def tell(self, point: Point, value: float | None) -> None:
        self._left.pop(point, None)

    def describe(self, point: Point, features: Mapping[str, float]) -> None:
        pass
