"""A run as its output folder tells it: result, every candidate of the journal, what was counted, the source before and after."""

import binascii
import math
import sqlite3
import time
import zlib
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from engine.cuda.patch import make_patch
from engine.errors import MachineError, RefusedError, UsageError
from engine.model import PASSED, LaunchConfig, Program
from engine.process.decode import NotThis, decode, load
from engine.profile.counters import Counter, Profile, StepProfile
from engine.run.result import RESULT_BYTES, OptimizationResult

# Bounds on what an artifact of a stranger may cost. Ours: a run of an hour has some 10,000 candidates and 100 MB.
_PATCH_BYTES, _FILES_BYTES, _PACKED_BYTES = 4 << 20, 16 << 20, 64 << 20
_NODES = 100_000
_MOST = 1_000_000  # items of a list in a result: the tuner has one for every evaluation
_TEXT = 600  # characters of one summary or reason
_SECONDS = 30.0
_AGAIN = "name the output folder of a run of this version of OptiML"
_VERBS = {
    "optiml.result": "optiml optimize",
    "optiml.tune": "optiml tune",
    "optiml.generate": "optiml generate",
}  # by schema

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class StoredNode:
    """One candidate of the journal; the original is the one without a parent. `elapsed_s` is the run's time when it was booked."""

    id: int
    parent: int | None
    proposer: str
    rule: str
    summary: str
    outcome: str
    reason: str
    ratio: float | None
    low: float | None
    high: float | None
    elapsed_s: float


@dataclass(frozen=True)
class Counted:
    """What was counted of one candidate on the heaviest case. `time_us` is None where the journal has no time beside the counters."""

    bytes_moved: float
    instructions: float  # of warps
    time_us: float | None


@dataclass(frozen=True)
class SourceText:
    """One file before and, where there is a suggestion, after."""

    path: str
    before: bytes
    after: bytes | None


@dataclass(frozen=True)
class StoredRun:
    """All that the report shows. `original` and `sources` are empty where the journal does not hold the original's files.

    `packed` has what each candidate changed of the original, as the journal has it: see `unpack`.
    """

    result: OptimizationResult
    nodes: tuple[StoredNode, ...]
    counted: Mapping[int, Counted]
    sources: tuple[SourceText, ...]
    patch: str
    original: Mapping[str, bytes] = field(default_factory=dict)
    packed: Mapping[int, bytes] = field(default_factory=dict)


def read_run(folder: Path) -> StoredRun:
    """Read result.json, journal.sqlite and best.patch. Raises UsageError (nothing there, another version), MachineError."""
    result = read_result(folder, {"result.json": (OptimizationResult,)})
    assert isinstance(result, OptimizationResult)
    return _journal(folder / "journal.sqlite", lambda db: _run(db, result, _patch(folder, result)))


def suggested(run: StoredRun, folder: Path) -> tuple[Program, Program]:
    """The original and what the run suggests, as its journal has them. Raises RefusedError where that is not what was verified."""
    best = run.result.best
    if best is None:
        raise RefusedError("the run has no suggestion", str(folder))
    measurement = best.evaluation.measurement
    if best.evaluation.outcome not in PASSED or measurement is None or not run.sources:
        raise RefusedError("the suggestion was not verified or screened", str(folder), "run `optimize` again")
    before = Program({**run.original, **{source.path: source.before for source in run.sources}}, run.result.file)
    after = before.replace({source.path: source.after for source in run.sources if source.after is not None})
    changed = tuple(sorted(path for path in before.files if before.files[path] != after.files[path]))
    if changed != tuple(sorted(best.files)) or make_patch(before, after) != _bytes(folder / "best.patch", _PATCH_BYTES):
        raise RefusedError("best.patch is not what the run found", str(folder), "run `optimize` again")
    return before, after


def read_nodes(folder: Path) -> tuple[StoredNode, ...]:
    """Every candidate of the journal in a run's folder. Raises UsageError, MachineError."""
    return _journal(folder / "journal.sqlite", _nodes)


