"""A Gaussian process over the feasible points: measures few, and each where the best is most likely to be improved upon.

Sources: Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions" (1998); Rasmussen and
Williams, "Gaussian Processes for Machine Learning" (2006), chapters 2 and 5 (Matern 5/2, marginal likelihood). The set is finite
and listed, so the acquisition is computed for every point instead of being maximised.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.tune.columns import Columns
from engine.tune.space import Point
from engine.tune.strategy import Start

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Places = NDArray[np.intp]

_FIRST = 6  # points chosen to lie far from each other before the model speaks; ours
_LEAST_RUN = 3  # points that ran, before it does; ours
# Points the model is fitted to: the best and the latest. A fit takes some milliseconds; from 64 on OpenBLAS factors with threads, which
# on a machine whose cores compile takes longer than with one.
_MOST_TRAINED = 63
_LENGTHS = (0.15, 0.3, 0.6, 1.2, 2.5, 5.0)  # tried for each feature; features span 0 to 1
_FIRST_LENGTH = 1.2  # of a feature that was not known before
_RANK_SHARE = 32  # the ranking is made anew after one point in so many that are known
_AT_ONCE = 2048  # points whose gain is computed together: some 30 MB
_ONE_THREAD = 1 << 18  # multiply-adds up to which OpenBLAS uses one thread
# Points that are ranked anew each time, and how often all of them are: a ranking must cost less than an evaluation. Ours
_SHORT = 256
_ALL_EVERY = 4
_FITS = 4  # settings of these that the gain is a mean over
_NOISE = (1e-4, 1e-3, 1e-2)
_PRIOR = 0.25  # how much likelier long length scales are before anything is measured: a log-normal prior's weight. Ours
_FIT_EVERY = 3  # at first; later less often, as a point more changes less
# One choice in three is the best beside the best so far, which a smooth model takes for noise: a local search that goes on all along.
# Ours; one in two does about as well on simulated and on recorded spaces (benchmarks/tuner_landscapes.py).
_NEAR_EVERY = 3
_DEPTH = 3.0  # values this far below the best (in doublings) are all the same: the model is for the fast ones. Ours
_FAILED_BELOW = 1.0  # a point that failed counts as half the speed of the worst that ran


class Surrogate:
    """Expected improvement under a Gaussian process with one length scale per parameter."""

    name = "model"
    patient = True

    def __init__(self, known: Start) -> None:
        self._points = known.points
        self._index = {p: i for i, p in enumerate(known.points)}
        self._values = np.array(known.points, dtype=np.int64)
        self._columns = Columns(known.points)
        self._random = random.Random(known.seed)
        self._devices = known.at_once
        self._told: dict[int, float | None] = {}
        self._names, _ = self._columns.table()
        self._lengths: Array = np.full(len(self._names), 0.6)
        self._noise = 1e-3
        self._fits: list[tuple[float, Array, float]] = []  # weight, length scales, noise
        self._fitted_at = -_FIT_EVERY
        self._first = self._spread(min(_FIRST, len(known.points)))
        self._left = np.ones(len(known.points), dtype=bool)  # which of them have not been told
        self._ranked: Places | None = None
        self._order: Places = np.zeros(0, dtype=np.intp)  # the last ranking
        self._rankings = 0
        self._since = 0  # points told since the ranking was made

    # ---- the protocol

    def ask(self, count: int) -> Sequence[Point]:
        if self._ranked is None:
            self._ranked = self._rank()
        return [self._points[i] for i in self._ranked[self._left[self._ranked]][:count].tolist()]

    def tell(self, point: Point, value: float | None) -> None:
        index = self._index.get(point)
        if index is not None:
            self._told[index] = value
            self._left[index] = False
            self._since += 1
            # What one point more tells matters less and less: the ranking of all is then made anew after several. It takes as long as
            # sending a point to a device, so of several devices each gets one from the same ranking.
            if self._since > max(len(self._told) // _RANK_SHARE, self._devices - 1) and not self._unsaid():
                self._ranked, self._since = None, 0

    def describe(self, point: Point, features: Mapping[str, float]) -> None:
        index = self._index.get(point)
        if index is not None:
            self._columns.describe(index, features)

    # ---- the first points

    def _spread(self, count: int) -> list[int]:
        """Points that lie far from each other, the first by chance."""
        features = self._columns.own
        chosen = [self._random.randrange(len(self._points))]
        far = np.linalg.norm(features - features[chosen[0]], axis=1)
        while len(chosen) < count:
            best = float(far.max())
            at = self._random.choice([int(i) for i in np.flatnonzero(far >= 0.8 * best)])
            chosen.append(at)
            far = np.minimum(far, np.linalg.norm(features - features[at], axis=1))
            far[chosen] = -1.0
        return chosen

    # ---- the model

    def _unsaid(self) -> bool:
        """Whether the model has too little to go by: until then one order by chance does."""
        ran = (value for value in self._told.values() if value is not None)
        return any(i not in self._told for i in self._first) or len(list(islice(ran, _LEAST_RUN))) < _LEAST_RUN

    def _rank(self) -> Places:
        """Every point that has not been told, the most promising first."""
        ran = {i: v for i, v in self._told.items() if v is not None}
        left = np.flatnonzero(self._left)
        if self._unsaid():
            first = [i for i in self._first if self._left[i]]
            others = [i for i in left.tolist() if i not in first]
            self._random.shuffle(others)
            return np.array([*first, *others], dtype=np.intp)
        trained = self._trained(ran)
        features = self._table()
        top = max(ran.values())
        values = np.maximum(np.array([self._value(i, ran) for i in trained]), top - _DEPTH)
        low, spread = float(values.mean()), float(values.std()) or 1.0
        targets = (values - low) / spread
        x = features[trained]
        if len(self._told) - self._fitted_at >= max(_FIT_EVERY, len(self._told) // 8):
            self._fit(x, targets)
            self._fitted_at = len(self._told)
        at = self._values[max(ran, key=lambda i: ran[i])]
        asked, rest = self._shortlist(left, at)
        gain = self._gains(features, asked, x, targets)
        order = asked[np.argsort(-gain, kind="stable")]
        if len(self._told) % _NEAR_EVERY == 0:
            near = np.flatnonzero(self._beside(order, at))[:1]
            order = np.concatenate([order[near], np.delete(order, near)])
        self._order = np.concatenate([order, rest])
        return self._order

    def _beside(self, places: Places, at: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which points differ from one in a single value."""
        beside: NDArray[np.bool_] = (self._values[places] != at).sum(axis=1) == 1
        return beside

    def _shortlist(self, left: Places, at: NDArray[np.int64]) -> tuple[Places, Places]:
        """What to rank anew, and what stays behind it in the order it had: of many points three times in four only the likely ones."""
        self._rankings += 1
        if len(left) <= 2 * _SHORT or not len(self._order) or self._rankings % _ALL_EVERY == 0:
            return left, left[:0]
        known = self._order[self._left[self._order]]
        likely = self._beside(known, at)
        likely[:_SHORT] = True
        return known[likely], known[~likely]

    def _gains(self, features: Array, left: Places, x: Array, targets: Array) -> Array:
        """The expected improvement at each point that is left.

        Few points leave the length scales open: it is a mean over those that explain the points about as well.
        """
        best = float(targets.max())
        gain: Array = np.zeros(len(left))
        fits = self._fits or [(1.0, self._lengths, self._noise)]
        weights, lengths, noises = (np.array(column) for column in zip(*fits, strict=True))
        # All fits in one go: of few points NumPy's calls take longer than what they compute.
        ridge = np.broadcast_to(np.eye(len(x)), (len(fits), len(x), len(x)))
        factor: Any = np.linalg.cholesky(_matern(_squares(x, x), lengths) + (noises + 1e-8)[:, None, None] * ridge)
        inverse = np.linalg.solve(factor, ridge)
        weighed = np.einsum("fij,j->fi", inverse, targets)
        for begin in range(0, len(left), _AT_ONCE):
            part = slice(begin, begin + _AT_ONCE)
            near = _matern(_squares(features[left[part]], x), lengths)
            inner = np.stack([_product(own, other) for own, other in zip(near, inverse, strict=True)])
            deviation = np.sqrt(np.maximum(1e-9, 1.0 - np.einsum("fij,fij->fi", inner, inner)))
            gain[part] = weights @ _expected_improvement(np.einsum("fij,fj->fi", inner, weighed), deviation, best)
        return gain

    def _trained(self, ran: Mapping[int, float]) -> list[int]:
        """What the model is fitted to: the best, then the latest."""
        best = sorted(ran, key=lambda i: -ran[i])[: _MOST_TRAINED // 2]
        rest = [i for i in reversed(self._told) if i not in set(best)]
        return [*best, *rest][:_MOST_TRAINED]

    def _value(self, index: int, ran: Mapping[int, float]) -> float:
        value = self._told[index]
        return min(ran.values()) - _FAILED_BELOW if value is None else value

    def _table(self) -> Array:
        """The features of all points; length scales go with their names."""
        names, table = self._columns.table()
        if names != self._names:
            held = dict(zip(self._names, self._lengths, strict=True))
            self._lengths = np.array([held.get(n, _FIRST_LENGTH) for n in names])
            self._names, self._fits, self._fitted_at = names, [], -_FIT_EVERY
        return table

    def _fit(self, x: Array, targets: Array) -> None:
        """Length scales and noise by marginal likelihood: coordinates in turn, over a small grid."""
        between = _squares(x, x)
        seen: dict[tuple[float, ...], float] = {}

        def best_of(tried: Array, noises: Array) -> int:
            keys = [(*row, noise) for row, noise in zip(tried.tolist(), noises.tolist(), strict=True)]
            if not all(key in seen for key in keys):  # a feature that stays as it is asks for the same again
                seen.update(zip(keys, _likelihoods(between, targets, tried, noises).tolist(), strict=True))
            found = [seen[key] for key in keys]
            return found.index(max(found))

        # Once over all features: a fit starts where the last one ended.
        for k in self._random.sample(range(x.shape[1]), x.shape[1]):
            tried = np.tile(self._lengths, (len(_LENGTHS), 1))
            tried[:, k] = _LENGTHS
            self._lengths = tried[best_of(tried, np.full(len(tried), self._noise))]
        self._noise = _NOISE[best_of(np.tile(self._lengths, (len(_NOISE), 1)), np.array(_NOISE))]
        kept = sorted(seen.items(), key=lambda item: -item[1])[:_FITS]
        weights = [math.exp(value - kept[0][1]) for _, value in kept]
        self._fits = [
            (w / sum(weights), np.array(key[:-1]), key[-1]) for w, (key, _) in zip(weights, kept, strict=True)
        ]


def _likelihoods(between: Array, targets: Array, lengths: Array, noises: Array) -> Array:
    """The log marginal likelihood (but for a constant) of each row of length scales with its noise."""
    count = len(targets)
    covariance = _matern(between, lengths) + (noises + 1e-8)[:, None, None] * np.eye(count)
    factor: Any = np.linalg.cholesky(covariance)
    inner = np.linalg.solve(factor, np.broadcast_to(targets[:, None], (len(noises), count, 1)))[..., 0]
    fit: Array = -0.5 * np.sum(inner * inner, axis=1) - np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    # Few points fit many lengths: long ones are likelier before anything is measured (a log-normal prior).
    likelihood: Array = fit - _PRIOR * np.sum(np.log(lengths) ** 2, axis=1)
    return likelihood


def _squares(a: Array, b: Array) -> Array:
    """Squared differences of each feature: features x len(a) x len(b)."""
    apart: Array = (a.T[:, :, None] - b.T[:, None, :]) ** 2
    return apart


def _product(near: Array, inverse: Array) -> Array:
    """`near` times the transposed inverse, in parts that are too small for the linear algebra's threads.

    The compilers have every core: threads that wait for each other there take tens of times as long as one.
    """
    rows = max(1, _ONE_THREAD // inverse.size)
    found: Array = np.empty_like(near)
    for begin in range(0, len(near), rows):
        np.matmul(near[begin : begin + rows], inverse.T, out=found[begin : begin + rows])
    return found


def _matern(squares: Array, lengths: Array) -> Array:
    """The Matern 5/2 kernel for one or several rows of length scales."""
    r = np.sqrt(5.0 * np.einsum("...k,kij->...ij", 1.0 / lengths**2, squares))
    kernel: Array = (1.0 + r + r * r / 3.0) * np.exp(-r)
    return kernel


def _expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    gain: Array = deviation * (z * _below(z) + density)
    return gain


def _below(z: Array) -> Array:
    """The normal distribution function, to 1e-7. Source: Abramowitz and Stegun (1964), 26.2.17."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    series = t * (0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429))))
    tail = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi) * series
    below: Array = np.where(z < 0, tail, 1.0 - tail)
    return below
