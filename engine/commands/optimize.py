"""`optiml optimize FILE`: search one kernel under a budget."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.commands.again import go_on
from engine.commands.options import check_memory, check_model_is_asked, parse_proposers
from engine.commands.targets import KernelTarget, parse_targets
from engine.errors import MachineError, OptimlError, UsageError
from engine.process.interrupt import Interrupt
from engine.run.device_choice import choose_device
from engine.search.progress import Budget

if TYPE_CHECKING:
    from engine.commands.one_kernel import KernelRun
    from engine.llm.session import LlmSettings
    from engine.run.machine import Machine
    from engine.run.result import OptimizationResult
    from engine.search.progress import Budget

RESULTS = "optiml.results/1"
WAITING = 4  # exit code: prompts wait in the batch folder for their answers
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 whether something was found or not; what is refused raises. Of several kernels, 1 where one failed."""
    budget = replace(parse_budget(arguments.budget), exhaust=arguments.exhaust)
    check_machine(arguments)
    check_memory(arguments)
    targets = parse_targets(arguments.files, arguments.kernel)
    proposers = parse_proposers(arguments.proposers)
    check_model_is_asked(arguments, proposers)
    settings = None
    if "llm" in proposers:
        # The client of a model takes long to load.
        from engine.commands.llm_settings import llm_settings

        settings = llm_settings(arguments)

    try:
        with budget.interrupt.heard():
            code = _searched(arguments, targets, budget, proposers, settings)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(go_on(arguments, drop=("--fresh",))) from None
    if budget.interrupt.asked:  # what was found until then is confirmed, written and printed
        raise KeyboardInterrupt(go_on(arguments, drop=("--fresh",)))
    if code:
        return code
    if settings is not None and settings.batch is not None:
        requests = settings.batch / "requests.jsonl"
        if requests.exists() and requests.stat().st_size:
            return WAITING
    return 0


def machine_of(arguments: argparse.Namespace) -> Machine:
    """The machine that the options of `add_machine` ask for; a GPU's worker starts at once. Raises MachineError."""
    chosen = choose_device(device=arguments.device, arch=arguments.arch, unsafe=arguments.unsafe_no_sandbox, ahead=True)
    # That worker starts beside these imports.
    from engine.run.machine import make_machine

    return make_machine(jobs=arguments.jobs, chosen=chosen)


def machine_or_cluster(arguments: argparse.Namespace, held: ExitStack) -> Machine:
    """This machine, or one whose devices are the workers of a cluster."""
    if arguments.cluster is None:
        if arguments.workers is not None:
            raise UsageError("--workers requires --cluster", do="add --cluster local")
        return machine_of(arguments)
    # Dask takes a second to load.
    from engine.commands.on_cluster import machine_on_cluster

    return held.enter_context(machine_on_cluster(arguments))


def _searched(
    arguments: argparse.Namespace, targets: Sequence[KernelTarget], budget: Budget, proposers: tuple[str, ...],
    settings: LlmSettings | None,
) -> int:  # fmt: skip
    # Rich loads for a tenth of a second, and bad input is refused before.
    from engine.report.terminal import Live

    if arguments.per_device:
        if arguments.cluster is None:
            raise UsageError("--per-device requires --cluster", do="add --cluster and a scheduler's address")
        per_device: Any = importlib.import_module("engine.commands.optimize_per_device")
        return int(per_device.search(arguments, targets, budget, proposers, settings))
    with ExitStack() as held:
        with Live(budget, "checking this machine", quiet=arguments.format == "json"):
            machine = machine_or_cluster(arguments, held)
            held.callback(machine.close)
            # The device's worker starts beside these imports.
            from engine.commands.one_kernel import KernelRun, all_kernels

            jobs = all_kernels(targets)
        if len(jobs) > 1 and arguments.out is not None:
            raise UsageError(f"--out names one folder for {len(jobs)} kernels", do="omit --out, or give one kernel")
        run = KernelRun(arguments, machine, budget, proposers, settings)
        if len(jobs) > 1:
            return _each(arguments, run, jobs, budget.interrupt)
        print_one(arguments, *run.search(jobs[0]))
        return 0


def print_one(arguments: argparse.Namespace, result: OptimizationResult, out: Path, root: Path) -> None:
    """Print a result as the command line asks for it."""
    if arguments.format == "json":
        sys.stdout.write(result.to_json())
        return
    # Rich is not loaded for JSON.
    from engine.report.terminal import print_result

    print_result(result, out, root)


def _each(arguments: argparse.Namespace, run: KernelRun, jobs: Sequence[KernelTarget], interrupt: Interrupt) -> int:
    """Search several kernels, each with the whole budget; one that cannot be searched does not stop the others."""
    results: list[OptimizationResult] = []
    failed: list[dict[str, object]] = []
    codes = set()
    for number, job in enumerate(jobs, 1):
        if arguments.format == "text":
            print(f"[{number}/{len(jobs)}] {job.shown}:{job.kernel}", file=sys.stderr)
        try:
            found = run.search(job)
        except MachineError:
            raise
        except KeyboardInterrupt:
            if not results:
                raise
            break
        except OptimlError as error:
            codes.add(error.exit_code)
            failed.append({"file": job.shown, "kernel": job.kernel or "", "error": str(error)})
            if arguments.format == "text":
                print(f"optiml: {error}", file=sys.stderr)
            continue
        results.append(found[0])
        if arguments.format == "text":
            print_one(arguments, *found)
        if interrupt.asked:
            break
    if arguments.format == "json":
        every = {"schema": RESULTS, "results": [json.loads(r.to_json()) for r in results], "failed": failed}
        sys.stdout.write(json.dumps(every, indent=2, sort_keys=True) + "\n")
    elif failed:
        print(f"{len(results)} of {len(jobs)} kernels searched", file=sys.stderr)
    return 0 if not failed else 1 if results else max(codes)


def check_machine(arguments: argparse.Namespace) -> None:
    """Raises UsageError where --jobs or --arch says nothing that can be."""
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UsageError("--jobs must be at least 1")
    if arguments.arch is not None and not re.fullmatch(r"sm_\d{2,3}a?", arguments.arch):
        raise UsageError(f"invalid architecture '{arguments.arch}'", do="expected e.g. sm_90")


def parse_budget(text: str) -> Budget:
    """A Budget from "60s", "1.5m", "1h" or "200" (candidates), with an interrupt of its own. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if not match or float(match[1]) <= 0 or (not match[2] and "." in match[1]):
        raise UsageError(f"invalid budget '{text}'", do="expected e.g. 60s, 10m or 200")
    if match[2]:
        return Budget(seconds=float(match[1]) * _UNITS[match[2]], interrupt=Interrupt())
    return Budget(candidates=int(match[1]), interrupt=Interrupt())
