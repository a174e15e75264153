"""Tables of figures: measured row by row, kept as soon as a row is measured, gone on with after a limit or an interruption.

`optiml bench` (engine/commands/bench.py) is the command, `benchmarks/tables.py` the list of tables. While rows are missing a
record is `<name>.part.json`; with the last row it becomes `<name>.json`, so that a whole record is never lost to a broken run.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import sys
import time
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
    """One table. `measure` gives one row; what it raises of OptimlError becomes the row's `error`.

    `defaults` are the settings where none are given, `row_s` is about what a row takes (for the limit of a call), `summary`
    and `render` (Markdown) are made from the record alone.
    """

    name: str
    title: str
    defaults: Settings
    rows: Callable[[Place, Settings], Sequence[str]]
    measure: Callable[[Place, Settings, str], Row]
    summary: Callable[[Mapping[str, Row]], dict[str, Any]]
    render: Callable[[Mapping[str, Any]], str]
    row_s: Callable[[Settings, str], float] = field(default=lambda settings, row: 60.0)


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


def run(
    table: Table, place: Place, settings: Settings, command: Sequence[str], *,
    only: Sequence[str] = (), resume: bool = False, limit_s: float | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> Progress:  # fmt: skip
    """Measure a table, or what is missing of it; see the module's docstring.

    `limit_s`: no row is begun that would not end within so many seconds from now. Raises UsageError: no such row, a record of
    another version, other settings than the record's.
    """
    begin = time.monotonic()
    settings = _filled(settings, table.defaults)
    keys = list(table.rows(place, settings))
    unknown = [key for key in only if key not in keys]
    if unknown:
        raise UsageError(f"'{unknown[0][:60]}' is no row of {table.name}", "--only", f"there are {', '.join(keys)}")
    whole, part = place.results / f"{table.name}.json", place.results / f"{table.name}.part.json"
    finished, begun = load(whole, table.name), load(part, table.name)
    record = begun if resume else None
    if record is None and resume and finished is not None:
        record = finished
    if record is not None and record["settings"] != dataclasses.asdict(settings):
        raise UsageError(
            f"was begun with other settings ({_text(record['settings'])})", str(part if begun else whole),
            "give the same ones, or leave --resume away to begin anew",
        )  # fmt: skip
    if record is None:
        record = {
            "schema": SCHEMA, "name": table.name, "date": _now(), "settings": dataclasses.asdict(settings), "commands": [],
            "machine": machine(), "device": {}, "versions": {}, "rows": {},
        }  # fmt: skip
    rows: dict[str, Row] = record["rows"]
    record["commands"] = [*record["commands"], list(command)]
    todo = [key for key in (only or keys) if rows.get(key, {"error": ""})["error"] is not None]
    if not todo:
        say(f"{table.name}: every row is there")
        return Progress(record, whole if finished else part, (), ())
    for key in todo:
        left = None if limit_s is None else limit_s - (time.monotonic() - begin)
        if left is not None and left < table.row_s(settings, key):
            say(f"{table.name}: {left:.0f} s left of the limit, {key} takes about {table.row_s(settings, key):.0f} s")
            break
        say(f"{table.name}: {key} …")
        started, wall = _now(), time.monotonic()
        try:
            row = {"error": None, **table.measure(place, settings, key)}
        except OptimlError as error:
            row = {"error": str(error)[:2000]}
        rows[key] = {**row, "date": started, "commit": commit(), "wall_s": round(time.monotonic() - wall, 2)}
        for kept in ("device", "versions"):
            record[kept] = {**record[kept], **rows[key].pop(kept, {})}
        record["rows"] = rows = {k: rows[k] for k in keys if k in rows}
        good = {k: r for k, r in rows.items() if r["error"] is None}
        record["summary"] = table.summary(good) if good else {}
        _write(part, record)
    missing = tuple(k for k in keys if k not in rows)
    failed = tuple(k for k in keys if k in rows and rows[k]["error"] is not None)
    if not missing and not failed:
        os.replace(part, whole)
        return Progress(record, whole, (), ())
    return Progress(record, part, missing, failed)


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
