"""What the injection library wrote, as dataclasses. The program could write there too, so every file is hostile and bounded."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.process.decode import NotThis, decode, load

_MAX_FILES = 512  # processes of one program, times three
_MAX_BYTES = 64 << 20
_MAX_LINE = 4 << 20
_MAX_LINES = 50_000
_BLOB = re.compile(r"[0-9]{1,10}-[0-9]{1,10}\.bin")

Triple = tuple[int, int, int]


@dataclass(frozen=True)
class RawTime:
    """Launches of one kernel with one grid, block and dynamic shared memory (bytes); times in nanoseconds."""

    kernel: str
    demangled: str
    grid: Triple
    block: Triple
    shared: int
    static_shared: int
    registers: int
    count: int
    total_ns: int
    min_ns: int
    max_ns: int
    in_graphs: int


@dataclass(frozen=True)
class RawPointer:
    """A word of an argument that is an address of GPU memory. `before` and `after` name files of `recorded` bytes."""

    at: int
    memory: str
    address: int
    allocation: int
    offset: int
    recorded: int
    inner: int
    before: str
    after: str


@dataclass(frozen=True)
class RawArgument:
    """One argument: its offset and size in bytes, its bytes in hexadecimal, and the addresses in it."""

    offset: int
    size: int
    data: str
    pointers: tuple[RawPointer, ...]


@dataclass(frozen=True)
class RawLaunch:
    """One recorded launch. `contents` is "" where its buffers were copied, else why not."""

    kernel: str
    demangled: str
    call: str
    grid: Triple
    block: Triple
    cluster: Triple
    shared: int
    contents: str
    arguments: tuple[RawArgument, ...]


@dataclass(frozen=True)
class Times:
    """What the first pass recorded, of all processes together."""

    rows: tuple[RawTime, ...]
    processes: int
    ended: bool  # every process wrote its last records
    dropped: int  # launches without a record


@dataclass(frozen=True)
class _End:
    ended: bool
    dropped: int
    not_kept: int


@dataclass(frozen=True)
class _Note:
    note: str
    detail: str


def read_times(folder: Path) -> tuple[Times, list[str]]:
    """The first pass, and a sentence for each file that is not as the library writes it."""
    rows: dict[tuple[str, Triple, Triple, int], RawTime] = {}
    problems: list[str] = []
    processes, ended, dropped = 0, True, 0
    for path in _files(folder, "times"):
        processes, whole = processes + 1, False
        try:
            for data in _lines(path):
                if isinstance(data, dict) and "ended" in data:
                    end = decode(_End, data)
                    whole, dropped = end.ended, dropped + end.dropped + end.not_kept
                    continue
                row = _plain_names(decode(RawTime, data))
                _check_time(row)
                key = (row.kernel, row.grid, row.block, row.shared)
                rows[key] = _sum(rows[key], row) if key in rows else row
        except NotThis as error:
            problems.append(f"{path.name}: {error}")
        ended = ended and whole
    return Times(tuple(rows.values()), processes, ended, dropped), problems


def read_launches(folder: Path) -> tuple[list[RawLaunch], list[str]]:
    """The second pass, in the order of recording, and a sentence for each file that is not as the library writes it."""
    found: list[RawLaunch] = []
    problems: list[str] = []
    for path in _files(folder, "launches"):
        try:
            for data in _lines(path):
                launch = decode(RawLaunch, data)
                pointers = [tuple(_pointer(p) for p in a.pointers) for a in launch.arguments]
                arguments = tuple(
                    RawArgument(a.offset, a.size, _hexadecimal(a.data, a.size), p)
                    for a, p in zip(launch.arguments, pointers, strict=True)
                )
                found.append(
                    RawLaunch(
                        _name(launch.kernel), _name(launch.demangled), _name(launch.call), launch.grid, launch.block,
                        launch.cluster, launch.shared, _name(launch.contents), arguments,
                    )
                )  # fmt: skip
        except NotThis as error:
            problems.append(f"{path.name}: {error}")
    return found, problems


def read_notes(folder: Path) -> list[tuple[str, str]]:
    """What the library could not do: a code of its own, or a number of CUPTI's, with a detail."""
    found: list[tuple[str, str]] = []
    for path in _files(folder, "notes"):
        try:
            for data in _lines(path):
                each = decode(_Note, data)
                found.append((_name(each.note), _name(each.detail)))
        except NotThis:
            continue
    return list(dict.fromkeys(found))[:20]


def _files(folder: Path, kind: str) -> list[Path]:
    pattern = re.compile(rf"{kind}-[0-9]{{1,10}}\.jsonl")
    return sorted(p for p in folder.iterdir() if pattern.fullmatch(p.name))[:_MAX_FILES]


def open_regular(path: Path, most: int) -> int:
    """A file descriptor of a regular file of at most `most` bytes; the caller closes it. Raises NotThis."""
    try:
        # Not blocking: a named pipe would wait for a writer.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise NotThis(f"cannot be read ({error.strerror})") from None
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode) or status.st_size > most:
        os.close(handle)
        raise NotThis(f"is not a regular file of at most {most} bytes")
    return handle


def _lines(path: Path) -> Iterator[Any]:
    with os.fdopen(open_regular(path, _MAX_BYTES), "rb") as file:
        for number in range(_MAX_LINES):
            line = file.readline(_MAX_LINE)
            if not line:
                return
            if not line.endswith(b"\n"):
                raise NotThis(f"line {number + 1} is truncated or too long")
            yield load(line)
    raise NotThis(f"has more than {_MAX_LINES} lines")


def _name(text: str) -> str:
    """Text that the library wrote in hexadecimal."""
    try:
        return bytes.fromhex(text).decode("utf-8", "replace")
    except ValueError:
        raise NotThis("has a name that is not hexadecimal") from None


def _hexadecimal(text: str, size: int) -> str:
    try:
        if len(bytes.fromhex(text)) == size:
            return text
    except ValueError:
        pass
    raise NotThis("has an argument whose bytes do not have its size")


def _plain_names(row: RawTime) -> RawTime:
    fields = {name: getattr(row, name) for name in row.__dataclass_fields__}
    return RawTime(**{**fields, "kernel": _name(row.kernel), "demangled": _name(row.demangled)})


def _check_time(row: RawTime) -> None:
    if min(row.count, row.total_ns, row.min_ns, row.max_ns, row.in_graphs, row.shared) < 0 or row.count == 0:
        raise NotThis("has a time or a count below zero")


def _pointer(p: RawPointer) -> RawPointer:
    before, after, memory = _name(p.before), _name(p.after), _name(p.memory)
    if any(name and not _BLOB.fullmatch(name) for name in (before, after)):
        raise NotThis("names a file outside the recording")
    if memory not in ("device", "managed", "host") or min(p.at, p.address, p.allocation, p.offset, p.recorded) < 0:
        raise NotThis("has an invalid pointer")
    return RawPointer(p.at, memory, p.address, p.allocation, p.offset, p.recorded, p.inner, before, after)


def _sum(a: RawTime, b: RawTime) -> RawTime:
    return RawTime(
        a.kernel, a.demangled, a.grid, a.block, a.shared, a.static_shared, a.registers, a.count + b.count,
        a.total_ns + b.total_ns, min(a.min_ns, b.min_ns), max(a.max_ns, b.max_ns), a.in_graphs + b.in_graphs,
    )  # fmt: skip
