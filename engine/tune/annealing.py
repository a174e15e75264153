"""Dual annealing over a finite set of points: generalised simulated annealing, and a local search from what it finds.

Sources: Tsallis and Stariolo, "Generalized simulated annealing" (1996): visiting distribution, acceptance, cooling; Xiang, Sun, Fan
and Gong, "Generalized simulated annealing algorithm and its application to the Thomson model" (1997): its parameters, the chain of
visits at each temperature, the local search; Xiang, Gubian, Suomela and Hoeng, "Generalized Simulated Annealing for Global
Optimization: The GenSA Package for R" (2013): starting anew where it has cooled down.

SciPy's `dual_annealing` is the same method for functions of real numbers, and does not serve here: it calls the function itself, one
point after the other, so nothing could be compiled ahead and no point be told that it did not ask for (the original, a resumed run);
and its local search follows gradients, which are zero between the steps of a discrete parameter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from engine.tune.space import Point
from engine.tune.strategy import Known

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

VISITING = 2.62  # q of the visiting distribution, as in the papers and in SciPy
ACCEPTANCE = -5.0  # q of the acceptance, as there
# How much worse a point may be at first, in doublings of the time, before it is never accepted: (1 - q) of what follows. Ours.
_WARM = 3.0
_MOST_ASKED = 32  # visits beyond the next few dozen will start from elsewhere. Ours
_RESTART = 2e-3  # of the first temperature: some 45 temperatures; budgets here are tens to hundreds of points. Ours


class DualAnnealing:
    """Visits near and far around the current point, accepts some that are worse, and climbs from each new best.

    Parameters are ranks within their sorted values (an enumeration's index), so a power of two is one step from the next. A visit
    that falls on no feasible point, or on one that is known, goes to the nearest feasible one that was not tried.
    """

    name = "annealing"
    patient = True

    def __init__(self, known: Known) -> None:
        self._points = known.points
        self._index = {p: i for i, p in enumerate(known.points)}
        self._random = np.random.default_rng(known.seed)
        self._ranks, self._spans = ranks(known.points)
        self._untried = np.ones(len(known.points), dtype=np.bool_)
        self._queue: list[int] = []
        self._current: tuple[int, float] | None = None
        self._best: tuple[int, float] | None = None
        self._climbing: int | None = None  # the point whose neighbours a local search goes through
        self._step, self._visits, self._improved = 1, 0, False

    # ---- the protocol

    def ask(self, count: int) -> Sequence[Point]:
        while len(self._queue) < min(count, _MOST_ASKED):
            found = self._next()
            if found is None:
                break
            self._queue.append(found)
        return [self._points[i] for i in self._queue[:count]]

    def tell(self, point: Point, value: float | None) -> None:
        index = self._index.get(point)
        if index is None or not self._untried[index]:
            return
        self._untried[index] = False
        if index in self._queue:
            self._queue.remove(index)
        gained = value is not None and (self._best is None or value > self._best[1])
        if gained:
            assert value is not None
            self._best = (index, value)
        if self._climbing is not None:
            self._climb(index, value)
        else:
            self._visited(index, value, gained=gained)

    def describe(self, point: Point, features: Mapping[str, float]) -> None:
        pass

    # ---- the chain

    def _visited(self, index: int, value: float | None, *, gained: bool) -> None:
        self._improved |= gained
        held = self._current
        if value is not None and (held is None or self._accepts(held[1] - value)):
            self._current, self._queue = (index, value), []  # what was asked for next started from elsewhere
        self._visits += 1
        if self._visits < 2 * len(self._spans):
            return
        self._visits, self._step = 0, self._step + 1
        if self._improved and self._best is not None:
            self._improved, self._climbing, self._queue = False, self._best[0], []
            self._climbed()
        elif temperature(self._step) < _RESTART:
            self._step, self._current, self._queue = 1, None, []

    def _accepts(self, worse: float) -> bool:
        """Whether to go to a point that is so many doublings slower; cooled faster than the visits, as in the 1997 paper."""
        return self._random.random() < acceptance(worse, _WARM * temperature(self._step) / self._step)

    # ---- the local search

    def _climb(self, index: int, value: float | None) -> None:
        """Go on from the first neighbour that is better; the search ends where none is left untried."""
        assert self._best is not None
        if self._best[0] == index:
            self._climbing, self._queue = index, []
        self._climbed()

    def _climbed(self) -> None:
        if self._climbing is not None and not len(self._beside(self._climbing)):
            self._climbing, self._current, self._queue = None, self._best, []

    def _beside(self, index: int) -> NDArray[np.intp]:
        """Untried points that differ in one parameter, by the next feasible value up or down."""
        differs = self._ranks != self._ranks[index]
        found: list[int] = []
        for k in range(len(self._spans)):
            line = np.flatnonzero(differs.sum(axis=1) - differs[:, k] == 0)
            steps = self._ranks[line, k] - self._ranks[index, k]
            for side in (steps > 0, steps < 0):
                if side.any():
                    found.append(int(line[side][np.abs(steps[side]).argmin()]))
        return np.array([i for i in found if self._untried[i]], dtype=np.intp)

    # ---- what to ask for

    def _next(self) -> int | None:
        free = self._untried.copy()
        free[self._queue] = False
        left = np.flatnonzero(free)
        if not len(left):
            return None
        if self._climbing is not None:
            beside = [int(i) for i in self._beside(self._climbing) if free[i]]
            if beside:
                return beside[int(self._random.integers(len(beside)))]
        if self._current is None and self._climbing is None:
            return int(self._random.choice(left))
        at = self._ranks[self._climbing if self._climbing is not None else self._current[0]]  # type: ignore[index]
        ahead = (self._visits + len(self._queue)) % (2 * len(self._spans))
        jump = visit(self._random, temperature(self._step), len(self._spans)) * (self._spans + 1)
        if ahead >= len(self._spans):  # the second half of a chain moves one parameter at a time
            one = ahead - len(self._spans)
            jump[np.arange(len(jump)) != one] = 0.0
        target = np.mod(at + jump, self._spans + 1)
        apart = np.abs(self._ranks[left] - target) / np.maximum(self._spans, 1)
        distance = apart.sum(axis=1)
        nearest = left[distance <= distance.min() + 1e-12]
        return int(self._random.choice(nearest))


def ranks(points: Sequence[Point]) -> tuple[Array, Array]:
    """Each value's rank among the sorted values of its parameter (points x parameters), and each parameter's highest rank."""
    table = np.array(points, dtype=np.int64)
    found = np.empty(table.shape, dtype=np.float64)
    spans = np.empty(table.shape[1], dtype=np.float64)
    for k, values in enumerate(table.T):
        known, found[:, k] = np.unique(values, return_inverse=True)
        spans[k] = len(known) - 1
    return found, spans


def temperature(step: int, q: float = VISITING) -> float:
    """The temperature at a step from 1 on, as a share of the first. Source: Tsallis and Stariolo (1996), equation 15."""
    return float((2.0 ** (q - 1) - 1) / ((1.0 + step) ** (q - 1) - 1))


def visit(random: np.random.Generator, heat: float, count: int, q: float = VISITING) -> Array:
    """So many jumps from the visiting distribution at a temperature, 1 < q < 3.

    Its density is proportional to (1 + (q - 1) x^2 / heat^(2 / (3 - q)))^(-1 / (q - 1)): a Student's t distribution of
    (3 - q) / (q - 1) degrees of freedom, scaled. With q = 2 it is the Cauchy distribution of that scale.
    """
    drawn = random.standard_t((3 - q) / (q - 1), size=count)
    jumps: Array = np.clip(drawn * (heat ** (1 / (3 - q)) / math.sqrt(3 - q)), -1e9, 1e9)
    return jumps


def acceptance(worse: float, heat: float, q: float = ACCEPTANCE) -> float:
    """The chance to accept what is so much worse, q < 1; 1 for what is not. Source: Tsallis and Stariolo (1996), equation 5."""
    if worse <= 0:
        return 1.0
    base = 1.0 - (1.0 - q) * worse / max(heat, 1e-12)
    return base ** (1.0 / (1.0 - q)) if base > 0 else 0.0
