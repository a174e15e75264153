"""What the runtime wrote, in words. The process ran a stranger's code: what it says is data, bounded and checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from engine.cpu.condition_marks import MOST
from engine.cpu.jobs import CpuFinding, FindingKind
from engine.cpu.object_lines import Lines
from engine.model import LaunchConfig
from engine.predict.counts import AccessCounts, KernelCounts, Kind, SiteCounts

MAX_RESULT_BYTES = 1 << 20
_SHARED_BASE = 1000
_MOST_LINES = 10_000  # a line for each marked condition, and what else a run reports
_KINDS: dict[str, FindingKind] = {kind: kind for kind in get_args(FindingKind)}
# Ends that have a kind of their own. The signal is what the compiler puts where behaviour is undefined (Toolchain.strict_flags).
_CRASHES = {"signal_4": "undefined", "misaligned": "misaligned"}
_SIGNALS = {7: "a bus error", 8: "an integer division by zero or overflow",
            11: "an access to unmapped memory, or a stack overflow"}  # fmt: skip


@dataclass
class Report:
    """One job's report: findings, elements touched and written by buffer number, counts."""

    findings: list[CpuFinding] = field(default_factory=list)
    touched: dict[int, int] = field(default_factory=dict)
    written: dict[int, int] = field(default_factory=dict)
    seen: dict[int, int] = field(default_factory=dict)  # outcomes of marked conditions, as in CpuRun
    counts: AccessCounts | None = None
    complete: bool = False
    limited: bool = False


def _at(line: int, file: str) -> str:
    """The place that a line is, "" where it is not known; `file` is "" for the kernel's own."""
    return "" if not line else f"line {line} of {file}" if file else f"line {line}"


def _element(array: str, index: int) -> str:
    return f"{array}[{index}]" if array else "memory outside all arrays"


@dataclass(frozen=True)
class _Access:
    """Where an access goes wrong: element `index` of `total`, of `size` bytes. Other reports have their own numbers there."""

    write: int
    array: str
    index: int
    size: int
    total: int
    place: str  # "" where it is not known


def _message(kind: str, extra: str, access: _Access) -> str:
    array, index, size, total, place = access.array, access.index, access.size, access.total, access.place
    where = f" ({place})" if place else ""
    verb = "writes" if access.write else "reads"
    match kind, extra:
        case "out_of_bounds" | "shared_out_of_bounds", "nowhere":
            return f"{verb} memory outside all arrays{where}"
        case "out_of_bounds" | "shared_out_of_bounds", _:
            shared = "shared array " if kind.startswith("shared") else ""
            return f"{verb} {shared}{_element(array, index)}, which has {total} element{'s' * (total != 1)}{where}"
        case "uninitialised", _:
            return f"reads {_element(array, index)} before it is written{where}"
        case "stale_read", _:
            return f"reads {_element(array, index)} through the read-only cache after this launch wrote it{where}"
        case "input_written", _:
            return f"writes {_element(array, index)}, an input{where}"
        case "barrier_divergence", "two_barriers":
            return f"threads of a block wait at different barriers: {place} and line {index}"
        case "barrier_divergence", "skipped":
            return f"the barrier at {place} is not reached by all threads of the block"
        case "barrier_divergence", "warp_op":
            return f"lanes of a warp execute different warp operations: {place} and line {index}"
        case "barrier_divergence", "mask":
            return f"lane {index} calls the warp operation at {place} with a mask that does not contain it"
        case "deadlock", "warp":
            other = f", which wait at line {index}" if index and f"line {index}" != place else ""
            return f"lanes wait at {place} for lanes of their warp that never arrive{other}"
        case "deadlock", _:
            other = f" while others wait at line {index}" if index and f"line {index}" != place else ""
            return f"threads wait at the barrier at {place}{other}: deadlock"
        case "sample_full", _:
            return "writes or reads more elements than are listed of sampled blocks"
        case "assert", _:
            return f"an assertion fails{where}"
        case "misaligned", _:
            return (
                f"{verb} {size} bytes at {_element(array, index)}, an address that is not a multiple of {size}{where}"
            )
        case "crash", "argument_count":
            return f"the kernel takes {index} arguments, the spec has {size}"
        case "crash", "argument_size":
            return f"argument {index + 1} of the kernel has {size} bytes, the spec's argument a different size"
        case "crash", "constant_size":
            return f"the __constant__ variable {index + 1} of the spec has {size} bytes, its contents another number"
        case "crash", "shared_size":
            return f"a shared array exceeds the limit of a block{where}"
        case "undefined", _:
            return f"shifts by the width of a type or more, indexes past the end of an array, or assumes what is false{where}"
        case "crash", _:
            number = int(extra.removeprefix("signal_")) if re.fullmatch(r"signal_\d{1,3}", extra) else 0
            return f"terminates with {_SIGNALS.get(number, 'a signal')}"
    return kind.replace("_", " ")


