"""Which launches of a program are recorded with their arguments: of the kernels that take time, the most different ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from engine.capture.raw_records import RawTime, Triple

_LATER = 2  # the occurrence that is recorded where there are so many: the first often finds zeros everywhere

Config = tuple[Triple, Triple, int]


def different_launches(rows: Sequence[RawTime], most: int) -> list[RawTime]:
    """Up to `most` launches of one kernel: the one that takes most time, then those farthest from the chosen ones.

    The distance of two launches is that of the logarithms of their grids, blocks and shared memory.
    """
    left = sorted(rows, key=lambda r: (-r.total_ns, r.grid, r.block, r.shared))
    chosen = left[:1]
    while len(chosen) < min(most, len(left)):
        far = max((r for r in left if r not in chosen), key=lambda r: min(_distance(r, c) for c in chosen))
        chosen.append(far)
    return chosen


def _distance(a: RawTime, b: RawTime) -> float:
    pairs = zip((*a.grid, *a.block, a.shared), (*b.grid, *b.block, b.shared), strict=True)
    return sum(abs(math.log(max(1, x)) - math.log(max(1, y))) for x, y in pairs)


def write_plan(path: Path, rows: Sequence[RawTime]) -> None:
    """Name these launches to the injection library, one a line: numbers, and the kernel's name in hexadecimal."""
    lines = []
    for row in rows:
        # A graph is built once, however often it is launched.
        occurrence = 0 if row.in_graphs else min(_LATER, row.count - 1)
        numbers = (*row.grid, *row.block, row.shared, occurrence)
        lines.append(f"{row.kernel.encode().hex()} {' '.join(map(str, numbers))}\n")
    path.write_text("".join(lines), encoding="ascii")
