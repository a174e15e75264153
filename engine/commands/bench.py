"""`optiml bench NAME`: measure one table of the project's figures, by name. Needs a checkout of the project."""

from __future__ import annotations

import argparse
import difflib
import importlib
import shlex
import sys
from pathlib import Path
from typing import Any

from engine.errors import UsageError

INCOMPLETE = 4  # exit code: rows are missing; the same command with --resume goes on


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser("bench", help="measure one of the project's tables again (needs a checkout)")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the table (default: list them)")
    parser.add_argument("--only", default="", metavar="ROWS", help="only these rows, separated by commas")
    parser.add_argument("--resume", action="store_true", help="go on with a record that has rows missing or failed")
    parser.add_argument("--limit", metavar="N", help="begin no row that would not end within 540s, 9m …")
    parser.add_argument("--seconds", type=float, metavar="N", help="of each search (default: the table's)")
    parser.add_argument("--candidates", type=int, metavar="N", help="of each run of an ablation (default: 100)")
    parser.add_argument("--seeds", type=int, metavar="N", help="how many (default: the table's)")
    parser.add_argument("--device", choices=("auto", "gpu", "cpu"), default="auto", help="as for optimize")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the records are (default: benchmarks/results)")
    parser.add_argument("--checkout", type=Path, metavar="DIR", help="the project's checkout (default: this package's)")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when the table is whole, 4 when rows are missing. Raises UsageError."""
    root = find_checkout(arguments.checkout)
    sys.path.insert(0, str(root))
    bench: Any = importlib.import_module("benchmarks.bench")
    tables: Any = importlib.import_module("benchmarks.tables").TABLES
    if arguments.name is None:
        width = max(map(len, tables))
        for name, table in tables.items():
            print(f"{name.ljust(width)}  {table.title}")
        return 0
    if arguments.name not in tables:
        near = difflib.get_close_matches(arguments.name, tables, n=3, cutoff=0.4)
        raise UsageError(
            f"there is no table '{arguments.name[:60]}'",
            do=f"did you mean {' or '.join(near)}?" if near else "`optiml bench` lists them",
        )
    for option in ("seconds", "candidates", "seeds"):
        value = getattr(arguments, option)
        if value is not None and not value > 0:
            raise UsageError(f"--{option} must be above 0")
    table = tables[arguments.name]
    results = (arguments.out or root / "benchmarks" / "results").resolve()
    progress = bench.run(
        table, bench.Place(root, results, root / ".optiml" / "bench"),
        bench.Settings(arguments.seconds, arguments.candidates, arguments.seeds, arguments.device),
        ["optiml", *sys.argv[1:]],
        only=[row for row in arguments.only.split(",") if row], resume=arguments.resume, limit_s=_limit(arguments.limit),
    )  # fmt: skip
    if progress.record.get("summary"):
        print(table.render(progress.record))
    for row in progress.failed:
        print(f"optiml: {row}: {progress.record['rows'][row]['error']}", file=sys.stderr)
    print(progress.path)
    if progress.missing or progress.failed:
        again = shlex.join(["optiml", *(a for a in sys.argv[1:] if a != "--resume"), "--resume"])
        print(
            f"optiml: {len(progress.missing)} rows missing, {len(progress.failed)} failed; go on: {again}",
            file=sys.stderr,
        )
        return INCOMPLETE
    return 0


def find_checkout(named: Path | None) -> Path:
    """The folder that holds `benchmarks/tables.py`.

    Never the working directory unasked: that may be the checkout of a stranger's pull request, and its code would run.
    Raises UsageError.
    """
    root = (named or Path(__file__).parent.parent.parent).resolve()
    if not (root / "benchmarks" / "tables.py").is_file():
        raise UsageError(
            "the benchmarks are not part of the installed package, and there is no checkout of the project here", str(root),
            "clone it and name it with --checkout DIR",
        )  # fmt: skip
    return root


def _limit(text: str | None) -> float | None:
    if text is None:
        return None
    from engine.commands.optimize import parse_budget

    seconds: float | None = parse_budget(text).seconds
    if seconds is None:
        raise UsageError(f"'{text}' is no limit", "--limit", "write seconds or minutes, as in 540s or 9m")
    return seconds
