"""Settles a run with the earlier one in its folder: answered by it, goes on with it, or keeps it under another name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from engine.cuda.load import load_program, repository_root
from engine.run.earlier_run import EarlierRun, earlier_run, goes_on, has_result, identity_of, on_top, set_aside
from engine.run.machine import Machine
from engine.run.optimization import Options
from engine.search.progress import Budget
from engine.spec.find import find_spec
from engine.spec.kernel_spec import KernelSpec
from engine.tune.tune_options import TuneOptions
from engine.tune.tuning_result import SCHEMA as TUNING


@dataclass(frozen=True)
class Settled:
    """The options to run with, and what became of an earlier run ("": there is none). `answered`: its result stands, nothing is run."""

    options: Options
    said: str = ""
    answered: bool = False


def settle(
    options: Options, out: Path, machine: Machine, *, fresh: bool = False, asked: Budget | None = None
) -> Settled:
    """Settle a run with the earlier one in `out`. `options.spec` is set; `asked`: the budget that was asked for, if it is another.

    The same request is answered by a run that ended, and goes on with one that was interrupted, within its budget. Another request
    about the same program has its budget on top; so have the options where the caller wants more than the answer. With `fresh` none
    of that. Raises MachineError where another run works in the folder.
    """
    assert options.spec is not None
    identity = _identity(options.path, options.spec, options.seed, machine)
    options = replace(options, request=_request(options, identity, machine, asked or options.budget))
    earlier = None if options.resume else earlier_run(out)
    if earlier is None:
        return Settled(options)
    if fresh or not goes_on(earlier, identity):
        why = "as requested" if fresh else "its program, spec, seed or target differs"
        return Settled(options, f"the earlier run is kept in {set_aside(out)}: {why}")
    if earlier.request != options.request or not options.request:
        return _continued(_more(options, earlier), out, earlier, "the budget is on top of that")
    if earlier.ended and has_result(out):
        return Settled(_more(options, earlier), _unchanged(out, earlier), answered=True)
    if earlier.ended:
        return _continued(_more(options, earlier), out, earlier, "its result is missing")
    left = replace(earlier.budget, interrupt=options.budget.interrupt, exhaust=options.budget.exhaust)
    most_s = on_top(options.budget, earlier).seconds
    if most_s is not None and left.seconds is not None:  # less than the rest, where that is what is asked for
        left = replace(left, seconds=min(left.seconds, most_s))
    rest = replace(options, resume=True, budget=left)
    return _continued(rest, out, earlier, "it had not finished, and has the rest of its budget")


def settle_tuning(options: TuneOptions, out: Path, machine: Machine) -> tuple[TuneOptions, str, bool]:
    """As `settle` for a tuning run: its options, what is said, and whether it is answered. Another request keeps the earlier run aside."""
    spec = options.spec or find_spec(repository_root(options.path), options.path, options.kernel)
    identity = _identity(options.path, spec, options.seed, machine)
    asked = replace(options, spec=None, out=None, resume=False, command=())
    options = replace(options, request=_digest([identity, version("optiml-cuda"), machine.name, repr(asked)]))
    earlier = None if options.resume else earlier_run(out)
    if earlier is None:
        return options, "", False
    if not goes_on(earlier, identity) or earlier.request != options.request:
        kept = set_aside(out)
        return replace(options, kept=kept), f"the earlier run is kept in {kept}: its options differ", False
    if earlier.ended and has_result(out, TUNING):
        said = f"nothing changed since the run in {out} ({_spent(earlier)}), so this is its result; another --budget starts over"
        return options, said, True
    rest = replace(options, resume=True, budget=replace(earlier.budget, interrupt=options.budget.interrupt))
    return rest, f"continues the earlier run in {out} ({_spent(earlier)}), within its budget", False


def _more(options: Options, earlier: EarlierRun) -> Options:
    return replace(options, resume=True, budget=on_top(options.budget, earlier))


def _continued(options: Options, out: Path, earlier: EarlierRun, why: str) -> Settled:
    return Settled(options, f"continues the earlier run in {out} ({_spent(earlier)}); {why}, --fresh starts over")


def _unchanged(out: Path, earlier: EarlierRun) -> str:
    return (
        f"nothing changed since the run in {out} ({_spent(earlier)}), so this is its result; a larger --budget continues it, "
        "--fresh starts over"
    )


def _spent(earlier: EarlierRun) -> str:
    return f"{earlier.candidates} candidates in {earlier.elapsed_s:.0f} s"


def _identity(path: Path, found: tuple[KernelSpec, str | None], seed: int, machine: Machine) -> str:
    spec, spec_path = found
    kernels, compiled = [step.kernel for step in spec.steps], spec.compile
    program = load_program(path, spec_file=spec_path, kernels=kernels, include=compiled.include, unit=compiled.unit)
    return identity_of(program, spec, seed, machine.arch, machine.mode)


def _request(options: Options, identity: str, machine: Machine, asked: Budget) -> str:
    """A name for all that decides what a run would find; "" where answers are still awaited from elsewhere."""
    if options.llm is not None and options.llm.batch is not None:
        return ""
    model = None if options.llm is None else dataclasses.asdict(options.llm)
    parts = [
        identity, version("optiml-cuda"), machine.name, asked.seconds, asked.candidates, asked.exhaust, options.search, options.profile,
        options.proxies, dataclasses.asdict(options.guardrails), options.targets, options.proposers, model,
        None if options.memory is None else dataclasses.asdict(options.memory),
    ]  # fmt: skip
    return _digest(parts)


def _digest(parts: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
