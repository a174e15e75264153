"""The journal: every evaluated candidate in SQLite, booked at once, so that a killed run goes on where it was."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import sqlite3
import time
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.errors import MachineError, UsageError
from engine.model import (
    CaseTiming,
    Evaluation,
    Failure,
    Guardrail,
    LaunchConfig,
    Measurement,
    Outcome,
    Program,
    Resources,
    VerifiedInstance,
)
from engine.search.question import Asked, from_json, to_json
from engine.search.reward import Proxies

SCHEMA = 3
IN_USE = "another run is active"  # how the error begins where another process holds the lock

CREATE = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS candidates (
    id INTEGER PRIMARY KEY,
    parent INTEGER,
    proposer TEXT NOT NULL,
    rule TEXT NOT NULL,
    parameters TEXT NOT NULL,
    summary TEXT NOT NULL,
    digest TEXT NOT NULL,
    code_hash TEXT NOT NULL,
    launches TEXT NOT NULL,
    outcome TEXT NOT NULL,
    reason TEXT NOT NULL,
    ratio REAL,
    low REAL,
    high REAL,
    evaluation TEXT NOT NULL,
    files BLOB NOT NULL,
    elapsed_s REAL NOT NULL,
    prior REAL NOT NULL,
    against REAL,
    booked_at REAL NOT NULL,
    checksum TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS profiles (
    candidate INTEGER NOT NULL,
    metrics TEXT NOT NULL,
    counters TEXT NOT NULL,
    proxies TEXT NOT NULL,
    booked_at REAL NOT NULL,
    checksum TEXT NOT NULL,
    PRIMARY KEY (candidate, metrics)
) STRICT;
CREATE TABLE IF NOT EXISTS questions (
    node INTEGER NOT NULL,
    rule TEXT NOT NULL,
    round INTEGER NOT NULL,
    about INTEGER NOT NULL,
    ending TEXT NOT NULL,
    answers TEXT NOT NULL,
    booked_at REAL NOT NULL,
    checksum TEXT NOT NULL,
    PRIMARY KEY (node, rule, round, about)
) STRICT;
CREATE TABLE IF NOT EXISTS credits (
    after INTEGER NOT NULL,
    candidate INTEGER NOT NULL,
    proposer TEXT NOT NULL,
    tried INTEGER NOT NULL,
    booked_at REAL NOT NULL,
    checksum TEXT NOT NULL,
    PRIMARY KEY (candidate, proposer)
) STRICT;
"""
_EARLIER = ".earlier"  # after its name, the journal that stood there, until the new one holds something
_FILES = ("", "-wal", "-shm")
CANDIDATE_COLUMNS = (
    "id", "parent", "proposer", "rule", "parameters", "summary", "digest", "code_hash", "launches", "outcome", "reason", "ratio",
    "low", "high", "evaluation", "files", "elapsed_s", "prior", "against", "booked_at",
)  # fmt: skip
_COLUMNS = ", ".join(CANDIDATE_COLUMNS)


@dataclass(frozen=True)
class Entry:
    """One booked candidate. `files` are the files that differ from the original. `elapsed_s` is the run's time so far.

    `prior` is the edit's as it was when it was chosen, `against` the speedup over the best so far in the same measurement.
    """

    id: int
    parent: int | None
    proposer: str
    rule: str
    parameters: Mapping[str, int | str]
    summary: str
    digest: str
    launches: tuple[tuple[LaunchConfig, ...], ...]
    evaluation: Evaluation
    files: Mapping[str, bytes]
    elapsed_s: float
    prior: float = 0.5
    against: float | None = None


@dataclass(frozen=True)
class Credit:
    """A proposer had an edit that another's candidate stands for. `after`: the last candidate booked before that was seen.

    `tried`: a candidate of its own was spent on it.
    """

    after: int
    candidate: int
    proposer: str
    tried: bool