def _finding(words: Sequence[str], lines: Lines, names: Sequence[str]) -> tuple[CpuFinding, str]:
    _, kind, *rest = words
    pc, line, array_number = (int(w) for w in rest[:3])
    shared_name = rest[3][:80]
    index, size, write, element, total = (int(w) for w in rest[4:9])
    coordinates = [int(w) for w in rest[9:15]]
    step, has_thread, extra = int(rest[15]), rest[16] == "1", rest[17]
    file, line = ("", line) if line else lines.place(pc)
    array = ""
    if array_number >= _SHARED_BASE:
        array = shared_name if re.fullmatch(r"\w+", shared_name) else "shared"
    elif 0 <= array_number < len(names):
        array = names[array_number]
    elements = total // max(element, 1)
    kind = _CRASHES.get(extra, kind) if kind == "crash" else kind
    name = _KINDS[kind]
    message = _message(kind, extra, _Access(write, array, index, size, elements, _at(line, file)))
    thread = (coordinates[0], coordinates[1], coordinates[2]) if has_thread else None
    block = (coordinates[3], coordinates[4], coordinates[5]) if has_thread else None
    found = CpuFinding(name, message, line, array, index if array else None, thread, block, step, file)
    return found, f"{extra} {write}"


def _join_races(sides: list[tuple[CpuFinding, str]]) -> list[CpuFinding]:
    """Two sides of a race as one finding; the same pair of lines only once."""
    groups: dict[str, list[tuple[CpuFinding, str]]] = {}
    for found, extra in sides:
        match = re.match(r"race_(\d+)_", extra)
        groups.setdefault(match[1] if match else extra, []).append((found, extra))
    result: dict[tuple[object, ...], CpuFinding] = {}
    for group in groups.values():
        first, _ = group[0]
        array = next((f.array for f, _ in group if f.array), "")
        verbs = [("updates" if "atomic" in e else "writes") if e.endswith("1") else "reads" for _, e in group]
        parts = [f"one thread {verb} it at {_at(f.line, f.file)}" for (f, _), verb in zip(group, verbs, strict=True)]
        if len(parts) == 2:
            parts[1] = parts[1].replace("one thread", "another")
        what = f"'{array}'" if array else "a variable"
        message = f"race on {what}: {', '.join(parts)}, with no order between them"
        found = CpuFinding("race", message, first.line, array, first.index, None, None, first.step, first.file)
        result.setdefault((array, *sorted(f.line for f, _ in group)), found)
    return list(result.values())


def read_report(
    text: str, lines: Lines, names: Sequence[str], elements: Sequence[int], launches: Sequence[LaunchConfig]
) -> Report:
    """The report of one job from the text that its process wrote. Lines that make no sense are passed over.

    `names` and `elements` are the buffers' names and element sizes in bytes, by number.
    """
    report = Report()
    races: list[tuple[CpuFinding, str]] = []
    steps: dict[int, list[int]] = {}
    sites: list[list[int]] = []
    for row in text.splitlines()[:_MOST_LINES]:
        words = row.split()
        try:
            match words[0] if words else "":
                case "finding" if len(words) == 20 and words[1] in _KINDS:
                    found, extra = _finding(words, lines, names)
                    if found.kind == "race":
                        races.append((found, extra))
                    else:
                        report.findings.append(found)
                case "touched" if len(words) == 3:
                    number, end = int(words[1]), int(words[2])
                    if 0 <= number < len(names):
                        report.touched[number] = -(-end // elements[number])
                case "written" if len(words) == 3:
                    number, count = int(words[1]), int(words[2])
                    if 0 <= number < len(names):
                        report.written[number] = count // elements[number]
                case "step" if len(words) == 11:
                    steps[int(words[1])] = [int(w) for w in words[2:]]
                case "site" if len(words) == 14:
                    sites.append([int(w) for w in words[1:]])
                case "seen" if len(words) == 3 and 0 <= int(words[1]) < MOST:
                    report.seen[int(words[1])] = int(words[2])
                case "limited":
                    report.limited = True
                case "end":
                    report.complete = True
        except (ValueError, IndexError):
            continue
    report.findings += _join_races(races)
    if steps:
        report.counts = _counts(steps, sites, lines, names, launches)
    return report


def _counts(
    steps: dict[int, list[int]],
    sites: list[list[int]],
    lines: Lines,
    names: Sequence[str],
    launches: Sequence[LaunchConfig],
) -> AccessCounts:
    kernels = []
    for number, launch in enumerate(launches):
        blocks, counted, accesses, logged, barriers, warp_loads, loads, stores, block_loads = steps.get(number, [0] * 9)
        scale = blocks / counted * (accesses / logged) if counted and logged else 0.0
        found: dict[tuple[object, ...], SiteCounts] = {}
        for (
            step,
            pc,
            array,
            write,
            atomic,
            size,
            requests,
            lanes,
            cache_lines,
            sectors,
            ways,
            same,
            block_sectors,
        ) in sites:
            if step != number:
                continue
            shared = array >= _SHARED_BASE
            name = names[array] if 0 <= array < len(names) else ""
            kind: Kind = "atomic" if atomic else "store" if write else "load"
            line = lines.line(pc)
            key = (line, shared, kind, size, array)
            old = found.get(key)
            found[key] = SiteCounts(
                line, "shared" if shared else "global", kind, size,
                (old.requests if old else 0.0) + requests * scale, (old.lanes if old else 0.0) + lanes * scale,
                (old.passes if old else 0.0) + (ways if shared else sectors) * scale, name,
                (old.same_address if old else 0.0) + same * scale,
                (old.cache_lines if old else 0.0) + cache_lines * scale,
                (old.block_bytes if old else 0.0) + 32.0 * block_sectors * scale,
            )  # fmt: skip
        kernels.append(
            KernelCounts(
                launch,
                tuple(found.values()),
                32.0 * loads,
                32.0 * stores,
                float(barriers),
                float(warp_loads),
                32.0 * block_loads * scale,
            )
        )
    return AccessCounts(tuple(kernels))
