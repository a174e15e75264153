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
        self._groups: list[_Together] = []
        self._group_of: dict[str, _Together] = {}
        self._table: tuple[list[str], Array] | None = None

    def describe(self, index: int, features: Mapping[str, float]) -> None:
        """What is known of a point; a later word on the same feature counts."""
        new = [name for name in features if name not in self._group_of]
        if new:
            self._add(_Together(new, len(self.own)))
        for group in dict.fromkeys(self._group_of[name] for name in features):
            inside = [name for name in group.names if name in features]
            told = group
            if len(inside) < len(group.names):  # some of what was told together until now
                self._groups.remove(group)
                told, rest = group.split(inside)
                self._add(told)
                self._add(rest)
            if told.tell(index, [features[name] for name in told.names]):
                self._table = None

    def table(self) -> tuple[list[str], Array]:
        """Names, and points x columns; a point that a feature is not known of takes that of its nearest."""
        if self._table is None:
            names, parts = [str(k) for k in range(self.own.shape[1])], [self.own]
            scaled = {name: column for group in self._groups for name, column in group.scaled(self.own)}
            for name in sorted(scaled):
                names.append(name)
                parts.append(scaled[name])
            self._table = names, np.hstack(parts)
        return self._table

    def _add(self, group: _Together) -> None:
        self._groups.append(group)
        self._group_of.update(dict.fromkeys(group.names, group))


class _Together:
    """Features that are told of the same points, so that whose neighbours they are taken from is looked for once."""

    def __init__(self, names: Sequence[str], count: int) -> None:
        self.names = list(names)
        self._values = np.full((count, len(self.names)), np.nan)
        self._nearest = np.zeros(count, dtype=np.intp)  # the nearest point that they are known of
        self._apart = np.full(count, np.inf)  # and the squared distance to it
        self._new: list[int] = []
        self._known = 0
        self._scaled: list[tuple[str, Array]] | None = None

    def tell(self, index: int, values: Sequence[float]) -> bool:
        """Whether that says anything new."""
        held: list[float] = self._values[index].tolist()
        if held == list(values):
            return False
        if held[0] != held[0]:  # not a number: not known yet
            self._new.append(index)
            self._known += 1
        self._values[index] = values
        self._scaled = None
        return True

    def split(self, names: Sequence[str]) -> tuple[_Together, _Together]:
        """These features, and the others."""
        parts = []
        for some in (list(names), [name for name in self.names if name not in names]):
            part = _Together(some, len(self._values))
            part._values = self._values[:, [self.names.index(name) for name in some]].copy()
            part._nearest, part._apart = self._nearest.copy(), self._apart.copy()
            part._new, part._known = list(self._new), self._known
            parts.append(part)
        return parts[0], parts[1]

    def scaled(self, own: Array) -> list[tuple[str, Array]]:
        """The columns that differ from point to point, each from 0 to 1 and points x 1."""
        if self._scaled is None:
            filled = self._filled(own)
            low = filled.min(axis=0)
            span = filled.max(axis=0) - low
            differ = np.flatnonzero(span > 0)
            columns = (filled[:, differ] - low[differ]) / span[differ]
            self._scaled = [(self.names[k], columns[:, [i]]) for i, k in enumerate(differ.tolist())]
        return self._scaled

    def _filled(self, own: Array) -> Array:
        if self._known == len(self._values):
            return self._values
        for begin in range(0, len(self._new), _AT_ONCE):
            part = np.array(self._new[begin : begin + _AT_ONCE])
            apart = ((own[:, None, :] - own[part][None, :, :]) ** 2).sum(axis=2)
            best = apart.argmin(axis=1)
            apart = apart[np.arange(len(apart)), best]
            closer = apart < self._apart
            self._apart[closer] = apart[closer]
            self._nearest[closer] = part[best[closer]]
        self._new.clear()
        filled: Array = self._values[self._nearest]
        return filled


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
