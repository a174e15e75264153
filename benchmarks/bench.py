"""Tables of figures: measured row by row, kept as soon as a row is measured, gone on with after a limit or an interruption.

`benchmarks/bench_command.py` is the command `optiml bench`, `benchmarks/tables.py` the list of tables. While rows are missing a
record is `<name>.part.json`; with the last row it becomes `<name>.json`, so that a whole record is never lost to a broken run.
`benchmarks/cluster_rows.py` measures the rows of several tables over several devices at once.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.examples import CHANGED, commit, machine
from engine.errors import MachineError, OptimlError, UsageError

SCHEMA = "optiml.bench/1"
Row = dict[str, Any]
_AWAY = "move it away, or name another folder with --out"
_PARTS = {"settings": dict, "commands": list, "device": dict, "versions": dict, "rows": dict}  # what is gone on with


@dataclass(frozen=True)
class Settings:
    """What a measurement depends on besides the machine. A record is only gone on with under the same settings."""

    seconds: float | None = None  # of each search; None: the table's own
    candidates: int | None = None  # of each run of an ablation; None: the table's own
    seeds: int | None = None
    device: str = "auto"


@dataclass(frozen=True)
class Place:
    """Where a table is measured: `results` holds the records, `work` what runs leave and later rows need again, `checkouts` other
    people's repositories."""

    root: Path  # of the checkout
    results: Path
    work: Path
    checkouts: Path | None = None


@dataclass(frozen=True)
class Table:
    """One table. `measure` gives one row; what it raises becomes the row's `error`.

    `defaults` are the settings where none are given, `row_s` is about what a row takes (for the limit of a call), `summary`
    and `render` (Markdown) are made from the record alone. `needs` names the rows, with their tables, whose results a row takes:
    in a call that measures both they come first. Rows of one `group` leave on a GPU what the next of them can use there again. With
    `checkouts` the rows are of other people's repositories.
    """

    name: str
    title: str
    defaults: Settings
    rows: Callable[[Place, Settings], Sequence[str]]
    measure: Callable[[Place, Settings, str], Row]
    summary: Callable[[Mapping[str, Row]], dict[str, Any]]
    render: Callable[[Mapping[str, Any]], str]
    row_s: Callable[[Settings, str], float] = field(default=lambda settings, row: 60.0)
    needs: Callable[[Place, str], Sequence[tuple[str, str]]] = field(default=lambda place, row: ())
    group: Callable[[str], str | None] = field(default=lambda row: None)
    checkouts: bool = False


@dataclass(frozen=True)
class Progress:
    """How a call ended: the record, where it stands (None: nowhere yet), and the rows that are still missing or failed."""

    record: Mapping[str, Any]
    path: Path | None
    missing: tuple[str, ...]
    failed: tuple[str, ...]


