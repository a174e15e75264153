"""A copy of a journal that grows elsewhere: which rows are sent, and how they are taken in. Rows from elsewhere are data."""

from __future__ import annotations

import fcntl
import itertools
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import MachineError
from engine.process.decode import NotThis
from engine.search.journal import CANDIDATE_COLUMNS, CREATE, IN_USE, checksum

_BLOB = CANDIDATE_COLUMNS.index("files")
_PIECE = 8 << 20  # bytes of files that are sent at once, and candidates
_ROWS, _MOST_ROWS = 2000, 4000  # at once, and with what is left at the end
_MOST_META = 64
# What belongs to candidates, by table: its columns, the first of which is the candidate that it came after.
_BESIDE = {
    "profiles": ("candidate", "metrics", "counters", "proxies", "booked_at"),
    "questions": ("node", "rule", "round", "about", "ending", "answers", "booked_at"),
    "credits": ("after", "candidate", "proposer", "tried", "booked_at"),
}


@dataclass(frozen=True)
class CopyPosition:
    """How far a copy is: the last candidate and the last rows beside them that it has, of the run of that identity."""

    candidate: int = -1
    profiles: int = 0
    identity: str = ""
    questions: int = 0
    credits: int = 0


def rows_after(path: Path, place: CopyPosition, *, whole: bool = False) -> tuple[dict[str, Any], list[bytes]]:
    """The next rows of a journal, for `JournalCopy.add`: plain JSON and the packed files of each candidate.

    All from the beginning, as the first of another run, where the copy's run was another. `whole`: all that are left.
    """
    if not path.is_file():
        return {}, []
    with suppress(sqlite3.OperationalError), closing(_reader(path)) as db:  # its tables may be about to be made
        meta = dict(db.execute("SELECT key, value FROM meta"))
        another = place.candidate >= 0 and meta.get("identity") != place.identity
        place = CopyPosition() if another else place
        columns = ", ".join(CANDIDATE_COLUMNS)
        found = db.execute(
            f"SELECT {columns}, checksum FROM candidates WHERE id > ? ORDER BY id LIMIT ?",
            (place.candidate, _MOST_ROWS if whole else _ROWS),
        )
        candidates: list[list[Any]] = []
        blobs: list[bytes] = []
        size = 0
        for row in found:
            size += len(row[_BLOB])
            if size > _PIECE and blobs and not whole:
                break
            blobs.append(row[_BLOB])
            candidates.append([*row[:_BLOB], None, *row[_BLOB + 1 :]])
        last = candidates[-1][0] if candidates else place.candidate
        beside = {}
        for name, names in _BESIDE.items():
            rows = db.execute(
                f"SELECT rowid, {', '.join(names)}, checksum FROM {name} WHERE rowid > ? ORDER BY rowid LIMIT {_ROWS}",
                (getattr(place, name),),
            )
            beside[name] = list(itertools.takewhile(lambda row: row[1] <= last, rows))
        # What the run was asked for and whether it ended changes; the original's files do not.
        sent = [[key, value] for key, value in meta.items() if place.candidate < 0 or key != "files"]
        return {"another": another, "meta": sent, "candidates": candidates, **beside}, blobs
    return {}, []


def snapshot(path: Path) -> bytes:
    """A whole journal as bytes; b"" where there is none."""
    if not path.is_file():
        return b""
    with closing(_reader(path)) as db, closing(sqlite3.connect(":memory:")) as copy:
        db.backup(copy)
        return copy.serialize()


class JournalCopy:
    """Takes in the rows of a journal that a worker writes. Holds the journal's lock until `close`."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            lock = held.enter_context(path.with_suffix(".lock").open("w"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MachineError(f"{IN_USE} on this journal", str(path), "wait for it") from None
            try:
                self._db = held.enter_context(closing(sqlite3.connect(path, timeout=5, isolation_level=None)))
                self._db.executescript(CREATE)
                (last,) = self._db.execute("SELECT coalesce(max(id), -1) FROM candidates").fetchone()
                beside = {
                    name: self._db.execute(f"SELECT coalesce(max(rowid), 0) FROM {name}").fetchone()[0]
                    for name in _BESIDE
                }
                identity = dict(self._db.execute("SELECT key, value FROM meta")).get("identity", "")
            except sqlite3.DatabaseError as error:
                raise MachineError(f"the journal is damaged: {error}", str(path), "move it to another folder") from None
            self._held = held.pop_all()
        self._path, self.place = path, CopyPosition(last, identity=identity, **beside)

    def add(self, rows: Mapping[str, Any], blobs: Sequence[bytes]) -> int:
        """Take in what `rows_after(path, self.place)` gave; how many candidates came. Raises NotThis, MachineError."""
        meta, candidates = _table(rows, "meta"), _table(rows, "candidates")
        beside = {name: _table(rows, name) for name in _BESIDE}
        if len(candidates) != len(blobs) or len(meta) > _MOST_META:
            raise NotThis("is not part of a journal", "rows")
        last = self.place.candidate
        wanted = []
        for row, blob in zip(candidates, blobs, strict=True):
            if len(row) != len(CANDIDATE_COLUMNS) + 1 or not isinstance(row[0], int) or row[0] > last + 1:
                raise NotThis(f"lacks candidate {last + 1}", "rows")
            if row[0] <= last:
                continue  # it came with a report after the one that these rows follow
            last = row[0]
            row[_BLOB] = blob
            if checksum(tuple(row[:-1])) != row[-1]:
                raise NotThis(f"has a damaged candidate {last}", "rows")
            wanted.append(row)
        for name, names in _BESIDE.items():
            for row in beside[name]:
                whole = len(row) == len(names) + 2 and isinstance(row[0], int)
                if not whole or checksum(tuple(row[1:-1])) != row[-1]:
                    raise NotThis(f"has a damaged row of {name}", "rows")
        try:
            with self._db:
                self._db.execute("BEGIN")
                self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", meta)
                marks = ", ".join("?" * (len(CANDIDATE_COLUMNS) + 1))
                self._db.executemany(f"INSERT INTO candidates VALUES ({marks})", wanted)
                for name, names in _BESIDE.items():
                    # Under the number that it has there: of a row that took another's place, both are counted.
                    into = f"INSERT OR REPLACE INTO {name} (rowid, {', '.join(names)}, checksum)"
                    self._db.executemany(f"{into} VALUES ({', '.join('?' * (len(names) + 2))})", beside[name])
        except (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.InterfaceError, OverflowError) as error:
            raise NotThis(f"has values of other types: {error}", "rows") from None
        except sqlite3.Error as error:
            raise MachineError(f"the journal cannot be written: {error}", str(self._path), "free some space") from None
        known = dict(self._db.execute("SELECT key, value FROM meta")).get("identity", "")
        reached = {name: max([getattr(self.place, name), *(row[0] for row in beside[name])]) for name in _BESIDE}
        self.place = CopyPosition(last, identity=known, **reached)
        return len(wanted)

    def close(self) -> None:
        """Close the file and give the lock up."""
        with suppress(sqlite3.Error):
            self._held.close()


def _reader(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=5)


def _table(rows: Mapping[str, Any], name: str) -> list[list[Any]]:
    found = rows.get(name, [])
    if not isinstance(found, list) or len(found) > _MOST_ROWS or not all(isinstance(row, list) for row in found):
        raise NotThis(f"has no list '{name}'", "rows")
    return [list(row) for row in found]