class Journal:
    """One file per run. Opening takes a lock that a second run on the same file meets with a clear error.

    A run that does not go on with an earlier one takes the place of its journal once it has booked something: one that is refused
    before that (`withdraw`) leaves the earlier one as it was, and nothing where there was none.
    """

    def __init__(
        self, path: Path, original: Program, settings: Mapping[str, Any], *, resume: bool, identity: str = ""
    ) -> None:
        self.path, self._identity = path, identity
        self._resumed, self._booked, self._withdrawn = resume, False, False
        if resume and not path.exists():
            raise UsageError("no run to resume", where=str(path), do="start without --resume")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.ExitStack() as held:
                # A lock of its own, so that others can read the journal while a run writes it. It goes with the process.
                locked = path.with_suffix(".lock")
                self._unlocked_before = not locked.exists()
                lock = held.enter_context(locked.open("w"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not locked.exists() or not os.path.samestat(os.fstat(lock.fileno()), locked.stat()):
                    raise BlockingIOError  # its holder was refused and took it away in between
                if not resume:
                    held.callback(self._settle)
                    self._move("", _EARLIER)  # whatever state it is in
                # Who writes it has a thread of its own; calls do not overlap.
                db = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
                self._db = held.enter_context(contextlib.closing(db))
                self._open(original, settings, resume=resume)
                self._held = held.pop_all()
        except BlockingIOError:
            raise MachineError(f"{IN_USE} on this journal", str(path), "wait for it, or choose another --out") from None
        except sqlite3.OperationalError as error:
            raise MachineError(
                f"the journal cannot be written: {error}", str(path), "choose a writable --out"
            ) from None
        except sqlite3.DatabaseError as error:
            raise MachineError(f"the journal is damaged: {error}", str(path), "start without --resume") from None
        except OSError as error:
            raise MachineError(
                f"cannot be written: {error.strerror}", str(path.parent), "choose a writable --out"
            ) from None

    def _open(self, original: Program, settings: Mapping[str, Any], *, resume: bool) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        # Survives a killed process; only a power cut loses the last rows.
        self._db.execute("PRAGMA synchronous = NORMAL")
        if resume:
            (said,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
            if said != "ok":
                raise sqlite3.DatabaseError(said)
        self._db.execute("BEGIN EXCLUSIVE")
        for statement in CREATE.split(";\n"):
            self._db.execute(statement)
        self._open_meta(original, settings, resume=resume)
        self._db.execute("COMMIT")

    def _open_meta(self, original: Program, settings: Mapping[str, Any], *, resume: bool) -> None:
        wanted = {"schema": str(SCHEMA), "original": original.digest, **{k: json.dumps(v) for k, v in settings.items()}}
        stored = dict(self._db.execute("SELECT key, value FROM meta"))
        (count,) = self._db.execute("SELECT count(*) FROM candidates").fetchone()
        if not stored and not count:  # new, or killed before anything was booked
            files = b64encode(_pack(original.files)).decode()  # so that a report can show the source
            rows = [*wanted.items(), ("files", files), ("identity", self._identity)]
            self._db.executemany("INSERT INTO meta VALUES (?, ?)", rows)
            return
        for key, value in wanted.items():
            if stored.get(key) != value:
                what = {
                    "schema": "it was written by another version of OptiML",
                    "original": "the source has changed since",
                }.get(key, f"'{key}' was {stored.get(key)}, now {value}")
                raise UsageError(f"this run cannot be resumed: {what}", str(self.path), "start without --resume")

    def mark_request(self, digest: str, seconds: float | None, candidates: int | None, *, ended: bool) -> None:
        """Write what this run was asked for and whether it came to its end, for who asks for the same again."""
        row = ("request", json.dumps([digest, seconds, candidates, ended]))
        with contextlib.suppress(sqlite3.Error):  # then the same is searched again
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", row)

    def book(self, entry: Entry) -> None:
        """Write one candidate; it is on disk when this returns. Raises MachineError when the disk is full."""
        evaluation = entry.evaluation
        measurement = evaluation.measurement
        row: tuple[Any, ...] = (
            entry.id, entry.parent, entry.proposer, entry.rule, json.dumps(dict(entry.parameters), sort_keys=True), entry.summary,
            entry.digest, evaluation.code_hash, json.dumps([[(s.grid, s.block, s.shared_bytes) for s in case] for case in entry.launches]),
            evaluation.outcome.value, evaluation.failure.reason if evaluation.failure else "",
            measurement.ratio if measurement else None, measurement.low if measurement else None,
            measurement.high if measurement else None, json.dumps(evaluation, default=vars, sort_keys=True),
            _pack(entry.files), float(entry.elapsed_s), float(entry.prior),
            None if entry.against is None else float(entry.against), time.time(),
        )  # fmt: skip
        row = tuple(map(_stored, row))
        self._write("INSERT INTO candidates", row)

    def _write(self, into: str, row: tuple[Any, ...]) -> None:
        """Add a row and its checksum. Raises MachineError when the disk is full."""
        marks = ", ".join("?" * (len(row) + 1))
        try:
            self._db.execute(f"{into} VALUES ({marks})", (*row, checksum(row)))
        except sqlite3.Error as error:
            raise MachineError(
                f"the journal cannot be written: {error}", str(self.path), "free some space, then resume with --resume"
            ) from None

    def book_profile(
        self, candidate: int, metrics: str, counters: Sequence[Mapping[str, tuple[float, str]]], proxies: Proxies
    ) -> None:
        """Write what a profiler counted of a candidate with a set of metrics. Raises MachineError when the disk is full."""
        row = (
            candidate,
            metrics,
            json.dumps(list(counters), sort_keys=True),
            json.dumps(dataclasses.asdict(proxies)),
            time.time(),
        )
        self._write("INSERT OR REPLACE INTO profiles", row)

    def book_question(self, asked: Asked) -> None:
        """Write that a question was asked, or in its place what it was answered. Raises MachineError when the disk is full."""
        answers = json.dumps(to_json(asked.answers), sort_keys=True)
        about = -1 if asked.about is None else asked.about
        row = tuple(map(_stored, (asked.node, asked.rule, asked.round, about, asked.ending, answers, time.time())))
        self._write("INSERT OR REPLACE INTO questions", row)

    def questions(self) -> list[Asked]:
        """The questions of this run, in the order of their last row. One that cannot be read counts as not asked."""
        found: list[Asked] = []
        rows = self._db.execute(
            "SELECT node, rule, round, about, ending, answers, booked_at, checksum FROM questions "
            "WHERE node IN (SELECT id FROM candidates) ORDER BY rowid"
        )
        for row in _whole(rows):
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                node, rule, round, about, ending, answers = row[:6]
                about = None if about < 0 else about
                found.append(Asked(node, rule, round, about, ending, from_json(json.loads(answers))))
        return found

    def book_credit(self, credit: Credit) -> None:
        """Write who else proposed what a candidate is. Raises MachineError when the disk is full."""
        row = (credit.after, credit.candidate, _stored(credit.proposer), int(credit.tried), time.time())
        self._write("INSERT OR REPLACE INTO credits", row)

    def credits(self) -> list[Credit]:
        """The credits of this run in the order in which they were given. What cannot be read counts as not given."""
        rows = self._db.execute(
            "SELECT after, candidate, proposer, tried, booked_at, checksum FROM credits "
            "WHERE after IN (SELECT id FROM candidates) ORDER BY rowid"
        )
        return [Credit(row[0], row[1], row[2], bool(row[3])) for row in _whole(rows)]

    def proxies(self) -> dict[int, Proxies]:
        """What counters said of candidates, the original first, the fullest set of each. What cannot be read counts as not there."""
        found: dict[int, Proxies] = {}
        try:
            rows = self._db.execute(
                "SELECT candidate, metrics, counters, proxies, booked_at, checksum FROM profiles "
                "WHERE candidate IN (SELECT id FROM candidates) ORDER BY candidate, metrics"
            )
            for *row, mark in rows:  # "cheap" comes before "full"
                if checksum(tuple(row)) == mark:
                    found[row[0]] = Proxies(**json.loads(row[3]))
        except (sqlite3.DatabaseError, ValueError, TypeError):
            return {}
        return found

    def entries(self) -> Iterator[Entry]:
        """All booked candidates in order. A row that is missing, or whose checksum does not fit, ends the run with MachineError."""
        do = "start without --resume"
        try:
            found = self._db.execute(f"SELECT {_COLUMNS}, checksum FROM candidates ORDER BY id")
            for expected, (*row, mark) in enumerate(found):
                if row[0] != expected:
                    raise MachineError(f"the journal is damaged: row {expected} is missing", str(self.path), do)
                if checksum(tuple(row)) != mark:
                    raise MachineError(f"row {row[0]} of the journal is damaged", str(self.path), do)
                try:
                    found_entry = _entry(row)
                except (KeyError, TypeError, ValueError, zlib.error):
                    what = f"row {row[0]} of the journal was written by another version"
                    raise MachineError(what, str(self.path), do) from None
                yield found_entry
        except sqlite3.DatabaseError as error:
            raise MachineError(f"the journal is damaged: {error}", str(self.path), do) from None

    def withdraw(self) -> None:
        """Forget what this run booked, unless it goes on with another: it was refused, and no result will stand beside it.

        Closing then leaves what an earlier run left, and none of the journal's files where there was none.
        """
        if not self._resumed:
            self._withdrawn = True
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("DELETE FROM candidates")
                self._db.execute("DELETE FROM questions")
                self._db.execute("DELETE FROM credits")

    def close(self) -> None:
        """Close the file and give the lock up."""
        with contextlib.suppress(sqlite3.Error):
            self._booked = self._db.execute("SELECT 1 FROM candidates").fetchone() is not None
        self._held.close()

    def _settle(self) -> None:
        """Leave the earlier journal or this one, with the lock held and the file closed."""
        with contextlib.suppress(OSError):
            if self._booked:
                for suffix in _FILES:
                    self._named(_EARLIER + suffix).unlink(missing_ok=True)
            elif self._named(_EARLIER).exists():
                self._move(_EARLIER, "")
            elif self._withdrawn:
                for suffix in _FILES:
                    self._named(suffix).unlink(missing_ok=True)
            if self._withdrawn and self._unlocked_before:
                self.path.with_suffix(".lock").unlink(missing_ok=True)

    def _move(self, source: str, to: str) -> None:
        for suffix in _FILES:
            self._named(to + suffix).unlink(missing_ok=True)
            if self._named(source + suffix).exists():
                self._named(source + suffix).rename(self._named(to + suffix))

    def _named(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)


def _stored(value: Any) -> Any:
    """A value as SQLite gives it back: half a character (from JSON, or bytes that are no UTF-8) and -0.0 are none."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return value + 0.0 if isinstance(value, float) else value


def checksum(row: tuple[Any, ...]) -> str:
    """What a row is checked by: `row` as SQLite gives it back."""
    return hashlib.sha256(repr(row).encode()).hexdigest()


def _pack(files: Mapping[str, bytes]) -> bytes:
    return zlib.compress(json.dumps({k: b64encode(v).decode() for k, v in files.items()}).encode(), 1)


def _entry(row: list[Any]) -> Entry:
    files = {k: b64decode(v) for k, v in json.loads(zlib.decompress(row[15])).items()}
    launches = tuple(tuple(LaunchConfig(tuple(g), tuple(b), s) for g, b, s in case) for case in json.loads(row[8]))
    return Entry(
        row[0], row[1], row[2], row[3], json.loads(row[4]), row[5], row[6], launches,
        evaluation_from_json(json.loads(row[14])), files, row[16], row[17], row[18],
    )  # fmt: skip


def _whole(rows: sqlite3.Cursor) -> Iterator[list[Any]]:
    """The rows whose checksum, in the last column, fits; those behind one that cannot be read are left out."""
    with contextlib.suppress(sqlite3.DatabaseError):
        for *row, mark in rows:
            if checksum(tuple(row)) == mark:
                yield row


def evaluation_from_json(data: Mapping[str, Any]) -> Evaluation:
    """An Evaluation from its `dataclasses.asdict` form."""
    measurement = data["measurement"]
    return Evaluation(
        outcome=Outcome(data["outcome"]),
        measurement=None if measurement is None else _measurement(measurement),
        failure=Failure(**data["failure"]) if data["failure"] else None,
        resources=tuple(Resources(**r) for r in data["resources"]),
        code_hash=data["code_hash"],
        stage_s=data["stage_s"],
        notes=tuple(data["notes"]),
        guardrails=tuple(Guardrail(**g) for g in data.get("guardrails", ())),
        device=data.get("device", {}),
        instances=tuple(VerifiedInstance(i["name"], _measurement(i["measurement"])) for i in data.get("instances", ())),
    )


def _measurement(data: Mapping[str, Any]) -> Measurement:
    cases, notes = tuple(CaseTiming(**c) for c in data["cases"]), tuple(data["notes"])
    return Measurement(**{**data, "cases": cases, "notes": notes})
