"""`optiml bench NAME …`: measure tables of the project's figures, by name. Needs a checkout of the project."""

from __future__ import annotations

import argparse
import difflib
import importlib
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.commands.json_answer import print_json
from engine.commands.optimize import parse_budget
from engine.errors import UsageError
from engine.report.terminal import Live

SCHEMA = "optiml.bench/1"
INCOMPLETE = 4  # exit code: rows are missing; the same command with --resume goes on


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when the tables are whole, 4 when rows are missing. Raises UsageError, MachineError."""
    root = find_checkout(arguments.checkout)
    sys.path.insert(0, str(root))
    bench: Any = importlib.import_module("benchmarks.bench")
    tables: Any = importlib.import_module("benchmarks.tables").TABLES
    if not arguments.names:
        if arguments.format == "json":
            print_json(SCHEMA, tables=[{"name": name, "title": table.title} for name, table in tables.items()])
            return 0
        width = max(map(len, tables))
        for name, table in tables.items():
            print(f"{name.ljust(width)}  {table.title}")
        return 0
    names = list(dict.fromkeys(arguments.names))
    for name in names:
        if name not in tables:
            near = difflib.get_close_matches(name, tables, n=3, cutoff=0.4)
            raise UsageError(
                f"unknown table '{name[:60]}'",
                do=f"did you mean {' or '.join(near)}?" if near else "'optiml bench' lists them",
            )
    for option in ("seconds", "candidates", "seeds"):
        value = getattr(arguments, option)
        if value is not None and not value > 0:
            raise UsageError(f"--{option} must be above 0")
    results = (arguments.out or root / "benchmarks" / "results").resolve()
    place = bench.Place(root, results, root / ".optiml" / "bench")
    settings = bench.Settings(arguments.seconds, arguments.candidates, arguments.seeds, arguments.device)
    only = [row for row in arguments.only.split(",") if row]
    limit_s = _limit(arguments.limit)
    if arguments.row_to is not None:
        return _row(bench, tables[names[0]], place, settings, only, arguments.row_to)
    chosen = [(tables[name], _of_table(tables[name], place, settings, only, len(names))) for name in names]
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
        rows: Any = importlib.import_module("benchmarks.cluster_rows")
        over = rows.over(arguments, place)
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
        print_json(SCHEMA, records=[_plain(progress) for progress in ended])
    for (table, _), progress in zip(chosen, ended, strict=True) if arguments.format == "text" else ():
        _show(table, progress)
    if any(progress.missing or progress.failed for progress in ended):
        missed, failed = (sum(len(getattr(p, what)) for p in ended) for what in ("missing", "failed"))
        left = {row for p in ended for row in (*p.missing, *p.failed)}
        again = _again(sys.argv[1:], rest=left.isdisjoint(only))
        print(f"optiml: {missed} rows missing, {failed} failed; continue with: {again}", file=sys.stderr)
        return INCOMPLETE
    return 0


def _of_table(table: Any, place: Any, settings: Any, only: Sequence[str], tables: int) -> Sequence[str]:
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


def _plain(progress: Any) -> dict[str, Any]:
    """A table's record, where it is, and the rows that it lacks."""
    return {
        "path": progress.path,
        "record": progress.record,
        "missing": list(progress.missing),
        "failed": list(progress.failed),
    }


def _show(table: Any, progress: Any) -> None:
    if progress.record.get("summary"):
        print(table.render(progress.record))
    for row in progress.failed:
        print(f"optiml: {row}: {progress.record['rows'][row]['error']}", file=sys.stderr)
    if progress.path is not None:
        print(progress.path)


def _row(bench: Any, table: Any, place: Any, settings: Any, only: Sequence[str], target: Path) -> int:
    """Measure one row and leave it in a file: the process that a worker starts for it."""
    importlib.import_module("engine.commands.bench_row").end_with_parent()
    row = bench.measured_row(table, place, settings, only[0])
    new = target.with_suffix(".new")
    new.write_text(json.dumps(row), encoding="utf-8")
    new.replace(target)
    return 0


def find_checkout(named: Path | None) -> Path:
    """The folder that holds `benchmarks/tables.py`.

    Never the working directory unasked: that may be the checkout of a stranger's pull request, and its code would run.
    Raises UsageError.
    """
    root = (named or Path(__file__).parent.parent.parent).resolve()
    if not (root / "benchmarks" / "tables.py").is_file():
        raise UsageError(
            "the benchmarks are not part of the installed package, and this is not a checkout of the project", str(root),
            "clone it and name it with --checkout DIR",
        )  # fmt: skip
    return root


def _limit(text: str | None) -> float | None:
    if text is None:
        return None

    seconds: float | None = parse_budget(text).seconds
    if seconds is None:
        raise UsageError(f"invalid limit '{text}'", "--limit", "expected e.g. 540s or 9m")
    return seconds
