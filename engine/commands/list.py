"""`optiml list`: every kernel of the repository with its spec, its share of the time and its headroom."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from engine.campaign.survey import NOT_RUN, READY, Surveyor
from engine.commands.optimize import check_machine, machine_of
from engine.cuda.load import repository_root
from engine.errors import UsageError
from engine.predicted_number import approximate
from engine.report.console import Console
from engine.report.safe_text import clean
from engine.report.terminal import Live

if TYPE_CHECKING:
    from engine.campaign.survey import Survey
    from engine.run.machine import Machine

SCHEMA = "optiml.list/1"


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0; UsageError where there is no kernel."""
    check_machine(arguments)
    root = root_of(arguments.folder)
    machine = machine_of(arguments)
    try:
        survey = survey_of(arguments, root, machine)
    finally:
        machine.close()
    if arguments.format == "json":
        kernels = [{**dataclasses.asdict(kernel), "spec": kernel.state} for kernel in survey.kernels]
        found = {"schema": SCHEMA, "kernels": kernels, "arch": survey.arch, "notes": notes(survey)}
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
    else:
        print_survey(survey)
    return 0


def root_of(folder: Path) -> Path:
    """The repository's root. Raises UsageError for what is not a folder."""
    if not folder.is_dir():
        raise UsageError("is not a folder", str(folder), "give the repository")
    return repository_root(folder.resolve() / "any")


def survey_of(arguments: argparse.Namespace, root: Path, machine: Machine) -> Survey:
    """The survey, with progress. Raises UsageError where there is no kernel."""
    with Live(phase="reading the repository", quiet=arguments.format == "json") as live:
        survey = Surveyor(root, machine, arguments.folder).survey(
            arguments.limit, lambda done, of: live.phase(f"{done} of {of} kernels surveyed")
        )
    if not survey.kernels:
        raise UsageError(
            "contains no kernel (no __global__ function)", str(arguments.folder), "give a folder with .cu files"
        )
    return survey


def notes(survey: Survey) -> list[str]:
    """What a reader of the table must know."""
    found = []
    if not survey.recorded:
        found.append("no run was recorded, so the order is by headroom only; 'optiml capture -- COMMAND' records one")
    found.append(
        f"headroom is predicted for {survey.arch}, not measured: predicted time over the roofline of compulsory traffic and arithmetic"
    )
    if not survey.complete:
        left = sum(not kernel.tried for kernel in survey.kernels)
        found.append(
            f"{left} kernels were analysed but not run within the time limit; the next call continues with them"
        )
    return found


def print_survey(survey: Survey) -> None:
    """A table of the kernels that can be searched, and a line for each of the others with what it lacks."""
    ready = [kernel for kernel in survey.kernels if kernel.state in READY]
    waiting = [kernel for kernel in survey.kernels if kernel.state == "unknown"]
    lacking = [kernel for kernel in survey.kernels if kernel not in waiting and kernel.missing not in ("", NOT_RUN)]
    table = Table(title=f"{len(ready)} of {len(survey.kernels)} kernels can be searched", title_justify="left")
    table.add_column("kernel", overflow="fold")
    table.add_column("file", overflow="fold", ratio=1)
    table.add_column("spec", no_wrap=True)
    for name in ("share", "headroom") if survey.recorded else ("headroom",):
        table.add_column(name, justify="right", no_wrap=True)
    for kernel in ready:
        share = ["" if kernel.share is None else f"{kernel.share:.1%}"] if survey.recorded else []
        headroom = "" if kernel.headroom is None else f"{approximate(kernel.headroom)}×"
        row = (kernel.kernel, f"{kernel.file}:{kernel.line}", kernel.state, *share, headroom)
        table.add_row(*(Text(clean(cell)) for cell in row))
    console = Console(highlight=False)
    console.print(table)
    if lacking:
        console.print(Text("What is missing:"))
    for kernel in lacking:
        console.print(Text(clean(f"{kernel.file}:{kernel.line} {kernel.kernel} ({kernel.state})")))
        console.print(Padding(Text(clean(kernel.missing)), (0, 0, 0, 4)))
    if waiting:
        console.print(Text("Not run yet, and the source does not show how they are called:"))
    for file in dict.fromkeys(kernel.file for kernel in waiting):
        names = ", ".join(kernel.kernel for kernel in waiting if kernel.file == file)
        console.print(Padding(Text(clean(f"{file}: {names}")), (0, 0, 0, 4)))
    for note in notes(survey):
        console.print(Text(f"Note: {note}"))