def read_result(folder: Path, files: Mapping[str, tuple[type[T], ...]]) -> T:
    """The result in a folder: `files` says which file may hold which kinds, each a dataclass with a default `schema`.

    Raises UsageError (nothing there, of another kind or version), MachineError.
    """
    if not folder.is_dir():
        raise UsageError("no such folder", str(folder), "name the output folder of a run")
    path = next((folder / name for name in files if (folder / name).is_file()), None)
    if path is None and (folder / "generate.json").is_file():
        where = folder / "optimize"
        raise UsageError(
            "is the work folder of optiml generate", str(folder), f"name the folder of its search: {where}"
        )
    if path is None and (folder / "journal.sqlite").is_file():
        raise UsageError(
            "the run has not ended, or was killed: a journal but no result", str(folder),
            "wait for it, or resume it: the same command with --resume",
        )  # fmt: skip
    if path is None:
        raise UsageError("no result", str(folder / next(iter(files))), "name the output folder of a run")
    try:
        data = load(_bytes(path, RESULT_BYTES))
        schema = data.get("schema") if isinstance(data, dict) else None
        kinds = {getattr(kind, "schema", ""): kind for kind in files[path.name]}
        if not isinstance(schema, str) or schema not in kinds:
            raise UsageError(*_other(schema, path, tuple(kinds)))
        return decode(kinds[schema], data, "the result", later=True, most=_MOST)
    except NotThis as error:
        raise UsageError(f"is not a result of this version ({error})", str(path), _AGAIN) from None


def _other(schema: object, path: Path, wanted: tuple[str, ...]) -> tuple[str, str, str]:
    """What is wrong with a result of another schema, where, and what to do."""
    name = str(schema).partition("/")[0]
    if name in _VERBS and name not in [w.partition("/")[0] for w in wanted]:
        return f"is a result of '{_VERBS[name]}', which has no report", str(path), "print it with 'optiml show'"
    return f"has the schema {str(schema)[:40]!r}, not {' or '.join(map(repr, wanted))}", str(path), _AGAIN


