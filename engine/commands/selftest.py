"""`optiml selftest`: known attacks must be refused on this machine, known honest edits accepted."""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import secrets
import sys
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.report.terminal import Live
from engine.run.machine import make_machine
from engine.selftest.case_runs import run_cases
from engine.selftest.cases import Suite, load_cases
from engine.selftest.folder import read_folder
from engine.selftest.generators.protocol import generated

if TYPE_CHECKING:
    from engine.selftest.case_runs import Verdict
    from engine.selftest.cases import SelfCase

_ROUNDS = 2  # of the generators: more than 250 attacks
_SCORES = (("attacks", "attacks refused"), ("honest", "honest edits accepted"))


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when every case ended as expected, 1 otherwise. Raises UsageError, MachineError."""
    if arguments.repeat < 1 or (arguments.jobs is not None and arguments.jobs < 1):
        raise UsageError("--repeat and --jobs must be at least 1")
    if arguments.cases is not None and arguments.generated:
        raise UsageError("--cases and --generated exclude each other", do="run one after the other")
    seed = secrets.randbits(32) if arguments.seed is None else arguments.seed
    cases = _chosen(arguments, seed)
    text = arguments.format == "text"
    verbose = arguments.verbose or arguments.cases is not None
    with Live(phase="setting up the machine", quiet=not text) as live:
        machine = make_machine(device=arguments.device, jobs=arguments.jobs, unsafe=arguments.unsafe_no_sandbox)
        live.phase("checking the first original")
        of = arguments.repeat * sum(bool(case.expected(machine.mode)) for case in cases)
        done = itertools.count(1)

        def judged(verdict: Verdict) -> None:
            live.count(next(done), of, "cases")
            if text and (verbose or not verdict.as_expected):
                with live.paused():
                    _print(verdict)

        try:
            verdicts = run_cases(cases, machine, judged, rounds=arguments.repeat)
        finally:
            machine.close()
    if text:
        if arguments.generated:
            print(f"seed of the generators: {seed}")
        _print_scores(verdicts, "the GPU" if machine.mode == "measured" else "the CPU path")
    else:
        document: dict[str, Any] = {"schema": "optiml.selftest-cases/1", "mode": machine.mode, "arch": machine.arch}
        if arguments.generated:
            document["seed"] = seed
        document["cases"] = [_plain(verdict) for verdict in verdicts]
        print(json.dumps(document, indent=2))
    return 0 if all(v.as_expected is not False for v in verdicts) else 1


def _chosen(arguments: argparse.Namespace, seed: int) -> list[SelfCase]:
    """The cases that the options ask for. Raises UsageError."""
    suites: tuple[Suite, ...] = ("attacks", "honest")
    if arguments.cases is not None:
        every = read_folder(arguments.cases)
    elif arguments.generated:
        every = generated(seed, rounds=_ROUNDS)
    else:
        every = tuple(case for suite in suites for case in load_cases(suite))
    cases = [
        case
        for case in every
        if arguments.suite in (case.suite, "all")
        and (not arguments.names or any(fnmatch.fnmatchcase(case.name, name) for name in arguments.names))
    ]
    if not cases:
        raise UsageError(
            f"unknown case {' or '.join(map(repr, arguments.names)) or 'of this suite'}", do="omit the names to run all"
        )
    return cases


def _print_scores(verdicts: list[Verdict], path: str) -> None:
    for suite, what in _SCORES:
        own = [v for v in verdicts if v.case.suite == suite]
        judged = [v for v in own if v.as_expected is not None]
        if own:
            blind = (
                f"; {len(own) - len(judged)} that {path} cannot detect were left out" if len(judged) < len(own) else ""
            )
            print(f"{what} on {path}: {sum(v.as_expected is True for v in judged)} of {len(judged)}{blind}")


def _plain(verdict: Verdict) -> dict[str, Any]:
    case = verdict.case
    return {
        "name": case.name,
        "idea": case.idea,
        "original": case.original,
        "expect": "refused" if case.suite == "attacks" else "accepted",
        "outcome": None if verdict.outcome is None else str(verdict.outcome),
        "reason": verdict.reason,
        "as_expected": verdict.as_expected,
        "round": verdict.round,
    }


def _print(verdict: Verdict) -> None:
    mark = "as expected" if verdict.as_expected else "UNEXPECTED"
    ended = "not run" if verdict.outcome is None else verdict.outcome
    print(f"{verdict.case.suite}/{verdict.case.name}: {ended}, {mark}: {verdict.reason}", flush=True)
    if not verdict.as_expected:
        print(f"optiml: {verdict.case.name}: {verdict.case.idea}", file=sys.stderr)
