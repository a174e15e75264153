"""`optiml show DIR`: print a run's result again, with the tree if asked."""

from __future__ import annotations

import argparse
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from engine.errors import MachineError, UsageError


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser("show", help="print a run's result again")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the output folder of a run")
    parser.add_argument("--tree", action="store_true", help="also print every candidate as a tree")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0."""
    from engine.report.terminal import print_result, print_tree
    from engine.result import SCHEMA

    path = arguments.folder / "result.json"
    if not path.is_file():
        raise UsageError("there is no result", where=str(path), do="name the output folder of 'optiml optimize'")
    try:
        data: dict[str, Any] = json.loads(path.read_bytes())
        if data["schema"] != SCHEMA:
            raise UsageError(f"has the schema {data['schema']}, not {SCHEMA}", str(path), "run 'optiml optimize' again")
        result = _result(data)
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"is no result of this program ({error})", str(path), "run 'optiml optimize' again") from None
    print_result(result, arguments.folder)
    if arguments.tree:
        print_tree(_rows(arguments.folder / "journal.sqlite"))
    return 0


def _result(data: dict[str, Any]) -> Any:
    from engine.result import Best, OptimizationResult, Refusal
    from engine.search.journal import evaluation_from_json as evaluation

    best = data["best"]
    return OptimizationResult(
        **{
            **data,
            "original": evaluation(data["original"]),
            "best": Best(**{**best, "evaluation": evaluation(best["evaluation"]), "files": tuple(best["files"])})
            if best
            else None,
            "trajectory": tuple(_step(s) for s in data["trajectory"]),
            "refused": tuple(Refusal(**{**r, "evaluation": evaluation(r["evaluation"])}) for r in data["refused"]),
            "notes": tuple(data["notes"]),
            "diagnosis": tuple(data["diagnosis"]),
        }
    )


def _step(data: dict[str, Any]) -> Any:
    from engine.result import Step
    from engine.search.journal import evaluation_from_json as evaluation

    lists = {name: tuple(data[name]) for name in ("diagnosis", "moved")}
    return Step(**{**data, **lists, "evaluation": evaluation(data["evaluation"])})


def _rows(path: Path) -> list[tuple[int, int | None, str, str, str, float | None]]:
    if not path.is_file():
        raise UsageError("there is no journal", where=str(path), do="name the output folder of 'optiml optimize'")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=0.5)) as db:
            return list(db.execute("SELECT id, parent, summary, outcome, reason, ratio FROM candidates ORDER BY id"))
    except sqlite3.Error as error:
        raise MachineError(f"the journal cannot be read: {error}", str(path), "wait for the run that uses it") from None
