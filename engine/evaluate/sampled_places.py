"""Which blocks of a launch are sampled, where another launch's lie, and smaller sizes in the place of what cannot be run."""

import itertools
import math
import random
from collections.abc import Iterator, Sequence

from engine.model import LaunchConfig
from engine.verify.secret_sizes import Sizes

_SPREAD = 16  # blocks at equal distances: of those whose indices 32 bits cannot count one is among them. Ours
_MOST_BLOCKS = 96  # of a candidate's sample
_MOST_A_SIDE = 6  # blocks of a candidate in the place of one of the original, along one axis
_SHRINKS = 6  # by a quarter each, of a size that is too large to be launched. Ours


def shrinking(sizes: Sizes) -> Iterator[Sizes]:
    """Sizes with a smaller value of the largest one, for a kernel that cannot be launched with it."""
    name = max(sizes, key=lambda each: sizes[each])
    value = int(sizes[name])
    for _ in range(_SHRINKS):
        value = value * 3 // 4
        yield {**sizes, name: value}


def corners(launch: LaunchConfig, rng: random.Random) -> tuple[int, ...]:
    """The first and the last block, their neighbours along each axis, and two of those between."""
    x, y, z = launch.grid
    last = x * y * z - 1
    steps = [0, *(step for step, extent in ((1, x), (x, y), (x * y, z)) if extent > 1)]
    near = {at for step in steps for at in (step, last - step)}
    return tuple(sorted({*near, rng.randint(0, last), rng.randint(0, last)}))


def spread(launch: LaunchConfig) -> tuple[int, ...]:
    """Blocks at equal distances in linear order, the first and the last among them."""
    last = launch.blocks - 1
    return tuple(sorted({last * at // (_SPREAD - 1) for at in range(_SPREAD)}))


def counterparts(blocks: Sequence[int], old: LaunchConfig, new: LaunchConfig) -> tuple[int, ...]:
    """The blocks of another launch that lie where these lie, axis by axis and in linear order."""
    if old.grid == new.grid:
        return tuple(blocks)
    (x, y, _), last = new.grid, new.blocks - 1
    found = {0, last}
    for block in blocks:
        place = (block % old.grid[0], block // old.grid[0] % old.grid[1], block // old.grid[0] // old.grid[1])
        sides = [_scaled(at, o, n) for at, o, n in zip(place, old.grid, new.grid, strict=True)]
        found |= {i + x * (j + y * k) for i, j, k in itertools.product(*sides)}
        found |= set(_scaled(block, old.blocks, new.blocks))
    chosen = sorted(found)
    step = max(1, math.ceil(len(chosen) / _MOST_BLOCKS))
    return tuple(sorted({*chosen[::step], 0, last}))


def _scaled(at: int, old: int, new: int) -> list[int]:
    """Where a block can lie among `new` blocks that cover the same elements as `old`: both counts may have been rounded up."""
    first, last = at * (new - 1) // old, new - 1
    if old > 1:
        last = min(last, math.ceil((at + 1) * new / (old - 1)) - 1)
    return sorted({*range(first, min(last + 1, first + _MOST_A_SIDE)), last})


def fraction(sizes: Sizes, of: int) -> Sizes:
    """Sizes with a part of the largest one."""
    name = max(sizes, key=lambda each: sizes[each])
    return {**sizes, name: max(1, int(sizes[name]) // of)}