def load(path: Path, name: str) -> dict[str, Any] | None:
    """The record at a path, None where there is none. Raises UsageError for what is not a record of this version and name."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"is no record: {error}", str(path), _AWAY) from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA or record.get("name") != name:
        found = record.get("schema") if isinstance(record, dict) else None
        raise UsageError(
            f"is a record of another version or table ({str(found)[:60]!r}, wanted {SCHEMA!r}); nothing was overwritten",
            str(path), _AWAY,
        )  # fmt: skip
    for key, kind in _PARTS.items():
        if not isinstance(record.get(key), kind):
            raise UsageError(
                f"is no record: '{key}' is missing or of another form", str(path),
                _AWAY,
            )  # fmt: skip
    if not all(isinstance(row, dict) and "error" in row for row in record["rows"].values()):
        raise UsageError("is no record: a row says not how it ended", str(path), _AWAY)
    return record


class Ledger:
    """One table's record while its rows are measured: what is still to do, and each row on disk as soon as it is booked.

    A prediction never takes the place of what was measured, nor is a record half of each. Raises UsageError: no such row, a record of
    another version, other settings than the record's, measured against predicted, a checkout with changes where a GPU measures;
    MachineError as `engine.run.device_choice.usable_gpu`.
    """

    def __init__(
        self, table: Table, place: Place, settings: Settings, command: Sequence[str], *, only: Sequence[str] = (), resume: bool = False
    ) -> None:  # fmt: skip
        self.table, self.place, self.settings = table, place, _filled(settings, table.defaults)
        self._keys = list(table.rows(place, self.settings))
        unknown = [key for key in only if key not in self._keys]
        if unknown:
            raise UsageError(
                f"'{unknown[0][:60]}' is no row of {table.name}", "--only", f"there are {', '.join(self._keys)}"
            )
        self._whole, self._part = place.results / f"{table.name}.json", place.results / f"{table.name}.part.json"
        held = {path: load(path, table.name) for path in (self._part, self._whole)}
        # Where the record stands on disk; None for one that is begun and has no row there yet.
        self._path = next((path for path, found in held.items() if resume and found is not None), None)
        record = None if self._path is None else held[self._path]
        if record is not None and record["settings"] != dataclasses.asdict(self.settings):
            raise UsageError(
                f"was begun with other settings ({_text(record['settings'])})", str(self._path),
                "give the same ones, or leave --resume away to begin anew",
            )  # fmt: skip
        if record is None:
            record = {
                "schema": SCHEMA, "name": table.name, "date": _now(), "settings": dataclasses.asdict(self.settings), "commands": [],
                "machine": machine(), "device": {}, "versions": {}, "rows": {},
            }  # fmt: skip
        self.record: dict[str, Any] = record
        self.record["commands"] = [*record["commands"], list(command)]
        rows = record["rows"]
        self.todo = [key for key in (only or self._keys) if rows.get(key, {"error": ""})["error"] is not None]
        self.all_there = f"{table.name}: every row{' that was asked for' if only else ''} is there"
        self._measured = next((path for path, found in held.items() if "measured" in _modes(found)), None)
        if self.todo:
            self._check_tree()
            self._check_mode()

    def _check_tree(self) -> None:
        from engine.run.device_choice import usable_gpu

        if commit().endswith(CHANGED) and usable_gpu(self.settings.device) is not None:
            raise UsageError(
                "has uncommitted changes, and a record of measurements names a commit",
                str(self.place.root),
                "commit or stash them first",
            )

    def _check_mode(self) -> None:
        resumed = _modes(self.record)
        if self._measured is None and "predicted" not in resumed:
            return
        from engine.run.device_choice import usable_gpu

        predicts = usable_gpu(self.settings.device) is None
        if predicts and self._measured is not None:
            raise UsageError(
                "holds what was measured, and this run would only predict; nothing was overwritten", str(self._measured),
                "name another folder with --out, or measure with --device gpu",
            )  # fmt: skip
        if not predicts and "predicted" in resumed:
            raise UsageError(
                "holds predictions, and this run would measure", str(self._path),
                "leave --resume away to measure all of it",
            )  # fmt: skip

    def row_s(self, key: str) -> float:
        """About what a row takes, in seconds."""
        return self.table.row_s(self.settings, key)

    def book(self, key: str, row: Row) -> None:
        """Keep a row, on disk as well. Raises MachineError where it cannot be written."""
        row = dict(row)
        if row.get("mode") == "predicted" and (self._measured is not None or "measured" in _modes(self.record)):
            why = "came out predicted, beside what was measured: the GPU does not answer any more"
            row = {"error": why, **{k: row[k] for k in ("date", "commit", "wall_s", "gpu") if k in row}}
        for kept in ("device", "versions"):
            self.record[kept] = {**self.record[kept], **row.pop(kept, {})}
        rows = {**self.record["rows"], key: row}
        self.record["rows"] = rows = {k: rows[k] for k in self._keys if k in rows}
        good = {k: r for k, r in rows.items() if r["error"] is None}
        self.record["summary"] = self.table.summary(good) if good else {}
        with _kept(self._part.parent):
            _write(self._part, self.record)
        self._path = self._part

    def progress(self) -> Progress:
        """How the call ended; with the last row the record gets its name. Raises MachineError where it cannot."""
        rows = self.record["rows"]
        missing = tuple(k for k in self._keys if k not in rows)
        failed = tuple(k for k in self._keys if k in rows and rows[k]["error"] is not None)
        # A call that was killed after its last row has left a whole record under the other name.
        if not missing and not failed and self._path == self._part:
            with _kept(self._part.parent):
                os.replace(self._part, self._whole)
            self._path = self._whole
        return Progress(self.record, self._path, missing, failed)


def check_folder(folder: Path) -> None:
    """Make the folder of the records and try whether it can be written: before a row is measured. Raises MachineError."""
    with _kept(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def run(
    ledger: Ledger, *, limit_s: float | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
    on_row: Callable[[int, int, str], None] = lambda done, of, key: None,
) -> Progress:  # fmt: skip
    """Measure what is missing of a table in this process; see the module's docstring.

    `on_row` is called before each row with how many are done, of how many. `limit_s`: no row is begun that would not end within so
    many seconds from now. Raises MachineError where a row cannot be kept.
    """
    begin = time.monotonic()
    name = ledger.table.name
    if not ledger.todo:
        say(ledger.all_there)
    for done, key in enumerate(ledger.todo):
        left = None if limit_s is None else limit_s - (time.monotonic() - begin)
        if left is not None and left < ledger.row_s(key):
            say(f"{name}: {left:.0f} s left of the limit, {key} takes about {ledger.row_s(key):.0f} s")
            break
        say(f"{name}: {key} …")
        on_row(done, len(ledger.todo), key)
        ledger.book(key, measured_row(ledger.table, ledger.place, ledger.settings, key))
    return ledger.progress()


def measured_row(table: Table, place: Place, settings: Settings, key: str) -> Row:
    """One row with its date, commit and seconds. What goes wrong in it is its `error`: the others go on."""
    started, wall = _now(), time.monotonic()
    try:
        row = {"error": None, **table.measure(place, _filled(settings, table.defaults), key)}
    except OptimlError as error:
        row = {"error": str(error)[:2000]}
    except Exception as error:  # of a peer's library as well as of ours
        at = traceback.extract_tb(error.__traceback__)[-1]
        row = {"error": f"{type(error).__name__}: {error} ({Path(at.filename).name}:{at.lineno} in {at.name})"[:2000]}
    return {**row, "date": started, "commit": commit(), "wall_s": round(time.monotonic() - wall, 2)}


def _filled(settings: Settings, defaults: Settings) -> Settings:
    given = {k: v for k, v in dataclasses.asdict(settings).items() if v is not None}
    return dataclasses.replace(defaults, **given)


def _modes(record: Mapping[str, Any] | None) -> set[str]:
    """Of "measured" and "predicted" those that its rows are; a table of peers has neither."""
    return set() if record is None else {row["mode"] for row in record["rows"].values() if row.get("mode")}


@contextmanager
def _kept(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise MachineError(
            f"cannot be written: {error.strerror}", str(folder), "name a folder that can be written with --out"
        ) from None


def _text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(new, path)
