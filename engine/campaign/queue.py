"""The queue of a campaign in SQLite: which kernels are searched in which order, with which budget, and what came of each.

A killed campaign leaves it as it was; each kernel's candidates are in that kernel's own journal.
"""

import fcntl
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.campaign.survey import SurveyedKernel
from engine.errors import MachineError, UsageError

SCHEMA = "1"
_CREATE = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE kernels (
    rank INTEGER PRIMARY KEY,
    file TEXT NOT NULL,
    kernel TEXT NOT NULL,
    share REAL,
    headroom REAL,
    weight REAL,
    state TEXT NOT NULL,
    spent_s REAL NOT NULL DEFAULT 0,
    speedup REAL,
    folder TEXT NOT NULL DEFAULT '',
    said TEXT NOT NULL DEFAULT '',
    UNIQUE (file, kernel)
) STRICT;
"""
Progress = Literal["waiting", "running", "done", "failed", "skipped"]
_COLUMNS = "rank, file, kernel, share, headroom, weight, state, spent_s, speedup, folder, said"


@dataclass(frozen=True)
class Queued:
    """One kernel of the queue. `spent_s` counts all its turns; `speedup` is of a suggestion, None where there is none."""

    rank: int
    file: str
    kernel: str
    share: float | None
    headroom: float | None
    weight: float | None
    state: Progress
    spent_s: float = 0.0
    speedup: float | None = None
    folder: str = ""
    said: str = ""


def folder_prefixes(kernels: Sequence[Queued]) -> Mapping[int, str]:
    """What goes before the names of kernels' folders, by rank: where files of one name have kernels of one name, the file's folder."""
    alike = Counter((Path(k.file).stem, k.kernel) for k in kernels)
    return {
        k.rank: "".join(f"{part}+" for part in Path(k.file).parent.parts)
        if alike[Path(k.file).stem, k.kernel] > 1
        else ""
        for k in kernels
    }


class Queue:
    """An open queue. Calls do not overlap."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db, self._path = db, path

    def all(self) -> list[Queued]:
        """Every kernel in order of rank."""
        return [Queued(*row) for row in self._db.execute(f"SELECT {_COLUMNS} FROM kernels ORDER BY rank")]

    def budget_s(self) -> float:
        """The budget of the whole campaign."""
        (value,) = self._db.execute("SELECT value FROM meta WHERE key = 'budget_s'").fetchone()
        return float(value)

    def name(self) -> str:
        """What tells this campaign from others; "" for one of an earlier version."""
        row = self._db.execute("SELECT value FROM meta WHERE key = 'name'").fetchone()
        return str(row[0]) if row else ""

    def begin(self, rank: int) -> None:
        """A kernel's turn begins."""
        self._write("UPDATE kernels SET state = 'running' WHERE rank = ?", rank)

    def spend(self, rank: int, seconds: float) -> None:
        """Add to the time of a kernel's turns: what an interrupted one took counts too."""
        self._write("UPDATE kernels SET spent_s = spent_s + ? WHERE rank = ?", seconds, rank)

    def end(self, rank: int, state: Progress, said: str, speedup: float | None = None, folder: str = "") -> None:
        """What came of a kernel's turn."""
        row = (state, said, speedup, folder, rank)
        self._write("UPDATE kernels SET state = ?, said = ?, speedup = ?, folder = ? WHERE rank = ?", *row)

    def _write(self, statement: str, *values: object) -> None:
        try:
            self._db.execute(statement, values)
        except sqlite3.Error as error:
            why = f"the queue cannot be written: {error}"
            raise MachineError(why, str(self._path), "free some space, then resume with --resume") from None


@contextmanager
def open_queue(path: Path, kernels: Sequence[SurveyedKernel] | None, budget_s: float) -> Iterator[Queue]:
    """A new queue of these kernels in their order, in place of an earlier one, which is kept beside it; None: the queue that is there.

    Raises UsageError where there is none to go on with, MachineError where another campaign works on it or it is damaged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MachineError("another campaign uses this queue", str(path), "wait for it") from None
        if kernels is None and not path.exists():
            raise UsageError("no campaign to resume", str(path), "start without --resume")
        if kernels is not None and path.exists():
            path.rename(
                path.with_name(f"{path.stem}-{time.strftime('%Y%m%d-%H%M%S')}-{time.time_ns() % 1000:03}.sqlite")
            )
        db = sqlite3.connect(path, timeout=5, isolation_level=None)
        try:
            if kernels is not None:
                _fill(db, kernels, budget_s)
            (schema,) = db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() or ("",)
            if schema != SCHEMA:
                raise UsageError("this campaign is from another version", str(path), "start without --resume")
            yield Queue(db, path)
        except sqlite3.DatabaseError as error:
            raise MachineError(f"the queue is damaged: {error}", str(path), "start without --resume") from None
        finally:
            db.close()


def _fill(db: sqlite3.Connection, kernels: Sequence[SurveyedKernel], budget_s: float) -> None:
    db.executescript(f"BEGIN; {_CREATE} COMMIT;")
    db.execute("BEGIN")
    db.executemany(
        "INSERT INTO meta VALUES (?, ?)",
        [("schema", SCHEMA), ("budget_s", str(budget_s)), ("name", secrets.token_hex(8))],
    )
    rows = [(n, k.file, k.kernel, k.share, k.headroom, k.weight) for n, k in enumerate(kernels, 1)]
    columns = "rank, file, kernel, share, headroom, weight, state"
    db.executemany(f"INSERT OR IGNORE INTO kernels ({columns}) VALUES (?, ?, ?, ?, ?, ?, 'waiting')", rows)
    db.execute("COMMIT")
