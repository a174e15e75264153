"""The share of a kernel's work at each source line."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from engine.predict.counts import KernelCounts
from engine.profile.source_lines import SourceLines

_LEAST, _MOST = 0.005, 200  # of all that was counted, below which a line is left out; lines of one program. Ours


@dataclass(frozen=True)
class LineWeight:
    """One source line (1-based, of the kernel's file) and its shares, 0 to 1, of the launches' warp instructions and of the sectors that
    they move between L1 and L2. None: not counted."""

    line: int
    instructions: float | None
    sectors: float | None


def counted_lines(steps: Iterable[SourceLines]) -> tuple[LineWeight, ...]:
    """From Nsight Compute's counters of single instructions, over all steps."""
    executed: dict[int, float] = defaultdict(float)
    sectors: dict[int, float] = defaultdict(float)
    for step in steps:
        _add(executed, step.executed.items())
        _add(sectors, step.sectors.items())
    return _weights(_shares(executed), _shares(sectors))


def predicted_lines(kernels: Sequence[KernelCounts]) -> tuple[LineWeight, ...]:
    """From the accesses counted on the CPU, over all steps. Instructions are not counted by line there."""
    sectors: dict[int, float] = defaultdict(float)
    for kernel in kernels:
        _add(sectors, ((site.line, site.passes) for site in kernel.sites if site.space == "global"))
    return _weights(None, _shares(sectors))


def _add(sums: dict[int, float], counts: Iterable[tuple[int, float]]) -> None:
    for line, count in counts:
        sums[line] += count


def _shares(sums: Mapping[int, float]) -> Mapping[int, float] | None:
    """Of the whole, which includes what is on no known line (0)."""
    total = sum(sums.values())
    return {line: count / total for line, count in sums.items() if line} if total > 0 else None


def _weights(instructions: Mapping[int, float] | None, sectors: Mapping[int, float] | None) -> tuple[LineWeight, ...]:
    def share(of: Mapping[int, float] | None, line: int) -> float | None:
        return None if of is None else round(of.get(line, 0.0), 4)

    every = sorted({*(instructions or {}), *(sectors or {})})
    found = [LineWeight(line, share(instructions, line), share(sectors, line)) for line in every]
    found = [w for w in found if max(w.instructions or 0.0, w.sectors or 0.0) >= _LEAST]
    heaviest = sorted(found, key=lambda w: (-max(w.instructions or 0.0, w.sectors or 0.0), w.line))[:_MOST]
    return tuple(sorted(heaviest, key=lambda w: w.line))
