"""Switches the verifier's defences off, one at a time, and shows which attacks then pass.

    python benchmarks/mutate_verifier.py --device cpu

Defences overlap: behind some stand others that refuse the same attack for another reason. Where no attack is known that one
defence alone stops, the others are off in both runs of a row, and the row says which. Exit code 0 when every attack named is
refused with the defence and passes without it, 1 otherwise.

The clock of the host (`host_time`) is not among the rows: no kernel that the screening lets through has been found that
runs on after the event behind it, so that check is shown with a worker that lies, in tests/adversarial/test_host_time.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.errors import OptimlError
from engine.machine import Machine, make_machine
from engine.model import Outcome
from engine.selftest.cases import PASSED, SelfCase, load_cases
from engine.selftest.run import Verdict, run_cases
from engine.verify.defences import ALL, Defences


@dataclass(frozen=True)
class Row:
    """One defence, the attack that only it stands against, and the defences that are off in both runs.

    Where the attack gives right results and lies about its speed alone, `speed` says that what counts is whether the claim
    is believed: the outcome is then "accepted" or not.
    """

    defence: str
    attack: str
    also_off: tuple[str, ...] = ()
    speed: bool = False


# With either on, a kernel cannot keep anything from one launch to the next.
_STATE = ("screening", "device_state")
CPU = (
    Row("screening", "constant-as-state"),
    Row("device_state", "time-bomb"),
    Row("shapes", "first-and-timed-shape-only"),
    Row("families", "ordinary-values-only"),
    Row("fresh_inputs", "fits-the-sample"),
    Row("poison", "skips-what-is-always-one"),
    Row("scaled_tolerance", "off-by-a-thousandth"),
    Row("access_checks", "restores-input"),
    Row("thread_orders", "atomics-without-barrier"),
    Row("races", "dropped-atomic"),
)
GPU = (
    Row("screening", "sleeps"),
    Row("device_state", "time-bomb"),
    Row("shapes", "first-and-timed-shape-only"),
    Row("families", "ordinary-values-only"),
    Row("fresh_inputs", "fits-the-sample"),
    Row("poison", "skips-what-is-always-one"),
    Row("guard_zones", "marks-behind-output"),
    Row("input_hash", "eats-input"),
    Row("scaled_tolerance", "off-by-a-thousandth"),
    Row("timed_inputs", "keeps-results-by-input", (*_STATE, "roofline_floor"), speed=True),
    Row("timed_results", "once-per-input", (*_STATE, "timed_inputs")),
    Row("checks_after_timing", "until-timed", _STATE),
    Row("roofline_floor", "keeps-results-by-input", (*_STATE, "timed_inputs"), speed=True),
    Row("sanitizers", "looks-past-end", speed=True),
)


def main(given: Sequence[str] | None = None) -> int:
    """Run the table; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Show what each of the verifier's defences is worth.")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="which path (default: cpu)")
    parser.add_argument("--only", metavar="DEFENCE", help="one row")
    options = parser.parse_args(given)
    device: Literal["cpu", "gpu"] = options.device
    rows = [row for row in (CPU if device == "cpu" else GPU) if options.only in (None, row.defence)]
    if not rows:
        parser.error(f"no row for '{options.only}' on this path")
    machine = make_machine(device=device)
    failed = 0
    print("| defence | attack | with it | without it | shown |\n|---|---|---|---|---|")
    try:
        for row in rows:
            try:
                before, after = worth(row, machine)
            except OptimlError as error:
                failed += 1
                print(f"| {row.defence} | {row.attack} | | | NO: {error} |", flush=True)
                continue
            proven = shown(row, before, after)
            failed += not proven
            off = f" (also off: {', '.join(row.also_off)})" if row.also_off else ""
            told = "yes" if proven else f"NO: {after.reason}"
            print(f"| {row.defence}{off} | {row.attack} | {before.outcome} | {after.outcome} | {told} |", flush=True)
    finally:
        machine.close()
    return 1 if failed else 0


def shown(row: Row, before: Verdict, after: Verdict) -> bool:
    """Whether the attack was refused with the defence and came through without it."""
    through = {Outcome.ACCEPTED, Outcome.SCREENED} if row.speed else PASSED
    return before.outcome not in through and after.outcome in through


def worth(row: Row, machine: Machine) -> tuple[Verdict, Verdict]:
    """What becomes of the row's attack with its defence, and without it."""
    case = next(case for case in load_cases("attacks") if case.name == row.attack)
    base = replace(ALL, **dict.fromkeys(row.also_off, False))
    without = replace(base, **{row.defence: False})
    return one(case, machine, base), one(case, machine, without)


def one(case: SelfCase, machine: Machine, defences: Defences) -> Verdict:
    """What becomes of one attack under these defences."""
    return run_cases([case], machine, defences=defences)[0]


if __name__ == "__main__":
    sys.exit(main())
