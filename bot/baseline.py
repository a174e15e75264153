"""What the default branch measured, commit by commit: many small steps back show against it that no single comparison shows.

It is kept as one JSON file between runs. Times of two runs are no pair: they are compared only on the same device and under the
same spec, and what follows from them is marked as another run's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bot.bundle import History
from bot.errors import BundleError
from bot.untrusted import decode, load_json
from engine.model import CaseTiming
from engine.spec.kernel_spec import KernelSpec

FILE = "baseline.json"
SCHEMA = "optiml.baseline/1"
_MAX_BYTES = 8 << 20
_KEPT = 10  # commits of one kernel
_MAX_ENTRIES = 5_000
# Clocks and temperature differ between runs of one machine by about this much. Ours.
_APART = 1.05


@dataclass(frozen=True)
class CaseTime:
    """One timing case: its weight and its median time."""

    case: str
    weight: float
    us: float


@dataclass(frozen=True)
class Entry:
    """One kernel at one commit. `device` and `spec` say when two entries may be compared."""

    path: str
    kernel: str
    device: str
    spec: str
    commit: str
    predicted: bool
    cases: tuple[CaseTime, ...]


@dataclass(frozen=True)
class Baseline:
    """Entries, oldest first."""

    entries: tuple[Entry, ...] = ()
    schema: str = SCHEMA

    def with_entry(self, entry: Entry) -> Baseline:
        """The same with one more; of each kernel the fastest and the newest are kept."""
        same = [e for e in self.entries if _key(e) == _key(entry) and e.commit != entry.commit]
        if len(same) >= _KEPT:
            fastest = min(same, key=lambda e: _time(e.cases))
            same = [e for e in same if e is fastest or e in same[-_KEPT + 2 :]]
        rest = [e for e in self.entries if _key(e) != _key(entry)]
        return Baseline((*rest, *same, entry)[-_MAX_ENTRIES:])

    def history(self, path: str, kernel: str, device: str, spec: str, cases: Sequence[CaseTiming]) -> History | None:
        """The fastest commit, where the candidate times of `cases` are clearly longer than what it took; else None."""
        found = [
            e for e in self.entries
            if (e.path, e.kernel, e.device, e.spec) == (path, kernel, device, spec)
            and {c.case for c in e.cases} == {c.case for c in cases}
        ]  # fmt: skip
        if not found:
            return None
        fastest = min(found, key=lambda e: _time(e.cases))
        now = _time(tuple(CaseTime(c.case, c.weight, c.candidate_us) for c in cases))
        slower = now / _time(fastest.cases)
        return History(fastest.commit, slower, fastest.predicted) if slower > _APART else None


def read_baseline(folder: Path) -> Baseline:
    """The baseline in `folder`; an empty one where there is none. Raises BundleError for what is no baseline."""
    try:
        handle = os.open(folder / FILE, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return Baseline()
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror}", FILE) from None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise BundleError(f"is not a regular file of at most {_MAX_BYTES} bytes", FILE)
        found = decode(Baseline, load_json(file.read(_MAX_BYTES + 1)), "baseline")
    if found.schema != SCHEMA:
        raise BundleError(f"has a schema other than {SCHEMA}", FILE)
    if any(not e.cases or any(not (c.us > 0 and c.weight > 0) for c in e.cases) for e in found.entries):
        raise BundleError("has an invalid time", FILE)
    return found


def write_baseline(baseline: Baseline, folder: Path) -> None:
    """Write it into `folder`. Raises BundleError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{FILE}.part"
        part.write_text(json.dumps(dataclasses.asdict(baseline), sort_keys=True) + "\n", encoding="utf-8")
        part.replace(folder / FILE)
    except OSError as error:
        raise BundleError(f"cannot be written: {error.strerror}", FILE) from None


def spec_name(spec: KernelSpec) -> str:
    """The same for specs that ask for the same work, wherever they are written."""
    data = {k: v for k, v in dataclasses.asdict(spec).items() if k not in ("file", "origin")}
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:32]


def device_name(mode: str, device: Mapping[str, Any], version: str) -> str:
    """Two runs with the same name can be compared. A prediction is its model's, so the program's version is part of it."""
    return (
        f"{device.get('name', '')} measured"
        if mode == "measured"
        else f"{device.get('arch', '')} predicted by {version}"
    )


def _key(entry: Entry) -> tuple[str, str, str, str]:
    return (entry.path, entry.kernel, entry.device, entry.spec)


def _time(cases: Sequence[CaseTime]) -> float:
    """The weighted geometric mean of the cases' times, in microseconds."""
    total = sum(c.weight for c in cases)
    return math.exp(sum(c.weight * math.log(c.us) for c in cases) / total)
