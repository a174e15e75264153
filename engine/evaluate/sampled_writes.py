"""What sampled blocks of a candidate write beside what those of the original write at the same size."""

from collections.abc import Sequence

import numpy as np

from engine.cpu.jobs import CpuRun
from engine.cpu.sampled import Writes
from engine.model import LaunchConfig


def missing_entries(old: CpuRun, new: CpuRun) -> dict[str, int]:
    """The first entry of each buffer that the original's sample writes, without an atomic, and the candidate's does not."""
    found = {}
    for name, before in old.writes.items():
        left = np.setdiff1d(before.entries[~before.atomic], new.writes[name].entries, assume_unique=True)
        if len(left):
            found[name] = int(left[0])
    return found


def entries_written_twice(old: CpuRun, new: CpuRun) -> dict[str, int]:
    """The first entry of each buffer that several threads of the candidate write without atomics, where the original's write none so."""
    found = {}
    for name, after in new.writes.items():
        several = after.entries[after.several & ~after.atomic]
        before = old.writes[name]
        if len(several) and not (before.several & ~before.atomic).any():
            found[name] = int(several[0])
    return found


def unexpected_entries(old: CpuRun, new: CpuRun) -> dict[str, int]:
    """The first entry of each buffer that the candidate's sample writes and the original's does not."""
    found = {}
    for name, after in new.writes.items():
        other = np.setdiff1d(after.entries, old.writes[name].entries, assume_unique=True)
        if len(other):
            found[name] = int(other[0])
    return found


def block_of(launch: LaunchConfig, blocks: Sequence[int], writes: Writes, entry: int) -> int | None:
    """The block of a launch, of which `blocks` were sampled, that writes an entry, if what blocks write lies as far apart as that of
    the first ones."""
    first = {blocks[at]: low for at, low in writes.lowest.items()}
    if 0 not in first:
        return None
    x, y, _ = launch.grid
    rest, found = entry - first[0], 0
    strides = {step: first[step] - first[0] for step in {1, x, x * y} if step in first}
    for step, stride in sorted(strides.items(), key=lambda pair: -pair[1]):
        if stride > 0 and rest >= stride:
            found += step * (rest // stride)
            rest %= stride
    return found if 0 <= found < launch.blocks else None
