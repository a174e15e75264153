"""What `optiml bench` does: tables measured by name, gone on with, and shown."""

from __future__ import annotations

import argparse
import difflib
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import bench
from benchmarks.tables import TABLES
from engine.commands import bench_row
from engine.commands.json_answer import print_json
from engine.commands.optimize import parse_budget
from engine.errors import UsageError
from engine.report.terminal import Live

INCOMPLETE = 4  # exit code: rows are missing; the same command with --resume goes on


def run(arguments: argparse.Namespace, root: Path) -> int:
    """Exit code 0 when the tables are whole, 4 when rows are missing. Raises UsageError, MachineError."""
    if not arguments.names:
        if arguments.format == "json":
            print_json(bench.SCHEMA, tables=[{"name": name, "title": table.title} for name, table in TABLES.items()])
            return 0
        width = max(map(len, TABLES))
        for name, table in TABLES.items():
            print(f"{name.ljust(width)}  {table.title}")
        return 0
    names = list(dict.fromkeys(arguments.names))
    for name in names:
        if name not in TABLES:
            near = difflib.get_close_matches(name, TABLES, n=3, cutoff=0.4)
            raise UsageError(
                f"unknown table '{name[:60]}'",
                do=f"did you mean {' or '.join(near)}?" if near else "'optiml bench' lists them",
            )
        if TABLES[name].checkouts and arguments.checkouts is None:
            raise UsageError(
                f"the table '{name}' requires checkouts of other repositories", do="name their folder: --checkouts DIR"
            )
    for option in ("seconds", "candidates", "seeds"):
        value = getattr(arguments, option)
        if value is not None and not value > 0:
            raise UsageError(f"--{option} must be above 0")
    results = (arguments.out or root / "benchmarks" / "results").resolve()
    checkouts = None if arguments.checkouts is None else arguments.checkouts.resolve()
    place = bench.Place(root, results, root / ".optiml" / "bench", checkouts)
    settings = bench.Settings(arguments.seconds, arguments.candidates, arguments.seeds, arguments.device)
    only = [row for row in arguments.only.split(",") if row]
    limit_s = _limit(arguments.limit)
    if arguments.row_to is not None:
        return _row(TABLES[names[0]], place, settings, only, arguments.row_to)
    chosen = [(TABLES[name], _of_table(TABLES[name], place, settings, only, len(names))) for name in names]
    if only:
        chosen = [(table, rows) for table, rows in chosen if rows]
        there = {row for _, rows in chosen for row in rows}
        missing = [row for row in only if row not in there]
        if missing:
            raise UsageError(f"unknown row '{missing[0][:60]}' of {', '.join(names)}", "--only")
    command = ["optiml", *sys.argv[1:]]
    begin = time.monotonic()
    over = None
    if arguments.cluster is not None or arguments.gpus is not None:  # Dask takes a second to load
        from benchmarks.cluster_rows import over as on_cluster

        over = on_cluster(arguments, place)
    elif arguments.workers is not None:
        raise UsageError("--workers requires --cluster", do="add --cluster local")
    ledgers = [
        bench.Ledger(table, place, settings, command, only=rows, resume=arguments.resume) for table, rows in chosen
    ]
    if any(ledger.todo for ledger in ledgers):
        bench.check_folder(results)
    with Live(phase="beginning", quiet=arguments.format == "json") as live:

        def say(text: str) -> None:
            with live.paused():
                print(text, file=sys.stderr, flush=True)

        if over is not None:
            live.phase("measuring on the workers")
            ended = over(ledgers, limit_s, say)
        else:
            ended = []
            for ledger in ledgers:
                left_s = None if limit_s is None else limit_s - (time.monotonic() - begin)
                name = ledger.table.name
                live.phase(name)

                def row(done: int, of: int, key: str, name: str = name) -> None:
                    live.count(done, of, f"{name}, {key}")

                ended.append(bench.run(ledger, limit_s=left_s, say=say, on_row=row))
    if arguments.format == "json":
        print_json(bench.SCHEMA, records=[_plain(progress) for progress in ended])
    for (table, _), progress in zip(chosen, ended, strict=True) if arguments.format == "text" else ():
        _show(table, progress)
    if any(progress.missing or progress.failed for progress in ended):
        missed, failed = (sum(len(getattr(p, what)) for p in ended) for what in ("missing", "failed"))
        left = {row for p in ended for row in (*p.missing, *p.failed)}
        again = _again(sys.argv[1:], rest=left.isdisjoint(only))
        print(f"optiml: {missed} rows missing, {failed} failed; continue with: {again}", file=sys.stderr)
        return INCOMPLETE
    return 0


def _of_table(
    table: bench.Table, place: bench.Place, settings: bench.Settings, only: Sequence[str], tables: int
) -> Sequence[str]:
    """Of the rows asked for those of this table; all where it is the only one, which says what it has."""
    return only if tables == 1 else [row for row in only if row in table.rows(place, settings)]


def _again(arguments: Sequence[str], *, rest: bool) -> str:
    """The command that goes on; with the `rest`, where all the rows that `--only` names are there."""
    kept = [a for a in arguments if a != "--resume"]
    if rest:
        named = [i for i, a in enumerate(kept) if a == "--only" or a.startswith("--only=")]
        for i in reversed(named):
            del kept[i : i + 1 + (kept[i] == "--only")]
    return shlex.join(["optiml", *kept, "--resume"])


def _plain(progress: bench.Progress) -> dict[str, Any]:
    """A table's record, where it is, and the rows that it lacks."""
    return {
        "path": progress.path,
        "record": progress.record,
        "missing": list(progress.missing),
        "failed": list(progress.failed),
    }


def _show(table: bench.Table, progress: bench.Progress) -> None:
    if progress.record.get("summary"):
        print(table.render(progress.record))
    for row in progress.failed:
        print(f"optiml: {row}: {progress.record['rows'][row]['error']}", file=sys.stderr)
    if progress.path is not None:
        print(progress.path)


def _row(table: bench.Table, place: bench.Place, settings: bench.Settings, only: Sequence[str], target: Path) -> int:
    """Measure one row and leave it in a file: the process that a worker starts for it."""
    bench_row.end_with_parent()
    row = bench.measured_row(table, place, settings, only[0])
    new = target.with_suffix(".new")
    new.write_text(json.dumps(row), encoding="utf-8")
    new.replace(target)
    return 0


def _limit(text: str | None) -> float | None:
    if text is None:
        return None
    seconds: float | None = parse_budget(text).seconds
    if seconds is None:
        raise UsageError(f"invalid limit '{text}'", "--limit", "expected e.g. 540s or 9m")
    return seconds
