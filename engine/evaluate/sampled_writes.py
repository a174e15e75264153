"""What sampled blocks of a candidate write beside what those of the original write at the same size."""

import numpy as np

from engine.cpu.jobs import CpuRun


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
