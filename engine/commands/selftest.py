"""`optiml selftest`: known attacks must be refused on this machine, known honest edits accepted."""

from __future__ import annotations

import argparse
import fnmatch
import sys
from typing import TYPE_CHECKING

from engine.errors import UsageError

if TYPE_CHECKING:
    from engine.selftest.run import Verdict


def add_parser(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add this verb to the command line."""
    parser = verbs.add_parser(
        "selftest",
        help="check that cheating kernels are refused here and honest ones are not",
        description="Run known attacks on the verifier and known honest edits through the stages that judge every candidate.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these cases, with wildcards (default: all)")
    parser.add_argument(
        "--suite", choices=("attacks", "honest", "all"), default="all", help="which cases (default: all)"
    )
    parser.add_argument(
        "--device", choices=("auto", "gpu", "cpu"), default="auto", help="as for optimize (default: auto)"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="compilers at once (default: one per core)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="rounds, each on fresh inputs (default: 1)")
    parser.add_argument("--verbose", action="store_true", help="print every case, not only what went wrong")
    parser.add_argument(
        "--unsafe-no-sandbox", action="store_true", help="run the cases without a sandbox where none can be had"
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when every case ended as expected, 1 otherwise. Raises UsageError, MachineError."""
    from engine.machine import make_machine
    from engine.selftest.cases import Suite, load_cases
    from engine.selftest.run import run_cases

    if arguments.repeat < 1 or (arguments.jobs is not None and arguments.jobs < 1):
        raise UsageError("--repeat and --jobs must be at least 1")
    suites: tuple[Suite, ...] = ("attacks", "honest")
    cases = [
        case
        for suite in suites
        if arguments.suite in (suite, "all")
        for case in load_cases(suite)
        if not arguments.names or any(fnmatch.fnmatchcase(case.name, name) for name in arguments.names)
    ]
    if not cases:
        raise UsageError(
            f"there is no case {' or '.join(map(repr, arguments.names))}", do="leave the names away to run all"
        )
    machine = make_machine(device=arguments.device, jobs=arguments.jobs, unsafe=arguments.unsafe_no_sandbox)
    try:
        verdicts = run_cases(
            cases, machine, lambda verdict: _print(verdict, arguments.verbose), rounds=arguments.repeat
        )
    finally:
        machine.close()
    path = "the GPU" if machine.mode == "measured" else "the CPU path"
    for suite, what in (("attacks", "attacks refused"), ("honest", "honest edits accepted")):
        own = [v for v in verdicts if v.case.suite == suite]
        judged = [v for v in own if v.as_expected is not None]
        if own:
            blind = f"; {len(own) - len(judged)} that {path} cannot see were left out" if len(judged) < len(own) else ""
            print(f"{what} on {path}: {sum(v.as_expected is True for v in judged)} of {len(judged)}{blind}")
    return 0 if all(v.as_expected is not False for v in verdicts) else 1


def _print(verdict: Verdict, verbose: bool) -> None:
    if verbose or not verdict.as_expected:
        mark = "as expected" if verdict.as_expected else "UNEXPECTED"
        print(f"{verdict.case.suite}/{verdict.case.name}: {verdict.outcome}, {mark}: {verdict.reason}", flush=True)
        if not verdict.as_expected:
            print(f"optiml: {verdict.case.name}: {verdict.case.idea}", file=sys.stderr)
