"""What a program moves and executes, from counted accesses and machine code: the predicted twins of a profiler's counters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.model import Binary, LaunchConfig
from engine.predict.counts import AccessCounts
from engine.predict.pipe_times import pipe_times_us
from engine.predict.sass import KernelCode
from engine.predict.targets import TargetParameters
from engine.predict.timing_model import executions

_SECTOR = 32


@dataclass(frozen=True)
class Footprint:
    """Bytes asked of L2 and warp instructions executed over all steps, the accesses that they were worked out from, for how long the
    instructions keep each arithmetic pipe busy, and the parts of the predicted time, both in microseconds."""

    moved_bytes: float
    instructions: float
    counts: AccessCounts
    pipes_us: Mapping[str, float] = field(default_factory=dict)
    parts_us: Mapping[str, float] = field(default_factory=dict)


def footprint(
    binary: Binary,
    launches: Sequence[LaunchConfig],
    counts: AccessCounts,
    code: Mapping[str, KernelCode],
    figures: TargetParameters,
) -> Footprint:
    """What a program moves and executes; `counts` are those of these launches.

    Bytes are whole sectors of 32, so an access that wastes sectors counts for what it wastes. What L1 keeps is not known here.
    """
    moved = instructions = 0.0
    pipes: Counter[str] = Counter()
    for entry, launch, counted in zip(binary.entries, launches, counts.kernels, strict=True):
        moved += _SECTOR * counted.total("global")[1]
        if entry in code:
            loops = code[entry].loops
            runs = executions(code[entry], counted, launch)
            instructions += sum(loop.instructions * run for loop, run in zip(loops, runs, strict=True))
            pipes.update(pipe_times_us(code[entry], runs, figures))
    return Footprint(moved, instructions, counts, {name: float(us) for name, us in pipes.items()})