def _bytes(path: Path, most: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise MachineError(f"cannot be read: {error.strerror}", str(path), "check its permissions") from None
    if len(data) > most:
        raise UsageError(f"is over {most >> 20} MiB", str(path), _AGAIN)
    return data


_Files = dict[str, bytes]


def _journal(path: Path, ask: Callable[[sqlite3.Connection], R]) -> R:
    """What `ask` reads of a journal, which may be a stranger's. Raises UsageError, MachineError."""
    if not path.is_file():
        raise UsageError("no journal next to the result", str(path), _AGAIN)
    # A run that still writes keeps a log beside the journal. Without one nothing changes, and reading leaves nothing behind.
    mode = "mode=ro" if path.with_name(path.name + "-wal").exists() else "mode=ro&immutable=1"
    until = time.monotonic() + _SECONDS
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?{mode}", uri=True, timeout=1.0)) as db:
            db.set_progress_handler(lambda: int(time.monotonic() > until), 100_000)  # a stranger's view may not end
            db.execute("PRAGMA trusted_schema = OFF")
            db.text_factory = lambda data: data.decode("utf-8", "replace")
            return ask(db)
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the low byte is the kind, the rest its details
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise MachineError(f"cannot be read ({error})", str(path), "wait for the run that writes it") from None
        if code == sqlite3.SQLITE_INTERRUPT:
            raise UsageError(f"takes over {_SECONDS:.0f} s to read", str(path), _AGAIN) from None
        raise UsageError(f"is not a journal of this version ({error})", str(path), _AGAIN) from None
    except (NotThis, ValueError, TypeError, zlib.error) as error:
        raise UsageError(f"is not a journal of this version ({error})", str(path), _AGAIN) from None


def _nodes(db: sqlite3.Connection) -> tuple[StoredNode, ...]:
    names = ("id", "parent", "proposer", "rule", "summary", "outcome", "reason", "ratio", "low", "high", "elapsed_s")
    columns = ", ".join(
        f"substr({n}, 1, {_TEXT})" if n in ("proposer", "rule", "summary", "outcome", "reason") else n for n in names
    )
    found = db.execute(f"SELECT {columns} FROM candidates ORDER BY id LIMIT {_NODES}")
    nodes = tuple(
        decode(StoredNode, {n: _finite(v) for n, v in zip(names, row, strict=True)}, f"candidate {str(row[0])[:20]}")
        for row in found
    )
    if not nodes:
        raise NotThis("it has no candidates")
    return nodes


def _run(db: sqlite3.Connection, result: OptimizationResult, patch: str) -> StoredRun:
    nodes = _nodes(db)
    best: _Files | None = None
    if result.best is not None:
        row = db.execute("SELECT files FROM candidates WHERE id = ?", (result.best.id,)).fetchone()
        best = None if row is None else unpack(row[0])
    row = db.execute("SELECT value FROM meta WHERE key = 'files'").fetchone()
    original = None if row is None else unpack(_base64(row[0]))
    sources = _sources(result, original, best)
    return StoredRun(result, nodes, _all_counted(db, result), sources, patch, original or {}, _packed(db))


def _packed(db: sqlite3.Connection) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    left = _PACKED_BYTES
    for id, files in db.execute(
        f"SELECT id, files FROM candidates WHERE typeof(files) = 'blob' ORDER BY id LIMIT {_NODES}"
    ):
        left -= len(files)
        if left < 0:
            break
        found[id] = files
    return found


def _all_counted(db: sqlite3.Connection, result: OptimizationResult) -> dict[int, Counted]:
    wanted = [0, *(step.id for step in result.trajectory)][:1000]
    counted: dict[int, Counted] = {}
    for id in wanted:
        rows = db.execute("SELECT metrics, counters FROM profiles WHERE candidate = ? ORDER BY metrics", (id,))
        for metrics, counters in rows:  # "cheap" comes before "full"
            seen = _counted(metrics, counters)
            if seen is not None:
                counted[id] = seen
    return counted


def _finite(value: Any) -> Any:
    """A number that is none is a speedup that is not known."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _counted(metrics: str, text: str) -> Counted | None:
    data = load(text)
    if not isinstance(data, list):
        raise NotThis("counters are not a list")
    steps = tuple(
        StepProfile("", LaunchConfig((1, 1, 1), (1, 1, 1)), {n: Counter(*_pair(v)) for n, v in step.items()})
        for step in data
        if isinstance(step, dict)
    )
    if metrics == "predicted":
        moved = sum(step.get("bytes asked of L2") or 0.0 for step in steps)
        instructions = sum(step.get("warp instructions") or 0.0 for step in steps)
        return Counted(moved, instructions, None) if moved > 0 and instructions > 0 else None
    profile = Profile("", metrics, 0, steps)
    moved_bytes, executed, time_us = profile.dram_bytes, profile.instructions, profile.duration_us
    if not moved_bytes or not executed or not time_us or min(moved_bytes, executed, time_us) <= 0:
        return None
    return Counted(moved_bytes, executed, time_us)


def _pair(value: Any) -> tuple[float, str]:
    pair: tuple[float, str] = decode(_Pair, {"pair": value}).pair
    return pair


@dataclass(frozen=True)
class _Pair:
    pair: tuple[float, str]


def unpack(packed: bytes) -> dict[str, bytes]:
    """The files of one row of the journal. Raises ValueError, zlib.error."""
    engine = zlib.decompressobj()
    text = engine.decompress(packed, _FILES_BYTES)
    if engine.unconsumed_tail:
        raise NotThis(f"its files are over {_FILES_BYTES >> 20} MiB")
    data = load(text)
    if not isinstance(data, dict):
        raise NotThis("its files are not an object")
    return {str(name): _base64(value) for name, value in data.items()}


def _base64(value: Any) -> bytes:
    if not isinstance(value, str):
        raise NotThis("its files are not text")
    try:
        return b64decode(value, validate=True)
    except binascii.Error as error:
        raise NotThis(str(error)) from None


def _sources(result: OptimizationResult, files: _Files | None, best: _Files | None) -> tuple[SourceText, ...]:
    if files is None:
        return ()
    if result.best is None or best is None:
        return (SourceText(result.file, files[result.file], None),) if result.file in files else ()
    names = sorted(best, key=lambda name: (name != result.file, name))
    return tuple(SourceText(name, files.get(name, b""), best[name]) for name in names)


def _patch(folder: Path, result: OptimizationResult) -> str:
    return read_patch(folder, "best.patch") if result.best is not None else ""


def read_patch(folder: Path, name: str) -> str:
    """A patch in a run's folder, by the name that this program gives it and not by one of the result's; "" without one."""
    path = folder / name
    if not path.is_file() or path.is_symlink():
        return ""
    return _bytes(path, _PATCH_BYTES).decode("utf-8", "replace")
