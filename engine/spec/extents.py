"""Finds the size expression of a buffer from how much of it a kernel touched at several trial sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, permutations

from engine.arith import ArithmeticError_, evaluate_int

# Distinct primes: no two products of trial sizes agree by accident, and none is a multiple of a block size. With one or
# two sizes the trials can be large enough to tell `cdiv(n, 512)` from a constant.
_ONE = (41, 101, 1031, 4099)
_TWO = ((29, 43), (47, 31), (127, 59), (257, 521))
# For grids that count whole tiles, and blocks as large as a size: multiples of two warps (of three sizes, of one; of four, of a
# quarter of one), products of no more than 4 * 10**6.
_TILED = {
    1: (64, ((2,), (5,), (11,), (23,))),
    2: (64, ((2, 3), (5, 2), (7, 5), (3, 11))),
    3: (32, ((1, 2, 3), (3, 1, 5), (5, 3, 2), (2, 7, 1))),
    4: (8, ((1, 2, 3, 5), (3, 1, 5, 2), (5, 7, 1, 3), (2, 5, 7, 1))),
}
_PRIMES = (5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109)
_PRIMES_LOW, _TIMES = (2, 3, 5, 7), (11, 13, 7, 17, 19, 23)  # of what a size is divided by, and how often it goes in
# Where trials of four sizes and more begin in `_PRIMES`: no two sizes are as far apart in one of them as in all.
_STARTS = (0, 3, 5)
_LEAST_ROWS = 5  # of a size that a few can be left of
_NONE: Mapping[str, str] = {}
_MOST_ROWS = 6  # sizes of a kernel, of more of which too many expressions would be tried for rows. Ours
_CEILS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Trial = tuple[Mapping[str, int], int]  # sizes, elements touched


@dataclass(frozen=True)
class Extent:
    """A size expression that explains every trial; `exact` is False where it only covers what was touched.

    `measured` is False where the trials were read from the text.
    """

    text: str
    exact: bool
    measured: bool = True


def trial_sizes(
    names: Sequence[str], *, tiled: bool = False, divided: Mapping[str, str] = _NONE, tile: int = 0
) -> tuple[dict[str, int], ...]:
    """Three or four sets of co-prime sizes, all different; the product of up to four stays below 2 * 10**6.

    `tiled`: all are multiples of 64 for one or two names (of `tile` for one), of 32 for three, of 8 for four. `divided` names
    sizes that are multiples of others, with these: they are so, of small ones.
    """
    tiled = tiled and len(names) in _TILED
    trials = _trial_sizes(names, tiled=tiled, tile=tile)
    for at, sizes in enumerate(trials):
        for index, (whole, part) in enumerate(divided.items()):
            sizes[part] = 2 << at % 2 if tiled else _PRIMES_LOW[at]
            if not tiled:
                sizes[whole] = sizes[part] * _TIMES[(at + 2 * index) % len(_TIMES)]
    return trials


def _trial_sizes(names: Sequence[str], *, tiled: bool, tile: int) -> tuple[dict[str, int], ...]:
    count = len(names)
    if tiled:
        unit, tiles = _TILED[count]
        unit = tile if tile and count == 1 else unit
        return tuple({name: unit * v for name, v in zip(names, values, strict=True)} for values in tiles)
    if count == 1:
        return tuple({names[0]: value} for value in _ONE)
    if count == 2:
        return tuple(dict(zip(names, pair, strict=True)) for pair in _TWO)
    # Three sizes are all different in each trial; of more, few enough for a launch of as many blocks as their product.
    starts = tuple(2 + 3 * trial for trial in range(4)) if count == 3 else _STARTS
    return tuple({name: _PRIMES[(start + at) % len(_PRIMES)] for at, name in enumerate(names)} for start in starts)


def trial_key(sizes: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    """What tells a trial from the others."""
    return tuple(sorted(sizes.items()))


def products(names: Sequence[str]) -> list[str]:
    """Products of up to four sizes, some with one of them twice, the simplest first."""
    found = [*names]
    found += ["*".join(pair) for pair in combinations(names, 2)] + [f"{n}*{n}" for n in names]
    for count in (3, 4):
        found += ["*".join(group) for group in combinations(names, count)]
    found += [f"{a}*{a}*{b}" for a, b in permutations(names, 2)] + [f"{n}*{n}*{n}" for n in names]
    # One square for each head of each batch.
    found += [f"{'*'.join(group)}*{n}" for group in combinations(names, 3) for n in group]
    return found


def candidates(names: Sequence[str]) -> tuple[str, ...]:
    """Expressions over the sizes that buffers commonly have, the simplest first."""
    every = products(names)
    simple = every[: len(names) * (len(names) + 3) // 2]  # names, pairs and squares
    found = list(every)
    found += [f"{p} + 1" for p in simple] + [f"{p} - 1" for p in simple] + [f"{p} + 2" for p in names]
    found += [f"{k}*{p}" for k in (2, 3, 4, 8, 16, 32) for p in simple]
    found += [f"{k}*{p}" for k in (2, 3, 4) for p in every if p.count("*") > 1]  # queries, keys and values in one
    found += [f"{k}*{n} {sign} 1" for k in (2, 3, 4) for n in names for sign in "+-"]
    found += [f"{a} + {b}" for a, b in combinations(names, 2)] + [f"{a} + {b} - 1" for a, b in combinations(names, 2)]
    found += [f"({a} + {k})*{b}" for k in (1, 2) for a, b in permutations(names, 2)]
    found += [f"({a} + {k})*({b} + {k})" for k in (1, 2) for a, b in combinations(names, 2)]
    found += [f"{p} + {n}" for p in simple if "*" in p for n in names]
    found += [f"cdiv({p}, {k})" for k in _CEILS for p in simple]
    found += [f"round_up({p}, {k})" for k in _CEILS for p in simple]
    found += [f"cdiv({a}, {k})*{b}" for k in _CEILS for a, b in permutations(names, 2)]
    found += _sums(names)
    # Rows of which the last one is not read to its end: `x[row * pitch + i]`, i below the width.
    for row, pitch, width in permutations(names, 3) if len(names) <= _MOST_ROWS else ():
        found.append(f"({row} - 1)*{pitch} + {width}")
        found += [f"(({row} - 1)*{pitch} + {width})*{n}" for n in names if n not in (row, pitch, width)]
    return tuple(dict.fromkeys(found))


def _sums(names: Sequence[str]) -> list[str]:
    """Rows of several parts side by side: chosen and shared ones, queries with keys and values."""
    found = []
    for a, b in permutations(names, 2):
        rest = [n for n in names if n not in (a, b)]
        sums = [f"({a} + 2*{b})", *([f"({a} + {b})"] if names.index(a) < names.index(b) else [])]
        found += [f"{of}*{p}" for of in sums for p in (*rest, *map("*".join, combinations(rest, 2)))]
    return found


def fit(trials: Sequence[Trial], grids: Sequence[str] = (), rows: Sequence[str] = ()) -> Extent | None:
    """The simplest expression that gives what was touched in every trial; None where none does.

    `grids` are expressions for extents of the launch's grid: a buffer may have so many elements for each block. `rows` are
    lengths that a row of the buffer may have.
    A kernel may leave the end of a buffer alone, as a stencil does with its border. So where nothing fits exactly, the product of
    sizes counts, or a small multiple of one, that covers every trial most closely and is larger by no more than a few rows.
    """
    if not trials or any(touched <= 0 for _, touched in trials):
        return None
    if (len(trials) > 1 or not trials[0][0]) and len({touched for _, touched in trials}) == 1:
        return Extent(str(trials[0][1]), True)
    names = [*trials[0][0]]
    exact = _values(tuple(tuple(sizes.items()) for sizes, _ in trials)).get(tuple(touched for _, touched in trials))
    if exact is not None:
        return Extent(exact, True)
    several = [*products(names), *(_sums(names) if len(names) <= _MOST_ROWS else [])]
    for text in several if len(trials) > 1 else ():
        values = [value_at(text, sizes) or 0 for sizes, _ in trials]
        times, rest = divmod(trials[0][1], values[0]) if values[0] else (0, 1)
        if times > 1 and not rest and all(touched == times * v for (_, touched), v in zip(trials, values, strict=True)):
            return Extent(f"{times}*{text}", True)  # rows of a constant length
    for text in grids:
        blocks = [value_at(text, sizes) or 0 for sizes, _ in trials]
        each = {touched / count if count else 0.0 for (_, touched), count in zip(trials, blocks, strict=True)}
        if len(set(blocks)) > 1 and len(each) == 1 and (own := each.pop()) >= 1 and own == int(own):
            return Extent(f"{int(own)}*({text})", True)
    larger = [f"{k}*{p}" for k in (2, 3, 4) for p in products(names)]
    larger += [f"{n}*{row}" for row in rows for n in names]
    covering = [p for p in products(names) + larger if all(_covers(p, sizes, touched) for sizes, touched in trials)]

    def excess(text: str) -> float:
        return sum((value_at(text, sizes) or 0) / touched for sizes, touched in trials)

    return Extent(min(covering, key=lambda p: (excess(p), p.count("*"), p)), False) if covering else None


@lru_cache(maxsize=16)
def _values(trials: tuple[tuple[tuple[str, int], ...], ...]) -> Mapping[tuple[int | None, ...], str]:
    """The simplest expression for each series of values at these sizes: a draft fits each of its buffers several times."""
    found: dict[tuple[int | None, ...], str] = {}
    every = [dict(sizes) for sizes in trials]
    for text in candidates([name for name, _ in trials[0]]):
        found.setdefault(tuple(value_at(text, sizes) for sizes in every), text)
    return found


def _covers(product: str, sizes: Mapping[str, int], touched: int) -> bool:
    total = value_at(product, sizes) or 0
    lengths = [sizes[name] for name in set(re.split(r"[*(), ]+", product)) if sizes.get(name, 0) >= _LEAST_ROWS]
    slack = 2 + sum(2 * total // length for length in lengths)
    return touched <= total <= touched + min(slack, touched // 2 + 2)  # many short rows are no few


def as_others(trials: Sequence[Trial], sizes: Sequence[str]) -> str:
    """The smallest size of other buffers that has room for all that was touched of one whose indices are found in data; "" for none."""
    if len(trials) < 2 or len({touched for _, touched in trials}) == 1:
        return ""
    room = [s for s in dict.fromkeys(sizes) if all((value_at(s, chosen) or 0) >= touched for chosen, touched in trials)]
    return min(room, key=lambda s: value_at(s, trials[-1][0]) or 0, default="")


def value_at(text: str, sizes: Mapping[str, int]) -> int | None:
    """The value of an expression at these sizes; None where it has none."""
    try:
        return evaluate_int(text, sizes)
    except ArithmeticError_:
        return None
