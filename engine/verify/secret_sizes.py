"""Sizes that no spec names: drawn anew in each run around the named ones, so that no kernel can know what it is checked on."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence

from engine.errors import SpecError
from engine.model import LaunchConfig
from engine.spec.data import buffer_elements, bytes_needed, scalars
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import Case, KernelSpec

MOST_BLOCKS_Y = 65_535  # of a grid in y and z (CUDA programming guide, table of compute capabilities)
_WIDEST = MOST_BLOCKS_Y + 5000
# Of an extent that an edit may put into the grid's y: tiles of 16 rows reach it, and a million rows are no rare size. Ours
_MILLION = 16 * MOST_BLOCKS_Y
_MULTIPLES = (32, 64, 128, 256)  # what blocks and tiles are multiples of
_TRIES = 60
_BETWEEN = 0.75  # of the large cases lie anywhere between 1 and the timed size, on a logarithmic scale
_KINDS = ("odd", "even", "block")
_GROWTH = 4  # a secret case has at most so many times the bytes of the largest check case
# Of a size that is sampled: such a launch can still be run whole where its blocks raise a doubt
_MOST_SAMPLED = 1 << 20
_SMALL, _SMALL_PAIRS = 8, 16  # one sampled size of so many is small: of so many pairs of numbers, a warp's. Ours
_LEAST_BYTES = 64 << 10
_LONG = ((19.1, 21.0), (24.1, 25.0))  # powers of two that one size alone is drawn between
_BEYOND = 3  # sizes of one name between the timed one and these. Ours
_WIDE = 1 << 33  # elements: 0.6 times that are more than 32 bits count
_MOST_BYTES = 1 << 36  # of a buffer that a GPU can hold. Ours
_FEW, _SEVERAL = 4, 7  # times the smallest case's that the others are at most

Sizes = Mapping[str, int | float]


def secret_cases(
    spec: KernelSpec, rng: random.Random, *, aligned: bool = False, most: int = 6, large_bytes: int = 0
) -> tuple[Case, ...]:
    """Proposed cases, each a named one with another value of one size. The original decides which of them are legal.

    With `aligned` a size stays a multiple of what all its named values are multiples of. With `large_bytes` every other case is made
    from a timing case, with a value near the timed one or anywhere below it, and has at most so many bytes.
    """
    names = shape_names(spec)
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
        value = _near(spec, name, _length(base, name), turn // len(names) % len(_KINDS), rng)
        if large and rng.random() < _BETWEEN:
            value = int(math.exp(rng.uniform(0.0, math.log(_length(base, name)))))
        step = _common(spec, name) if aligned else 1
        value = max(step, value // step * step)
        case = Case(f"{name}={value}, drawn", {**base.sizes, name: value})
        key = tuple(sorted(case.sizes.items()))
        if key not in named and _legal(spec, case, large_bytes if large else limit):
            found.setdefault(key, case)
    return tuple(found.values())


def wide_sizes(spec: KernelSpec, rng: random.Random) -> tuple[Sizes, ...]:
    """Sizes with more than 65,535 of one extent: a launch with one block in y for each cannot be made. Nothing is run on them."""
    return tuple(_wide(spec, {name: rng.randrange(MOST_BLOCKS_Y + 1, _WIDEST) for name in shape_names(spec)}))


def widest_sizes(spec: KernelSpec) -> tuple[Sizes, ...]:
    """For each extent a size that is as wide as any that `wide_sizes` draws."""
    return tuple(_wide(spec, dict.fromkeys(shape_names(spec), _WIDEST)))


def million_sizes(spec: KernelSpec) -> tuple[Sizes, ...]:
    """Sizes with nearly a million of one extent, for originals whose grid does not grow in y or z with it: see `sides_grow`."""
    return tuple(_wide(spec, dict.fromkeys(shape_names(spec), _MILLION)))


def sides_grow(few: LaunchConfig, many: LaunchConfig) -> bool:
    """Whether the grid of the second launch is larger in y or z. A kernel that is launched so has its limit there already, and an edit's
    may be some times lower; one that is not may be launched with any number of rows."""
    return any(after > before for before, after in zip(few.grid[1:], many.grid[1:], strict=True))


def smallest(spec: KernelSpec) -> Sizes | None:
    """The sizes of the smallest check case, which wide sizes are made of."""
    return min(spec.check, key=lambda case: bytes_needed(spec, case)).sizes if spec.check else None


def _wide(spec: KernelSpec, values: Mapping[str, int]) -> Iterator[Sizes]:
    """The smallest check case with one extent so wide, as far as buffers of it can be had."""
    base = smallest(spec)
    if base is None:
        return
    for name, value in values.items():
        sizes = {**base, name: value}
        if _largest(spec, sizes, _MOST_BYTES) < math.inf:
            yield sizes


def sampled_sizes(spec: KernelSpec, rng: random.Random, count: int) -> tuple[Sizes, ...]:
    """Sizes between the check cases and the timed ones, of which some blocks alone are run: each a case with another value of one size.

    They are spread evenly over the orders of magnitude and over the remainders of 256. A third lie beside a power of two, half of
    these at most 16 from it. An eighth are small: one of each pair of numbers to 32, below most check cases.
    """
    names = shape_names(spec)
    if not names or not spec.check:
        return ()
    remainders, near = rng.sample(range(256), 256), rng.sample(range(-16, 17), 33)
    found = []
    for turn in range(count):
        name = names[turn % len(names)]
        low = max(_length(case, name) for case in spec.check)
        high = max(2 * low, *(int(case.sizes[name]) for case in spec.time)) if spec.time else 256 * low
        place = (turn // len(names) + rng.random()) / math.ceil(count / len(names))
        value = int(math.exp(math.log(low) + place * (math.log(min(high, _MOST_SAMPLED)) - math.log(low))))
        if turn // len(names) % _SMALL == 0:
            value = 2 * (turn // len(names) // _SMALL % _SMALL_PAIRS) + rng.randint(1, 2)
        elif turn % 3 == 2:
            apart = near[turn // 6 % len(near)] if turn % 2 else rng.randint(-96, 96)
            value = max(1, (1 << max(1, value.bit_length())) + apart)
        else:
            value = max(1, value // 256 * 256 + remainders[(turn - turn // 3) % 256])
        found.append({**rng.choice(spec.check).sizes, name: value})
    named = [case.sizes for case in spec.check]
    return tuple(sizes for sizes in found if sizes not in named)


def large_sizes(spec: KernelSpec, rng: random.Random, most_bytes: int) -> tuple[Sizes, ...]:
    """The timed sizes, and each with one size so large that a buffer has about 2^30 elements and none over `most_bytes`."""
    timed = [case.sizes for case in spec.time]
    return (*timed, *_grown(spec, rng, timed[-1:], most_bytes, 1 << 30))


def _grown(
    spec: KernelSpec, rng: random.Random, bases: Sequence[Sizes], most_bytes: int, elements: int
) -> Iterator[Sizes]:
    """These sizes, each with one size so large that a buffer has nearly so many elements."""
    for base in bases:
        for name in shape_names(spec):
            wanted = int(rng.uniform(0.6, 0.95) * elements)
            low, high = int(base[name]), 1 << 31
            while high - low > 1:
                middle = (low + high) // 2
                fits = _largest(spec, {**base, name: middle}, most_bytes) <= wanted
                low, high = (middle, high) if fits else (low, middle)
            yield {**base, name: low}


def long_sizes(spec: KernelSpec, rng: random.Random, most_bytes: int) -> tuple[Sizes, ...]:
    """Check cases with one size beyond the timed one, beyond 2^19 and beyond 2^24: what a narrower type, a float or a mask does not hold.

    The others are those of the smallest case, or some times as large: a product with an index that is always zero shows nothing. Then
    the one size is beside a power of two. Those with more elements than 32 bits count are for kernels that allow for them: timed cases,
    and small ones, as a block that goes through all of a timed case's rows takes too long.
    """
    if not spec.check:
        return ()
    smallest = min(spec.check, key=lambda case: bytes_needed(spec, case))
    names, found = shape_names(spec), list[Sizes]()
    for name in names:
        # From the timed size on there may be another algorithm for long rows.
        timed = math.log2(max(_length(case, name) for case in (*spec.time, smallest)))
        for _ in range(_BEYOND if timed + 1.0 < _LONG[0][0] else 0):
            found.append({**smallest.sizes, name: int(2 ** rng.uniform(timed, _LONG[0][0]))})
        for low, high in _LONG:
            several = {other: smallest.sizes[other] * rng.randint(2, _SEVERAL) for other in names}
            beside = (1 << rng.randint(math.ceil(low), math.ceil(high))) + 1
            found.append({**smallest.sizes, name: int(2 ** rng.uniform(low, high))})
            found.append({**smallest.sizes, name: beside})
            found.append({**smallest.sizes, **several, name: beside})
    # Near 2^31 the usual loop over a grid wraps, as honest edits write it; beyond 2^32 a kernel counts in 64 bits or not at all.
    few = {**smallest.sizes, **{name: smallest.sizes[name] * rng.randint(_FEW, _SEVERAL) for name in names}}
    grown = _grown(spec, rng, [*(case.sizes for case in spec.time[-1:]), few], most_bytes, _WIDE)
    found += [sizes for sizes in grown if _largest(spec, sizes, most_bytes) > 1 << 32]
    return tuple(sizes for sizes in found if _largest(spec, sizes, most_bytes) < math.inf)


def _largest(spec: KernelSpec, sizes: Sizes, most_bytes: int) -> float:
    """The elements of the largest buffer; infinite where a buffer is too large."""
    try:
        elements = buffer_elements(spec, Case("", sizes))
        scalars(spec, Case("", sizes))
    except SpecError:
        return math.inf
    if any(count * parse_dtype(spec.argument(name).type).itemsize > most_bytes for name, count in elements.items()):
        return math.inf
    return max(elements.values(), default=math.inf)


def shape_names(spec: KernelSpec) -> list[str]:
    """Whole sizes that decide how large a buffer is."""
    used = {word for a in spec.arguments if a.role != "scalar" for word in re.findall(r"[A-Za-z_]\w*", a.size)}
    cases = (*spec.check, *spec.time)
    return sorted(name for name in used if all(isinstance(case.sizes.get(name), int) for case in cases))


def _length(case: Case, name: str) -> int:
    """A size to draw others around: one that is 0 (a pad, a phase) has neighbours, and no orders of magnitude."""
    return max(1, int(case.sizes[name]))


def _common(spec: KernelSpec, name: str) -> int:
    return math.gcd(*(int(case.sizes[name]) for case in (*spec.check, *spec.time))) or 1


def _near(spec: KernelSpec, name: str, value: int, kind: int, rng: random.Random) -> int:
    """A value near a named one. Kinds take turns, so that few cases have odd and even values and edges of blocks among them."""
    block = rng.choice(_MULTIPLES)
    largest = max(_length(case, name) for case in spec.check)
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
