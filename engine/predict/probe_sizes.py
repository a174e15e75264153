"""Small sizes at which accesses are counted, so that counts at full size follow from a few small runs."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Sizes = Mapping[str, int | float]

# Elements of work of the base run, by the number of sizes that multiply: a few milliseconds on a CPU.
_WORK = {1: 1 << 15, 2: 1 << 16}
_MORE_WORK = 1 << 18
_ALIGNED = 32  # what was a multiple of so many stays one: blocks and warps are as full as at full size
_LEAST_TOGETHER = 256  # no size goes below this only because a larger one that belongs to it is shrunk
_HELD_OUT = 2  # sizes that grow in the run that is held out; with one size it grows twice as far


def _anything(sizes: Sizes) -> bool:
    return True


def _nothing(sizes: Sizes) -> int:
    return 0


@dataclass(frozen=True)
class ProbeLimits:
    """What a counting run may be.

    `fits`: small enough for a base run. `fits_at_most` (default: `fits`): small enough where the grid asks for more. `blocks`: a
    launch's number of blocks. `work` has to reach `least_work` where it can: a grid of one size loops over the elements.
    `shrink`: the base does so many times less work. `legal`: every buffer has elements, one of `length - 13` for instance.
    """

    fits: Callable[[Sizes], bool] = _anything
    blocks: Callable[[Sizes], int] = _nothing
    fits_at_most: Callable[[Sizes], bool] | None = None
    work: Callable[[Sizes], int] = _nothing
    least_work: int = 0
    shrink: int = 1
    legal: Callable[[Sizes], bool] = _anything


@dataclass(frozen=True)
class Relations:
    """How the sizes of a spec relate: `together` hold one structure (rows, columns and entries of a sparse matrix), so their ratios
    matter; `multiplied` are sizes whose product is the size of a buffer.
    """

    together: tuple[frozenset[str], ...] = ()
    multiplied: tuple[frozenset[str], ...] | None = None  # None: not known, then all are

    def group(self, name: str) -> frozenset[str]:
        """The sizes that shrink with one, that one included."""
        return next((group for group in self.together if name in group), frozenset({name}))


@dataclass(frozen=True)
class ProbeSizes:
    """A base; for each direction of growth the base with the sizes of that direction doubled; and a run that is held out: its
    counts have to follow from the others. None where the full sizes are too near for one.
    """

    base: dict[str, int | float]
    doubled: tuple[dict[str, int | float], ...]
    held_out: dict[str, int | float] | None

    @property
    def fitted(self) -> tuple[dict[str, int | float], ...]:
        return (self.base, *self.doubled)


def probe_sizes(sizes: Sizes, limits: ProbeLimits = ProbeLimits(), related: Relations = Relations()) -> ProbeSizes:
    """Small versions of one timing case. Never larger than `sizes`.

    The largest size is halved first, with those that belong together, until the work and `limits.fits` allow the run: a size that
    is small already (bins, steps, the width of a row) stays as it is. What was a multiple of a block stays one. A size that cannot
    be halved any more (`limits.legal`) leaves the others to be.

    Counts grow as they do at full size only where the grid does: a size is doubled again while all its work stays in one block,
    or while a grid that is capped at full size is not yet, as long as `fits_at_most` allows. Where the grid is of one size, the
    sizes that move the work are doubled until it reaches `least_work`, the one furthest from its full size first.
    """
    whole = [name for name, value in sizes.items() if isinstance(value, int) and value > 1]
    base, shrinking = dict(sizes), list(whole)
    while _over(base, whole, related, limits.shrink) or not limits.fits(base):
        largest = max(shrinking, key=lambda name: base[name], default="")
        if not largest or base[largest] <= 1:
            break
        group = related.group(largest)
        shrunk = [n for n in whole if n == largest or (n in group and base[n] > _LEAST_TOGETHER)]
        smaller = {**base, **{name: _half(int(base[name]), int(sizes[name])) for name in shrunk}}
        if limits.legal(smaller):
            base = smaller
        else:
            shrinking.remove(largest)
    grown = _Grown(sizes, whole, limits, related)
    for name in whole:
        base = grown.in_step(base, name)
    base = grown.worked(base)
    directions = _directions(base, sizes, whole, related)
    doubled = tuple(_doubled(base, sizes, names) for names in directions)
    return ProbeSizes(base, doubled, _held_out(base, sizes, directions))


def _over(base: Sizes, whole: Sequence[str], related: Relations, shrink: int) -> bool:
    """Whether the sizes that multiply are more work than a base run should do."""
    groups = [frozenset(whole)] if related.multiplied is None else list(related.multiplied)
    alone = [frozenset({name}) for name in whole if not any(name in group for group in groups)]
    for group in (*groups, *alone):
        factors = [int(base[name]) for name in whole if name in group]
        if math.prod(factors) > max(1, _WORK.get(len(factors), _MORE_WORK) // shrink):
            return True
    return False


def _half(value: int, full: int) -> int:
    """About half of a size, a multiple of the powers of two up to `_ALIGNED` that the full size is one of, if that is possible."""
    step = math.gcd(full, _ALIGNED)
    half = max(1, value // 2)
    return half - half % step if half >= step else half


def _doubled(base: Sizes, sizes: Sizes, names: Sequence[str], by: int = 2) -> dict[str, int | float]:
    return {**base, **{name: min(by * int(base[name]), int(sizes[name])) for name in names}}


def _directions(base: Sizes, sizes: Sizes, whole: Sequence[str], related: Relations) -> list[tuple[str, ...]]:
    """The sizes that grow, each alone; those that belong together and have equally far to go in one."""
    found: dict[tuple[frozenset[str], float], list[str]] = {}
    for name in whole:
        if base[name] < sizes[name]:
            found.setdefault((related.group(name), sizes[name] / base[name]), []).append(name)
    return [tuple(names) for names in found.values()]


def _held_out(base: Sizes, sizes: Sizes, directions: Sequence[tuple[str, ...]]) -> dict[str, int | float] | None:
    furthest = sorted(directions, key=lambda names: base[names[0]] / sizes[names[0]])[:_HELD_OUT]
    names = list(itertools.chain.from_iterable(furthest))
    held = _doubled(base, sizes, names, 2 if len(furthest) > 1 else 4)
    return held if held not in [dict(base), *(_doubled(base, sizes, each) for each in directions)] else None


@dataclass(frozen=True)
class _Grown:
    """A base that is made larger again, for the grid and for the work of a grid of one size."""

    sizes: Sizes
    whole: Sequence[str]
    limits: ProbeLimits
    related: Relations

    def _larger(self, base: Sizes, name: str) -> dict[str, int | float] | None:
        """With a size doubled, and with it those that belong to it; None where that is no small run any more."""
        names = [n for n in self.whole if n in self.related.group(name) and 2 * int(base[n]) <= self.sizes[n]]
        if name not in names:
            return None
        return {**base, **{n: 2 * int(base[n]) for n in names}}

    def _fits(self, base: Sizes) -> bool:
        return (self.limits.fits_at_most or self.limits.fits)(base)

    def in_step(self, base: dict[str, int | float], name: str) -> dict[str, int | float]:
        """The base with one size doubled until the grid grows from there on as it does up to the full size."""
        blocks = self.limits.blocks
        most = blocks({**base, name: self.sizes[name]})
        if blocks(base) == most:
            return base  # this size does not move the grid
        while (larger := self._larger(base, name)) is not None:
            now, then = blocks(base), blocks({**base, name: larger[name]})
            in_step = then > now and most > now * self.sizes[name] / base[name] / 2
            if in_step or not self._fits(larger):
                break
            base = larger
            if now == most:
                break  # one doubling beyond the cap: every thread has work for more than one trip
        return base

    def worked(self, base: dict[str, int | float]) -> dict[str, int | float]:
        """The base with the sizes doubled that move the work, until it is enough for a grid of one size."""
        work = self.limits.work
        while work(base) < self.limits.least_work:
            larger = {name: found for name in self.whole if (found := self._larger(base, name)) is not None}
            moving = [name for name, found in larger.items() if work(found) > work(base)]
            furthest = max(moving, key=lambda name: self.sizes[name] / base[name], default="")
            if not furthest or not self._fits(larger[furthest]):
                break
            base = larger[furthest]
        return base
