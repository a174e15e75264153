"""What becomes of an earlier run in the output folder: it goes on, or it is kept under another name; it is never discarded."""

from __future__ import annotations

import dataclasses
import fcntl
import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import MachineError, OptimlError, UsageError
from engine.model import Program
from engine.process.decode import NotThis, load
from engine.run.result import SCHEMA as RESULT
from engine.run.result import check_version
from engine.search.journal import IN_USE, SCHEMA
from engine.search.progress import Budget
from engine.spec.kernel_spec import KernelSpec

_JOURNAL = "journal.sqlite"
_MOST = 1000  # earlier runs beside each other


@dataclass(frozen=True)
class EarlierRun:
    """A run in a folder, as far as its journal tells. `candidates` are without the original.

    `request` and `budget` are what it was last asked for, `ended` whether it came to its end.
    """

    identity: str
    schema: str
    candidates: int
    elapsed_s: float
    request: str = ""
    budget: Budget = field(default_factory=Budget)
    ended: bool = False


def identity_of(program: Program, spec: KernelSpec, seed: int, arch: str, mode: str) -> str:
    """A name for all that decides whether two runs are about the same: program, spec, seed and target."""
    plain = dataclasses.asdict(dataclasses.replace(spec, origin=""))
    text = json.dumps([program.digest, plain, seed, arch, mode], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def earlier_run(out: Path) -> EarlierRun | None:
    """The run whose journal is in a folder; None where there is none that evaluated anything."""
    path = out / _JOURNAL
    if not path.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            meta = dict(db.execute("SELECT key, value FROM meta WHERE key IN ('identity', 'schema', 'request')"))
            count, elapsed_s = db.execute("SELECT count(*), max(elapsed_s) FROM candidates").fetchone()
    except sqlite3.Error:
        return EarlierRun("", "", 0, 0.0)  # damaged or another program's: kept under another name
    if not count:
        return None
    found = EarlierRun(str(meta.get("identity", "")), str(meta.get("schema", "")), count - 1, float(elapsed_s))
    try:
        digest, seconds, candidates, ended = json.loads(meta["request"])
    except (KeyError, TypeError, ValueError):
        return found  # it was not asked for by a command that can be repeated
    return dataclasses.replace(found, request=digest, budget=Budget(seconds, candidates), ended=ended is True)


def has_result(out: Path, schema: str = RESULT) -> bool:
    """Whether a folder has a whole result of this schema, with its patch where it suggests one."""
    try:
        check_version(out, schema)
        result = load((out / "result.json").read_bytes())
    except (OSError, OptimlError, NotThis):
        return False
    return isinstance(result, dict) and (result.get("best") is None or (out / "best.patch").is_file())


def goes_on(earlier: EarlierRun, identity: str) -> bool:
    """Whether a run of this identity can go on with an earlier one."""
    return earlier.identity == identity and earlier.schema == str(SCHEMA)


def on_top(budget: Budget, earlier: EarlierRun) -> Budget:
    """The budget of a run that goes on with an earlier one: what that one spent, and the whole budget again."""
    return dataclasses.replace(
        budget,
        seconds=None if budget.seconds is None else budget.seconds + earlier.elapsed_s,
        candidates=None if budget.candidates is None else budget.candidates + earlier.candidates,
    )


def set_aside(out: Path) -> Path:
    """Rename the folder of an earlier run; its new name. Raises MachineError where it is in use or cannot be renamed."""
    out = out.resolve()
    if Path.cwd().is_relative_to(out):
        raise UsageError(
            "contains an earlier run, and is the current folder or a parent of it", str(out), "choose another --out"
        )
    with suppress(FileNotFoundError), (out / _JOURNAL).with_suffix(".lock").open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MachineError(f"{IN_USE} here", str(out), "wait for it, or choose another --out") from None
    for number in range(1, _MOST):
        kept = out.with_name(f"{out.name}.{number}")
        if kept.exists() or kept.is_symlink():
            continue
        try:
            out.rename(kept)
        except OSError as error:
            why = f"the earlier run cannot be renamed: {error.strerror}"
            raise MachineError(why, str(out), "choose another --out") from None
        return kept
    raise MachineError(f"{_MOST} earlier runs already exist", str(out), "delete some of them, or choose another --out")


@contextmanager
def put_back(out: Path, kept: Path | None) -> Iterator[None]:
    """Where what runs here is refused and leaves no folder `out`, the earlier run that `set_aside` renamed gets its name again."""
    try:
        yield
    except OptimlError:
        if kept is not None and not out.exists():
            with suppress(OSError):
                kept.rename(out)
        raise
