"""`optiml all`: search every kernel of the repository, in order of what there is to win."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from engine.campaign.campaign import CampaignRequest, InThisProcess, run_campaign
from engine.commands.again import go_on
from engine.commands.list import notes, print_survey, root_of, survey_of
from engine.commands.optimize import check_machine, machine_of, parse_budget
from engine.commands.options import parse_proposers
from engine.errors import UsageError
from engine.report.campaign_end import print_campaign
from engine.report.device_table import (
    CampaignDispatch,
    of_campaigns,
    plain,
    print_campaign_dispatch,
    print_device_table,
)
from engine.report.safe_text import clean
from engine.report.terminal import Live

if TYPE_CHECKING:
    from engine.campaign.campaign import CampaignEnd
    from engine.campaign.queue import Queued
    from engine.campaign.survey import Survey
    from engine.run.machine import Machine
    from engine.search.progress import Budget

SCHEMA = "optiml.all/1"


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 whether something was found or not. Raises UsageError, MachineError."""
    check_machine(arguments)
    budget = parse_budget(arguments.budget)
    if budget.seconds is None:
        raise UsageError("the budget for all kernels must be a time", "--budget", "write e.g. 20m or 2h")
    if arguments.least is not None and not 0 <= arguments.least < 1:
        raise UsageError("expected a fraction of the time from 0 to 1", "--least", "omit it for the default")
    proposers = parse_proposers(arguments.proposers)
    if "llm" in proposers:
        raise UsageError("a language model works on one kernel at a time", "--proposers", "use optiml optimize")
    check_cluster(arguments)
    root = root_of(arguments.folder)
    try:
        with budget.interrupt.heard():
            _searched(arguments, root, budget, proposers)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(go_on(arguments)) from None
    if budget.interrupt.asked:
        raise KeyboardInterrupt(go_on(arguments, add=("--resume",)))
    return 0


def _searched(arguments: argparse.Namespace, root: Path, budget: Budget, proposers: tuple[str, ...]) -> None:
    assert budget.seconds is not None
    text = arguments.format == "text"
    each = None if arguments.budget_each is None else parse_budget(arguments.budget_each)
    with ExitStack() as held:
        survey: Survey | None = None

        def surveyed(machine: Machine) -> Survey | None:
            nonlocal survey
            if not arguments.resume:
                survey = survey_of(arguments, root, machine)
                if text:
                    print_survey(survey)
            return survey

        command = ("optiml", *sys.argv[1:])
        request = CampaignRequest(
            root, budget.seconds, arguments.least, arguments.seed, proposers, command, budget.interrupt, each
        )
        ends: Sequence[CampaignEnd]
        dispatch = CampaignDispatch()
        if arguments.cluster is not None:  # Dask is loaded for those who ask for it
            ends, dispatch = importlib.import_module("engine.commands.all_on_cluster").search(
                arguments, request, surveyed
            )
        else:
            machine = machine_of(arguments)
            held.callback(machine.close)
            surveyed(machine)
            with Live(budget, quiet=not text) as live:

                def turn(kernel: Queued, part: Budget) -> None:
                    if text:
                        seconds = "" if part.seconds is None else f": {part.seconds:.0f} s"
                        print(clean(f"{kernel.file}:{kernel.kernel}{seconds}"), file=sys.stderr)
                    live.begin(part, f"{kernel.kernel}: setting up and validating the spec")

                executor = InThisProcess(root, machine, budget.interrupt, live.update)
                ends = [run_campaign(request, executor, survey, turn)]

    best = of_campaigns(ends)
    for end in ends:
        said = [*end.notes, *(notes(survey) if survey is not None else [])]
        if text:
            print_campaign(end, said, root)
        else:
            kernels = [dataclasses.asdict(kernel) for kernel in end.kernels]
            patch = str(end.patch) if end.patch else None
            found: dict[str, object] = {"schema": SCHEMA, "kernels": kernels, "patch": patch, "notes": said}
            if best:
                found |= {
                    "device": end.device,
                    "best_per_device": plain(best),
                    "device_dispatch": dataclasses.asdict(dispatch),
                }
            # Events before it are lines; so is the result then.
            sys.stdout.write(json.dumps(found, indent=None if arguments.cluster else 2) + "\n")
    if best and text:
        print_device_table(best)
        print_campaign_dispatch(dispatch, root)


def check_cluster(arguments: argparse.Namespace) -> None:
    """Raises UsageError where options of a cluster make no sense together."""
    for name in ("workers", "shared", "per_device"):
        if getattr(arguments, name, None) and arguments.cluster is None:
            option = "--" + name.replace("_", "-")
            raise UsageError(f"{option} requires --cluster", do="add --cluster local, or a scheduler's address")
    if arguments.workers is not None and not (arguments.cluster == "local" and arguments.workers > 0):
        raise UsageError(
            "expected the number of workers that --cluster local starts, at least 1", "--workers", "omit it"
        )
