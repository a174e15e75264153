"""Sizes that no spec names: drawn anew in each run around the named ones, so that no kernel can know what it is checked on."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping

from engine.errors import SpecError
from engine.spec.data import bytes_needed, scalars
from engine.spec.kernel_spec import Case, KernelSpec

MOST_BLOCKS_Y = 65_535  # of a grid in y and z (CUDA programming guide, table of compute capabilities)
_MULTIPLES = (32, 64, 128, 256)  # what blocks and tiles are multiples of
_TRIES = 60
_BETWEEN = 0.75  # of the large cases lie anywhere between 1 and the timed size, on a logarithmic scale
_KINDS = ("odd", "even", "block")
_GROWTH = 4  # a secret case has at most so many times the bytes of the largest check case
_LEAST_BYTES = 64 << 10

Sizes = Mapping[str, int | float]


def secret_cases(
    spec: KernelSpec, rng: random.Random, *, aligned: bool = False, most: int = 6, large_bytes: int = 0
) -> tuple[Case, ...]:
    """Proposed cases, each a named one with another value of one size. The original decides which of them are legal.

    With `aligned` a size stays a multiple of what all its named values are multiples of. With `large_bytes` every other case is made
    from a timing case, with a value near the timed one or anywhere below it, and has at most so many bytes.
    """
    names = _shape_names(spec)
    if not names or not spec.check:
        return ()
    limit = max(_LEAST_BYTES, _GROWTH * max(bytes_needed(spec, case) for case in spec.check))
    named = {tuple(sorted(case.sizes.items())) for case in (*spec.check, *spec.time)}
    found: dict[tuple[tuple[str, int | float], ...], Case] = {}
    for turn in range(_TRIES):
        if len(found) == most:
            break
        name = names[turn % len(names)]
        large = bool(large_bytes and spec.time and turn // len(names) % 2)
        base = rng.choice(spec.time if large else spec.check)
        value = _near(spec, name, int(base.sizes[name]), turn // len(names) % len(_KINDS), rng)
        if large and rng.random() < _BETWEEN:
            value = int(math.exp(rng.uniform(0.0, math.log(max(1, base.sizes[name])))))
        step = _common(spec, name) if aligned else 1
        value = max(step, value // step * step)
        case = Case(f"{name}={value}, drawn", {**base.sizes, name: value})
        key = tuple(sorted(case.sizes.items()))
        if key not in named and _legal(spec, case, large_bytes if large else limit):
            found.setdefault(key, case)
    return tuple(found.values())


def wide_sizes(spec: KernelSpec, rng: random.Random) -> tuple[Sizes, ...]:
    """Sizes with more than 65,535 of one extent: a launch with one block in y for each cannot be made. Nothing is run on them."""
    if not spec.check:
        return ()
    smallest = min(spec.check, key=lambda case: bytes_needed(spec, case))
    return tuple({**smallest.sizes, name: MOST_BLOCKS_Y + rng.randrange(1, 5000)} for name in _shape_names(spec))


def _shape_names(spec: KernelSpec) -> list[str]:
    """Whole sizes that decide how large a buffer is."""
    used = {word for a in spec.arguments if a.role != "scalar" for word in re.findall(r"[A-Za-z_]\w*", a.size)}
    cases = (*spec.check, *spec.time)
    return sorted(name for name in used if all(isinstance(case.sizes.get(name), int) for case in cases))


def _common(spec: KernelSpec, name: str) -> int:
    return math.gcd(*(int(case.sizes[name]) for case in (*spec.check, *spec.time))) or 1


def _near(spec: KernelSpec, name: str, value: int, kind: int, rng: random.Random) -> int:
    """A value near a named one. Kinds take turns, so that few cases have odd and even values and edges of blocks among them."""
    block = rng.choice(_MULTIPLES)
    largest = max(int(case.sizes[name]) for case in spec.check)
    if _KINDS[kind] == "odd":
        return rng.choice(
            (value - 1 | 1, value + 1 | 1, (value | 1) + 2 * rng.randrange(1, 4), rng.randrange(2 * largest) | 1)
        )
    if _KINDS[kind] == "even":
        return rng.choice(
            (value - 1 & -2, value + 1 & -2, (value & -2) + 2 * rng.randrange(1, 4), 2 * rng.randrange(1, largest + 1))
        )
    return block * (value // block + rng.randrange(1, 3)) + rng.choice((-1, 0, 1))


def _legal(spec: KernelSpec, case: Case, limit: int) -> bool:
    try:
        scalars(spec, case)
        return bytes_needed(spec, case) <= limit
    except SpecError:
        return False
