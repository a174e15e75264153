"""Finds the size expression of a buffer from how much of it a kernel touched at several trial sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from engine.arith import ArithmeticError_, evaluate_int

# Distinct primes: no two products of trial sizes agree by accident, and none is a multiple of a block size.
_PRIMES = (
    5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113,
    127, 131, 137, 139, 149, 151, 157, 163, 167, 173, 179, 181,
)  # fmt: skip
_TRIALS = 4
_CEILS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

Trial = tuple[Mapping[str, int], int]  # sizes, elements touched


@dataclass(frozen=True)
class Extent:
    """A size expression that explains every trial; `exact` is False where it only covers what was touched."""

    text: str
    exact: bool


def trial_sizes(names: Sequence[str]) -> tuple[dict[str, int], ...]:
    """Four sets of co-prime sizes, all different; small enough that the product of up to three stays below 10**6."""
    first = 0 if len(names) > 2 else 6
    count = len(names)
    return tuple(
        {name: _PRIMES[(first + trial * count + at) % len(_PRIMES)] for at, name in enumerate(names)}
        for trial in range(_TRIALS)
    )


def _products(names: Sequence[str]) -> list[str]:
    found = [*names]
    found += ["*".join(pair) for pair in combinations(names, 2)] + [f"{n}*{n}" for n in names]
    for count in (3, 4):
        found += ["*".join(group) for group in combinations(names, count)]
    found += [f"{a}*{a}*{b}" for a, b in permutations(names, 2)] + [f"{n}*{n}*{n}" for n in names]
    return found


def candidates(names: Sequence[str]) -> tuple[str, ...]:
    """Expressions over the sizes that buffers commonly have, the simplest first."""
    products = _products(names)
    simple = products[: len(names) * (len(names) + 3) // 2]  # names, pairs and squares
    found = list(products)
    found += [f"{p} + 1" for p in simple] + [f"{p} - 1" for p in simple] + [f"{p} + 2" for p in names]
    found += [f"{k}*{p}" for k in (2, 3, 4, 8, 16, 32) for p in simple]
    found += [f"{a} + {b}" for a, b in combinations(names, 2)] + [f"{a} + {b} - 1" for a, b in combinations(names, 2)]
    found += [f"({a} + {k})*{b}" for k in (1, 2) for a, b in permutations(names, 2)]
    found += [f"({a} + {k})*({b} + {k})" for k in (1, 2) for a, b in combinations(names, 2)]
    found += [f"{p} + {n}" for p in simple if "*" in p for n in names]
    found += [f"cdiv({p}, {k})" for k in _CEILS for p in simple]
    found += [f"round_up({p}, {k})" for k in _CEILS for p in simple]
    found += [f"cdiv({a}, {k})*{b}" for k in _CEILS for a, b in permutations(names, 2)]
    return tuple(dict.fromkeys(found))


def fit(trials: Sequence[Trial]) -> Extent | None:
    """The simplest expression that gives what was touched in every trial; None where none does.

    A kernel may leave the end of a buffer alone, as a stencil does with its border. So where nothing fits exactly, the
    smallest product of sizes counts that covers every trial and is larger by no more than a few rows.
    """
    if not trials or any(touched <= 0 for _, touched in trials):
        return None
    if len(trials) > 1 and len({touched for _, touched in trials}) == 1:
        return Extent(str(trials[0][1]), True)
    names = sorted(trials[0][0], key=list(trials[0][0]).index)
    for text in candidates(names):
        if all(_value(text, sizes) == touched for sizes, touched in trials):
            return Extent(text, True)
    covering = [p for p in _products(names) if all(_covers(p, sizes, touched) for sizes, touched in trials)]
    return Extent(min(covering, key=lambda p: (p.count("*"), p)), False) if covering else None


def _covers(product: str, sizes: Mapping[str, int], touched: int) -> bool:
    total = _value(product, sizes) or 0
    slack = 2 + sum(2 * total // sizes[name] for name in set(product.split("*")))
    return touched <= total <= touched + slack


def _value(text: str, sizes: Mapping[str, int]) -> int | None:
    try:
        return evaluate_int(text, sizes)
    except ArithmeticError_:
        return None
