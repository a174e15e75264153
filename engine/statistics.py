"""Speedups with intervals: the median of paired log ratios, with a percentile bootstrap (Efron & Tibshirani 1993, ch. 13)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

# 400 resamples put the 2.5 % quantile within about ±0.8 % of its level, far below what one measurement is noisy by.
RESAMPLES = 400
# Standard deviation of a log ratio from process to process, of `benchmarks/repeats.py` on one H200 (docs/timing.md), and how much it
# weighs beside the distance between the two processes of a run. Ours.
PROCESS_SD = 0.003
PROCESS_DOF = 4
_T = {4: 2.776, 5: 2.571}  # 97.5 % quantiles of Student's t


@dataclass(frozen=True)
class Interval:
    """A ratio with its 95 % interval. Above 1: the candidate is faster."""

    ratio: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Relative: 0.01 is ±1 %."""
        return (self.high - self.low) / (2 * self.ratio)


def paired_ratio(original_us: Sequence[float], candidate_us: Sequence[float], seed: int = 0) -> Interval:
    """The speedup of pairs measured side by side. Both sequences have the same length, at least 2, in microseconds."""
    return weighted_ratio([(original_us, candidate_us)], [1.0], seed)


def weighted_ratio(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]], weights: Sequence[float], seed: int = 0
) -> Interval:
    """The weighted geometric mean of several paired ratios, resampled jointly."""
    total = sum(weights)
    middle = 0.0
    resampled = np.zeros(RESAMPLES)
    for place, ((original, candidate), weight) in enumerate(zip(pairs, weights, strict=True)):
        logs = np.log(np.asarray(original, float)) - np.log(np.asarray(candidate, float))
        if len(logs) < 2:
            raise ValueError("an interval needs at least two pairs")
        middle += weight / total * _median(logs)
        resampled += weight / total * _medians(logs, seed + place)
    ordered = np.sort(resampled)
    low, high = (_between(ordered, share * (len(ordered) - 1)) for share in (0.025, 0.975))
    return Interval(math.exp(middle), math.exp(low), math.exp(high))


def between_processes(interval: Interval, other: float | None) -> Interval:
    """`interval` of one process, widened so that another process's measurement of the same programs falls into it.

    Where modules and buffers come to lie differs from process to process and moves a ratio by more than the spread within one.
    `other` is the ratio that an earlier process measured, or None. The deviation between processes is estimated from the distance of
    the two logarithms and a prior (`PROCESS_SD` with the weight of `PROCESS_DOF` degrees of freedom); the bounds are Student's t.
    """
    square, dof = PROCESS_DOF * PROCESS_SD**2, PROCESS_DOF
    if other is not None:
        square, dof = square + (math.log(interval.ratio) - math.log(other)) ** 2 / 2, dof + 1
    between = _T[dof] * math.sqrt(square / dof)
    middle = math.log(interval.ratio)
    low = middle - math.hypot(middle - math.log(interval.low), between)
    high = middle + math.hypot(math.log(interval.high) - middle, between)
    return Interval(interval.ratio, math.exp(low), math.exp(high))


# What follows gives what NumPy's own `median` and `quantile` do: those take most of a small sample's time to look at their arguments.


def _between(ordered: NDArray[np.float64], place: float) -> float:
    below = int(place)
    return float(ordered[below] + (place - below) * (ordered[below + 1] - ordered[below]))


def _median(logs: NDArray[np.float64]) -> float:
    ordered = np.sort(logs)
    return float(ordered[(len(logs) - 1) // 2] + ordered[len(logs) // 2]) / 2


def _medians(logs: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    lower, upper = (len(logs) - 1) // 2, len(logs) // 2
    resampled = np.partition(logs[_draws(len(logs), seed)], sorted({lower, upper}), axis=1)
    medians: NDArray[np.float64] = (resampled[:, lower] + resampled[:, upper]) / 2
    return medians


@lru_cache(maxsize=64)
def _draws(count: int, seed: int) -> NDArray[np.int64]:
    """Which of so many pairs each resample is made of."""
    return np.random.default_rng(seed).integers(0, count, (RESAMPLES, count))
