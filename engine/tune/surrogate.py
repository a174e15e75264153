"""A Gaussian process over the feasible points: measures few, and each where the best is most likely to be improved upon.

Sources: Jones, Schonlau and Welch, "Efficient Global Optimization of Expensive Black-Box Functions" (1998); Rasmussen and
Williams, "Gaussian Processes for Machine Learning" (2006), chapters 2 and 5 (Matern 5/2, marginal likelihood). The set is finite
and listed, so the acquisition is computed for every point instead of being maximised.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.tune.space import Point
from engine.tune.strategy import Known, Trial

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_FIRST = 6  # points chosen to lie far from each other before the model speaks; ours
_MOST_TRAINED = 128  # points the model is fitted to: the best and the latest; a fit then takes some milliseconds
_LENGTHS = (0.15, 0.3, 0.6, 1.2, 2.5, 5.0)  # tried for each feature; features span 0 to 1
_RANK_SHARE = 32  # the ranking is made anew after one point in so many that are known
_FITS = 4  # settings of these that the gain is a mean over
_NOISE = (1e-4, 1e-3, 1e-2)
_FIT_EVERY = 3  # at first; later less often, as a point more changes less
_MOST_FITTED = 64  # points the length scales are fitted to
_NEAR_EVERY = 3  # one choice in three is the best beside the best so far: what a smooth model takes for noise. Ours
_DEPTH = 3.0  # values this far below the best (in doublings) are all the same: the model is for the fast ones. Ours
_FAILED_BELOW = 1.0  # a point that failed counts as half the speed of the worst that ran


class Surrogate:
    """Expected improvement under a Gaussian process with one length scale per parameter."""

    name = "model"
    patient = True

    def __init__(self, known: Known) -> None:
        self._points = known.points
        self._index = {p: i for i, p in enumerate(known.points)}
        self._features = _scaled(known.points)
        self._described: dict[int, Mapping[str, float]] = {}
        self._table: Array | None = None
        self._random = random.Random(known.seed)
        self._told: dict[int, float | None] = {}
        self._lengths: Array = np.full(self._features.shape[1], 0.6)
        self._noise = 1e-3
        self._fits: list[tuple[float, Array, float]] = []  # weight, length scales, noise
        self._fitted_at = -_FIT_EVERY
        self._first = self._spread(min(_FIRST, len(known.points)))
        self._ranked: list[int] | None = None
        self._since = 0  # points told since the ranking was made

    # ---- the protocol

    def ask(self, count: int) -> Sequence[Trial]:
        if self._ranked is None:
            self._ranked = self._rank()
        left = [i for i in self._ranked if i not in self._told]
        return [Trial(self._points[i]) for i in left[:count]]

    def tell(self, trial: Trial, value: float | None) -> None:
        index = self._index.get(trial.point)
        if index is not None:
            self._told[index] = value
            self._since += 1
            # What one point more tells matters less and less: the ranking of all is then made anew after several.
            if self._since > len(self._told) // _RANK_SHARE:
                self._ranked, self._since = None, 0

    def describe(self, point: Point, features: Mapping[str, float]) -> None:
        index = self._index.get(point)
        if index is not None:
            self._described[index] = {**self._described.get(index, {}), **features}
            self._table = None

    # ---- the first points

    def _spread(self, count: int) -> list[int]:
        """Points that lie far from each other, the first by chance."""
        chosen = [self._random.randrange(len(self._points))]
        far = np.linalg.norm(self._features - self._features[chosen[0]], axis=1)
        while len(chosen) < count:
            best = float(far.max())
            at = self._random.choice([int(i) for i in np.flatnonzero(far >= 0.8 * best)])
            chosen.append(at)
            far = np.minimum(far, np.linalg.norm(self._features - self._features[at], axis=1))
            far[chosen] = -1.0
        return chosen

    # ---- the model

    def _rank(self) -> list[int]:
        """Every point that has not been told, the most promising first."""
        first = [i for i in self._first if i not in self._told]
        ran = {i: v for i, v in self._told.items() if v is not None}
        left = [i for i in range(len(self._points)) if i not in self._told]
        if first or len(ran) < 3:
            rest = [i for i in left if i not in first]
            self._random.shuffle(rest)
            return [*first, *rest]
        trained = self._trained(ran)
        features = self._described_features()
        top = max(ran.values())
        values = np.maximum(np.array([self._value(i, ran) for i in trained]), top - _DEPTH)
        low, spread = float(values.mean()), float(values.std()) or 1.0
        targets = (values - low) / spread
        x = features[trained]
        if len(self._told) - self._fitted_at >= max(_FIT_EVERY, len(self._told) // 8):
            self._fit(x[:_MOST_FITTED], targets[:_MOST_FITTED])
            self._fitted_at = len(self._told)
        best = float(targets.max())
        gain: Array = np.zeros(len(left))
        # Few points leave the length scales open: the gain is a mean over those that explain the points about as well.
        for weight, lengths, noise in self._fits or [(1.0, self._lengths, self._noise)]:
            factor, weights = self._solve(x, targets, lengths, noise)
            across = _matern(features[left], x, lengths)
            inner = np.linalg.solve(factor, across.T)
            deviation = np.sqrt(np.maximum(1e-9, 1.0 - np.sum(inner * inner, axis=0)))
            gain += weight * _expected_improvement(across @ weights, deviation, best)
        order = [left[int(i)] for i in np.argsort(-gain, kind="stable")]
        if len(self._told) % _NEAR_EVERY == 0:
            at = self._points[max(ran, key=lambda i: ran[i])]
            near = (i for i in order if sum(a != b for a, b in zip(self._points[i], at, strict=True)) == 1)
            beside = next(near, None)
            if beside is not None:
                order.remove(beside)
                order.insert(0, beside)
        return order

    def _trained(self, ran: Mapping[int, float]) -> list[int]:
        """What the model is fitted to: the best, then the latest."""
        best = sorted(ran, key=lambda i: -ran[i])[: _MOST_FITTED // 2]
        rest = [i for i in reversed(self._told) if i not in set(best)]
        return [*best, *rest][:_MOST_TRAINED]

    def _value(self, index: int, ran: Mapping[int, float]) -> float:
        value = self._told[index]
        return min(ran.values()) - _FAILED_BELOW if value is None else value

    def _described_features(self) -> Array:
        """The parameters, and what else is known, each from 0 to 1; a point that lacks a figure takes its nearest's."""
        if self._table is None:
            columns = [self._features]
            for name in sorted({n for features in self._described.values() for n in features}):
                known = np.array([i for i in sorted(self._described) if name in self._described[i]])
                values = np.array([self._described[int(i)][name] for i in known])
                span = float(values.max() - values.min())
                if span > 0:
                    whole = len(known) == len(self._points)
                    at = np.arange(len(known)) if whole else _nearest(self._features, self._features[known])
                    columns.append(((values - values.min()) / span)[at][:, None])
            self._table = np.hstack(columns)
        return self._adapted(self._table)

    def _adapted(self, features: Array) -> Array:
        if len(self._lengths) != features.shape[1]:
            grown = np.full(features.shape[1], 1.2)
            grown[: len(self._lengths)] = self._lengths[: features.shape[1]]
            self._lengths = grown
            self._fits, self._fitted_at = [], -_FIT_EVERY
        return features

    def _fit(self, x: Array, targets: Array) -> None:
        """Length scales and noise by marginal likelihood: coordinates in turn, over a small grid."""
        best = self._likelihood(x, targets, self._lengths, self._noise)
        seen: dict[tuple[float, ...], float] = {(*self._lengths, self._noise): best}
        for _ in range(2):
            for k in self._random.sample(range(x.shape[1]), x.shape[1]):
                for length in _LENGTHS:
                    tried = self._lengths.copy()
                    tried[k] = length
                    found = seen[(*tried, self._noise)] = self._likelihood(x, targets, tried, self._noise)
                    if found > best:
                        best, self._lengths = found, tried
            for noise in _NOISE:
                found = seen[(*self._lengths, noise)] = self._likelihood(x, targets, self._lengths, noise)
                if found > best:
                    best, self._noise = found, noise
        kept = sorted(seen.items(), key=lambda item: -item[1])[:_FITS]
        total = sum(math.exp(value - best) for _, value in kept)
        self._fits = [(math.exp(value - best) / total, np.array(key[:-1]), key[-1]) for key, value in kept]

    def _likelihood(self, x: Array, targets: Array, lengths: Array, noise: float) -> float:
        factor, weights = self._solve(x, targets, lengths, noise)
        fit = -0.5 * float(targets @ weights) - float(np.log(np.diag(factor)).sum())
        # Few points fit many lengths: long ones are likelier before anything is measured (a log-normal prior).
        return fit - 0.25 * float(np.sum(np.log(lengths / 1.0) ** 2))

    @staticmethod
    def _solve(x: Array, targets: Array, lengths: Array, noise: float) -> tuple[Array, Array]:
        covariance = _matern(x, x, lengths) + (noise + 1e-8) * np.eye(len(x))
        factor: Any = np.linalg.cholesky(covariance)
        weights: Any = np.linalg.solve(factor.T, np.linalg.solve(factor, targets))
        return factor, weights


