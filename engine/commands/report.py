"""`optiml report DIR`: one HTML file from a run's output folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "report",
        help="make one HTML file of a run",
        description="Make one HTML file of a run of optimize or tune, to be opened anywhere.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the output folder of a run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="where the page goes (default: DIR/report.html)")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0; what cannot be read raises."""
    from engine.errors import MachineError, UsageError
    from engine.report.page import render, render_tuning
    from engine.report.read import read_patch, read_result, read_run
    from engine.result import OptimizationResult
    from engine.tune.result import TuneResult

    out: Path = arguments.out or arguments.folder / "report.html"
    if out.exists() and not out.is_file():  # the page takes the place of what stands there: of a device too
        kind = "a folder" if out.is_dir() else "no regular file"
        raise UsageError(f"is {kind}", str(out), "name a file with --out")
    result: Any = read_result(arguments.folder, {"result.json": (OptimizationResult, TuneResult)})
    if isinstance(result, TuneResult):
        made = {"best.patch": result.best, "dispatch.patch": result.dispatch}
        found = {name: read_patch(arguments.folder, name) for name, suggested in made.items() if suggested is not None}
        text = render_tuning(result, {name: patch for name, patch in found.items() if patch})
    else:
        text = render(read_run(arguments.folder))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        partial = out.with_name(f".{out.name}.part")
        partial.write_text(text, encoding="utf-8", newline="\n")
        partial.replace(out)
    except OSError as error:
        raise MachineError(f"the page cannot be written: {error.strerror}", str(out), "choose another --out") from None
    print(out)
    return 0
