"""Tables of figures: measured row by row, kept as soon as a row is measured, gone on with after a limit or an interruption.

`optiml bench` (engine/commands/bench.py) is the command, `benchmarks/tables.py` the list of tables. While rows are missing a
record is `<name>.part.json`; with the last row it becomes `<name>.json`, so that a whole record is never lost to a broken run.
`benchmarks/spread.py` measures the rows of several tables over several GPUs at once.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.examples import commit, machine
from engine.errors import OptimlError, UsageError

SCHEMA = "optiml.bench/1"
Row = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """What a measurement depends on besides the machine. A record is only gone on with under the same settings."""

    seconds: float | None = None  # of each search; None: the table's own
    candidates: int | None = None  # of each run of an ablation; None: the table's own
    seeds: int | None = None
    device: str = "auto"


@dataclass(frozen=True)
class Place:
    """Where a table is measured: `results` holds the records, `work` what runs leave and later rows need again."""

    root: Path  # of the checkout
    results: Path
    work: Path


@dataclass(frozen=True)
class Table:
    """One table. `measure` gives one row; what it raises becomes the row's `error`.

    `defaults` are the settings where none are given, `row_s` is about what a row takes (for the limit of a call), `summary`
    and `render` (Markdown) are made from the record alone. `needs` names the rows, with their tables, whose results a row takes:
    in a call that measures both they come first. Rows of one `group` leave on a GPU what the next of them can use there again.
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


@dataclass(frozen=True)
class Progress:
    """How a call ended: the record, where it stands, and the rows that are still missing or failed."""

    record: Mapping[str, Any]
    path: Path
    missing: tuple[str, ...]
    failed: tuple[str, ...]


def load(path: Path, name: str) -> dict[str, Any] | None:
    """The record at a path, None where there is none. Raises UsageError for what is not a record of this version and name."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"is no record: {error}", str(path), "move it away, or name another folder with --out"
        ) from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA or record.get("name") != name:
        found = record.get("schema") if isinstance(record, dict) else None
        raise UsageError(
            f"is a record of another version or table ({str(found)[:60]!r}, wanted {SCHEMA!r}); nothing was overwritten",
            str(path), "move it away, or name another folder with --out",
        )  # fmt: skip
    return record


class Ledger:
    """One table's record while its rows are measured: what is still to do, and each row on disk as soon as it is booked.

    Raises UsageError: no such row, a record of another version, other settings than the record's.
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
        finished, begun = load(self._whole, table.name), load(self._part, table.name)
        record = (begun or finished) if resume else None
        if record is not None and record["settings"] != dataclasses.asdict(self.settings):
            raise UsageError(
                f"was begun with other settings ({_text(record['settings'])})", str(self._part if begun else self._whole),
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

    def row_s(self, key: str) -> float:
        """About what a row takes, in seconds."""
        return self.table.row_s(self.settings, key)

    def book(self, key: str, row: Row) -> None:
        """Keep a row, on disk as well."""
        row = dict(row)
        for kept in ("device", "versions"):
            self.record[kept] = {**self.record[kept], **row.pop(kept, {})}
        rows = {**self.record["rows"], key: row}
        self.record["rows"] = rows = {k: rows[k] for k in self._keys if k in rows}
        good = {k: r for k, r in rows.items() if r["error"] is None}
        self.record["summary"] = self.table.summary(good) if good else {}
        _write(self._part, self.record)

    def progress(self) -> Progress:
        """How the call ended; with the last row the record gets its name."""
        rows = self.record["rows"]
        missing = tuple(k for k in self._keys if k not in rows)
        failed = tuple(k for k in self._keys if k in rows and rows[k]["error"] is not None)
        # A call that was killed after its last row has left a whole record under the other name.
        if not missing and not failed and self._part.exists():
            os.replace(self._part, self._whole)
        path = self._part if missing or failed or not self._whole.exists() else self._whole
        return Progress(self.record, path, missing, failed)


def run(
    table: Table, place: Place, settings: Settings, command: Sequence[str], *,
    only: Sequence[str] = (), resume: bool = False, limit_s: float | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Progress:  # fmt: skip
    """Measure a table, or what is missing of it, in this process; see the module's docstring.

    `limit_s`: no row is begun that would not end within so many seconds from now. Raises UsageError as `Ledger`.
    """
    begin = time.monotonic()
    ledger = Ledger(table, place, settings, command, only=only, resume=resume)
    if not ledger.todo:
        say(f"{table.name}: every row{' that was asked for' if only else ''} is there")
    for key in ledger.todo:
        left = None if limit_s is None else limit_s - (time.monotonic() - begin)
        if left is not None and left < ledger.row_s(key):
            say(f"{table.name}: {left:.0f} s left of the limit, {key} takes about {ledger.row_s(key):.0f} s")
            break
        say(f"{table.name}: {key} …")
        ledger.book(key, measured_row(table, place, ledger.settings, key))
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


def _text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in settings.items() if value is not None)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _write(path: Path, record: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(new, path)
