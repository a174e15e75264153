"""From counters of single instructions to the source line that asks for more than it needs."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.profile.counters import SITE_EXECUTED, SITE_IDEAL, SITE_SECTORS, StepProfile

_SECTION = re.compile(r"\s*\.section\s+\.text\.([^,\s]+)")
_LINE = re.compile(r'//## File "(?P<file>[^"]*)", line (?P<line>\d+)(?P<inlined> inlined at)?')
_INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,8})\*/\s+\S")


@dataclass(frozen=True)
class SourceSite:
    """One source line's accesses to global memory: sectors of 32 bytes asked of L2, and how few would do.

    `executed` counts warp instructions, so `sectors / executed` is sectors per request.
    """

    line: int  # 1-based, of the kernel's file
    sectors: float
    ideal: float
    executed: float


@dataclass(frozen=True)
class SourceLines:
    """What counters of single instructions say of a kernel's lines: the access that wastes most, if any does, and the line that
    executes most warp instructions (1-based; None where no line is known) with its share of them.

    `executed` and `sectors` are the warp instructions and the sectors of each line; 0 stands for what is on no line of the file.
    """

    worst: SourceSite | None = None
    hottest: int | None = None
    share: float = 0.0
    executed: Mapping[int, float] = field(default_factory=dict)
    sectors: Mapping[int, float] = field(default_factory=dict)


def source_lines(step: StepProfile, listing: str, file: str) -> SourceLines:
    """Both, from a profile with the counters of `engine.profile.counters.LINES`; see `worst_site` for the arguments."""
    worst = worst_site(step, listing, file)
    executed, sectors = (
        step.counters[n].instances if n in step.counters else {} for n in (SITE_EXECUTED, SITE_SECTORS)
    )
    total = sum(executed.values())
    if total <= 0:
        return SourceLines(worst)
    lines = lines_of(listing, step.kernel, file)
    base = min(executed)
    sums, moved = (_by_line(counts, lines, base) for counts in (executed, sectors))
    hottest = max(sums.keys() - {0}, key=lambda line: (sums[line], -line), default=None)
    return SourceLines(worst, hottest, sums[hottest] / total if hottest is not None else 0.0, sums, moved)


def _by_line(counts: Mapping[int, float], lines: Mapping[int, int], base: int) -> dict[int, float]:
    sums: dict[int, float] = defaultdict(float)
    for address, count in counts.items():
        sums[lines.get(address - base, 0)] += count
    return dict(sums)


def worst_site(step: StepProfile, listing: str, file: str) -> SourceSite | None:
    """The line of `file` with the most sectors beyond what its accesses need; None where there is none, or no line is known.

    `step` is a profile with the counters of `engine.profile.counters.LINES`; `listing` is nvdisasm's text of the same machine
    code, compiled with line information.
    """
    found = [site for site in sites(step, listing, file) if site.sectors > site.ideal]
    return max(found, key=lambda site: site.sectors - site.ideal, default=None)


def sites(step: StepProfile, listing: str, file: str) -> list[SourceSite]:
    """Every line of `file` that accesses global memory, in order."""
    if SITE_SECTORS not in step.counters or SITE_IDEAL not in step.counters:
        return []
    sectors, ideal = step.counters[SITE_SECTORS].instances, step.counters[SITE_IDEAL].instances
    executed = step.counters[SITE_EXECUTED].instances if SITE_EXECUTED in step.counters else {}
    # Addresses are where the code lay on the device. Every instruction counts its executions, the first one too.
    base = min(executed or sectors, default=None)
    if base is None:
        return []
    lines = lines_of(listing, step.kernel, file)
    sums: dict[int, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for address, count in sectors.items():
        line = lines.get(address - base)
        if line and count:
            total = sums[line]
            total[0] += count
            total[1] += ideal.get(address, 0.0)
            total[2] += executed.get(address, 0.0)
    return [SourceSite(line, *total) for line, total in sorted(sums.items())]


def lines_of(listing: str, kernel: str, file: str) -> dict[int, int]:
    """By offset in the kernel's code: the line of `file` that an instruction came from.

    What was inlined counts for the line of `file` that it was inlined into.
    """
    result: dict[int, int] = {}
    inside, line, waiting = False, 0, False
    for row in listing.splitlines():
        if row.split(maxsplit=1)[:1] == [".section"]:
            match = _SECTION.match(row)
            inside, line, waiting = match is not None and match[1] == kernel, 0, False
        elif not inside:
            continue
        elif match := _LINE.search(row):
            # A chain "a inlined at b", "b": the first place that lies in the file is the nearest one to the instruction.
            here = _same(match["file"], file)
            if not waiting:
                line = 0
            if here and line == 0:
                line = int(match["line"])
            waiting = match["inlined"] is not None
        elif match := _INSTRUCTION.match(row):
            waiting = False
            result[int(match[1], 16)] = line
    return {offset: line for offset, line in result.items() if line}


def _same(path: str, file: str) -> bool:
    return path == file or path.endswith(f"/{file}")
