"""What Nsight Compute writes: its CSV in two layouts, its errors. Text from a process that ran a stranger's kernel, so data."""

import csv
import math
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from engine.model import LaunchConfig
from engine.profile.counters import Counter, FailureKind

MAX_BYTES = 64 << 20  # a full batch is some 100 KB; the instances of one large kernel some MB
_MAX_COUNTERS = 4096
_MAX_INSTANCES = 1 << 17
# Columns that name the launch; everything else of the wide layout is a counter.
_IDENTITY = frozenset(
    {
        "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
        "Grid Size", "Device", "CC", "Section Name", "Metric Name", "Metric Unit", "Metric Value", "NVTX", "thread Domain",
    }
)  # fmt: skip
_PASSES = re.compile(r'==PROF== Profiling "[^"]*" - (\d+)[^\n]*? - (\d+) pass(?:es)?')
_REPLAYED = "profiler__replayer_passes"
_NO_METRIC = re.compile(r"Failed to find metric (?:regex:\^)?([A-Za-z0-9_\\.:]+)")
_VALUE = re.compile(r"\s*(?P<value>[-+0-9.,eE]+)(?:\s*\((?P<instances>.*)\))?\s*\Z", re.DOTALL)
_ERROR = re.compile(r"==ERROR== (?P<what>[^\n]+)")
_NAME = re.compile(r"[\w.:]{1,200}\Z")


@dataclass
class Row:
    """One profiled launch: the profiler's number of it, the kernel's name as printed, grid and block, counters."""

    id: int
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    counters: dict[str, Counter] = field(default_factory=dict)
    passes: int = 0

    @property
    def passes_known(self) -> int:
        """Passes over the kernel, from the progress lines or from a counter of the profiler's own; 0 where neither says it."""
        told = self.counters.get(_REPLAYED)
        return self.passes or (int(told.value) if told is not None and 0 <= told.value < 1e6 else 0)

    def is_of(self, kernel: str, launch: LaunchConfig) -> bool:
        """Whether this row can be the launch asked for. A layout without grid and block is believed by name alone."""
        if self.kernel != kernel:
            return False
        return self.grid in ((), launch.grid) and self.block in ((), launch.block)


def read(path: Path) -> str:
    """A log, "" where there is none. What wrote it ran a stranger's kernel: no link is followed, no pipe waited for, no more than a
    limit read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(MAX_BYTES).decode("utf-8", "replace")


def parse(text: str) -> list[Row]:
    """The launches in the order they were profiled. What cannot be read is left out; nothing is raised."""
    passes = {int(number): int(count) for number, count in _PASSES.findall(text)}
    rows: dict[int, Row] = {}
    header: list[str] = []
    units: list[str] = []
    limit = csv.field_size_limit(MAX_BYTES)  # the instances of a large kernel are one field
    try:
        for record in csv.reader(_csv_lines(text), strict=False):
            if "Kernel Name" in record:
                header, units = record, []
            elif header and len(record) == len(header):
                if "Metric Name" in header:
                    _long(rows, header, record)
                elif not units and not record[header.index("Kernel Name")].strip():
                    units = record
                else:
                    _wide(rows, header, units, record)
    except csv.Error:  # a field beyond the reader's limit: what came before it stands
        pass
    finally:
        csv.field_size_limit(limit)
    for number, row in rows.items():
        row.passes = passes.get(number, 0)
    return [rows[number] for number in sorted(rows)]


def _csv_lines(text: str) -> Iterator[str]:
    return (line for line in text.split("\n") if not line.startswith("=="))


def _row(rows: dict[int, Row], header: Sequence[str], record: Sequence[str]) -> Row | None:
    fields = dict(zip(header, record, strict=True))
    number = fields.get("ID", "").strip()
    if not number.isdigit() or len(number) > 9:
        return None
    id = int(number)
    if id not in rows:
        rows[id] = Row(
            id, fields["Kernel Name"], _triple(fields.get("Grid Size", "")), _triple(fields.get("Block Size", ""))
        )
    return rows[id]


def _long(rows: dict[int, Row], header: Sequence[str], record: Sequence[str]) -> None:
    row = _row(rows, header, record)
    fields = dict(zip(header, record, strict=True))
    if row is not None:
        _add(row, fields["Metric Name"], fields.get("Metric Unit", ""), fields.get("Metric Value", ""))


def _wide(rows: dict[int, Row], header: Sequence[str], units: Sequence[str], record: Sequence[str]) -> None:
    row = _row(rows, header, record)
    if row is None:
        return
    for index, name in enumerate(header):
        if name not in _IDENTITY:
            _add(row, name, units[index] if units else "", record[index])


def _add(row: Row, name: str, unit: str, text: str) -> None:
    # The raw page calls some metrics by their section, "Memory/dram__bytes.sum"; the name itself is the last part.
    name = name.rpartition("/")[2].strip()
    counter = _counter(unit, text)
    if counter is not None and _NAME.match(name) and len(row.counters) < _MAX_COUNTERS:
        row.counters[name] = counter


def _counter(unit: str, text: str) -> Counter | None:
    match = _VALUE.match(text)
    value = None if match is None else _number(match["value"])
    if match is None or value is None:
        return None  # "n/a", "nan", "(!) …"
    instances: dict[int, float] = {}
    for item in (match["instances"] or "").split(";")[:_MAX_INSTANCES]:
        key, _, share = item.rpartition(":")
        address, number = _address(key.strip()), _number(share.strip())
        if address is not None and number is not None:
            instances[address] = number
    return Counter(value, unit.strip()[:40], instances)


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _address(text: str) -> int | None:
    try:
        return int(text, 0) if len(text) <= 20 else None
    except ValueError:
        return None


def _triple(text: str) -> tuple[int, ...]:
    """Three whole numbers from "(128, 1, 1)" or "128, 1, 1"; () for anything else."""
    parts = [part.strip() for part in text.strip().strip("()").split(",")]
    if len(parts) != 3 or not all(part.isdigit() and len(part) <= 10 for part in parts):
        return ()
    return tuple(int(part) for part in parts)


@dataclass(frozen=True)
class Complaint:
    """What the profiler says went wrong. `metrics` are names it does not know."""

    kind: FailureKind
    reason: str
    metrics: frozenset[str] = frozenset()


def complaint(text: str, asked: Sequence[str]) -> Complaint | None:
    """The first error in the profiler's own words, sorted; None when it reports none."""
    if "ERR_NVGPUCTRPERM" in text:
        return Complaint(
            "permission",
            "the driver does not allow ordinary users to read performance counters (ERR_NVGPUCTRPERM): an administrator can "
            "allow it with the option NVreg_RestrictProfilingToAdminUsers=0 of the kernel module nvidia",
        )
    unknown = {name.replace("\\", "").rstrip(".") for name in _NO_METRIC.findall(text)}
    if unknown:
        dropped = frozenset(m for m in asked if m in unknown or m.split(".")[0] in unknown)
        if dropped:
            return Complaint("missing", f"the profiler does not know {', '.join(sorted(dropped))}", dropped)
    if "driver resource was unavailable" in text:
        return Complaint(
            "busy", "another tool uses the performance counters (a monitor such as DCGM, or a second profiler)"
        )
    if match := _ERROR.search(text):
        return Complaint("lost", f"the profiler failed: {match['what'].strip()[:200]}")
    return None