def _scaled(points: Sequence[Point]) -> Array:
    """Each parameter from 0 to 1: by its logarithm where values are positive and span a factor of eight, else as it is.

    A parameter of one value is left out, but for a space that has no other.
    """
    table = np.array(points, dtype=np.float64)
    columns = []
    for values in table.T:
        low, high = float(values.min()), float(values.max())
        if low == high:
            continue
        if low > 0 and high / low >= 8:
            values, low, high = np.log2(values), math.log2(low), math.log2(high)
        columns.append((values - low) / (high - low))
    return np.array(columns).T if columns else np.zeros((len(points), 1))


def _nearest(points: Array, among: Array) -> NDArray[np.intp]:
    """For each point the index of the nearest among others."""
    squares = (
        np.sum(points * points, axis=1)[:, None] + np.sum(among * among, axis=1)[None, :] - 2.0 * (points @ among.T)
    )
    nearest: NDArray[np.intp] = squares.argmin(axis=1)
    return nearest


def _matern(a: Array, b: Array, lengths: Array) -> Array:
    a, b = a / lengths, b / lengths
    squares = np.sum(a * a, axis=1)[:, None] + np.sum(b * b, axis=1)[None, :] - 2.0 * (a @ b.T)
    r = np.sqrt(5.0 * np.maximum(squares, 0.0))
    kernel: Array = (1.0 + r + r * r / 3.0) * np.exp(-r)
    return kernel


def _expected_improvement(mean: Array, deviation: Array, best: float) -> Array:
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    # The normal distribution function through the error function, which numpy lacks.
    below = 0.5 * (1.0 + np.array([math.erf(v / math.sqrt(2.0)) for v in z]))
    gain: Array = deviation * (z * below + density)
    return gain
