"""The features of all points of a space as columns from 0 to 1: the parameters, and what becomes known of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from engine.tune.space import Point

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

_AT_ONCE = 64  # newly described points that are compared with all others together


class Columns:
    """A table with a row for each point. `own` are the columns of the parameters alone, points x columns."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.own = _scaled(tuple(points))
        self._values: dict[str, Array] = {}
        self._nearest: dict[str, NDArray[np.intp]] = {}  # by feature: the nearest point that it is known of
        self._apart: dict[str, Array] = {}  # and the squared distance to it
        self._new: dict[str, list[int]] = {}
        self._known: dict[str, int] = {}
        self._table: tuple[list[str], Array] | None = None

    def describe(self, index: int, features: Mapping[str, float]) -> None:
        """What is known of a point; a later word on the same feature counts."""
        count = len(self.own)
        for name, value in features.items():
            if name not in self._values:
                self._values[name] = np.full(count, np.nan)
                self._nearest[name] = np.zeros(count, dtype=np.intp)
                self._apart[name] = np.full(count, np.inf)
                self._new[name], self._known[name] = [], 0
            if np.isnan(self._values[name][index]):
                self._new[name].append(index)
                self._known[name] += 1
            self._values[name][index] = value
        self._table = None

    def table(self) -> tuple[list[str], Array]:
        """Names, and points x columns; a point that a feature is not known of takes that of its nearest."""
        if self._table is None:
            names, columns = [str(k) for k in range(self.own.shape[1])], [self.own]
            for name in sorted(self._values):
                values = self._filled(name)
                low, span = float(values.min()), float(values.max() - values.min())
                if span > 0:
                    names.append(name)
                    columns.append(((values - low) / span)[:, None])
            self._table = names, np.hstack(columns)
        return self._table

    def _filled(self, name: str) -> Array:
        values, new = self._values[name], self._new[name]
        if self._known[name] == len(values):
            return values
        for begin in range(0, len(new), _AT_ONCE):
            part = np.array(new[begin : begin + _AT_ONCE])
            apart = ((self.own[:, None, :] - self.own[part][None, :, :]) ** 2).sum(axis=2)
            best = apart.argmin(axis=1)
            apart = apart[np.arange(len(apart)), best]
            closer = apart < self._apart[name]
            self._apart[name][closer] = apart[closer]
            self._nearest[name][closer] = part[best[closer]]
        new.clear()
        return values[self._nearest[name]]


@lru_cache(maxsize=8)  # a search asks for thousands of the same points again, at one program after another
def _scaled(points: tuple[Point, ...]) -> Array:
    """Each parameter from 0 to 1: by its logarithm where values are positive and span a factor of eight, else as it is.

    A parameter whose values are no powers of two also counts by how often two divides it, up to 64: 48 threads are near 64 in number,
    and unlike them in how they fill warps and sectors. A parameter of one value is left out, but for a space that has no other.
    """
    table = np.array(points, dtype=np.int64)
    columns = []
    for values in table.T:
        column = values.astype(np.float64)
        if column.min() > 0 and column.max() / column.min() >= 8:
            column = np.log2(column)
        columns.append(column)
        if column.min() > 0 and np.any(values & (values - 1)):
            columns.append(np.log2(np.gcd(values, 64)))
    kept = [(c - c.min()) / (c.max() - c.min()) for c in columns if c.max() > c.min()]
    return np.array(kept).T if kept else np.zeros((len(points), 1))
