"""Switches the verifier's defences off, one at a time, and shows which attacks then pass.

    python benchmarks/mutate_verifier.py --device cpu

Defences overlap: behind some stand others that refuse the same attack for another reason. Where that is so, the others are
off in both runs of a row, so that a row says what one defence is worth on its own. Exit code 0 when every attack named is
refused with the defence and passes without it, 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from engine.machine import Machine, make_machine
from engine.model import Outcome
from engine.selftest.cases import PASSED, SelfCase, load_cases
from engine.selftest.run import Verdict, run_cases
from engine.verify.defences import ALL, Defences


@dataclass(frozen=True)
class Row:
    """One defence, the attack that only it stands against, and the defences that are off in both runs."""

    defence: str
    attack: str
    also_off: tuple[str, ...] = ()


CPU = (
    Row("screening", "constant-as-state"),
    Row("device_state", "static-by-macro", ("screening", "races")),
    Row("shapes", "one-shape"),
    Row("families", "ordinary-values-only"),
    Row("poison", "stale-output"),
    Row("scaled_tolerance", "zeros"),
    Row("access_checks", "restores-input"),
    Row("thread_orders", "last-thread-sums", ("races",)),
    Row("races", "dropped-atomic"),
)
# Past the checks: a guardrail is about speed, and stands behind them.
_THROUGH = frozenset({*PASSED, Outcome.GUARDRAIL})
_STATE = ("screening", "device_state")
GPU = (
    Row("screening", "sleeps"),
    Row("device_state", "static-by-macro", ("screening", "timed_results")),
    Row("shapes", "one-shape"),
    Row("families", "ordinary-values-only"),
    Row("fresh_inputs", "cache-by-pointer", _STATE),
    Row("poison", "stale-output", ("fresh_inputs", "timed_results")),
    Row("guard_zones", "scratch-beyond-output"),
    Row("input_hash", "writes-one-input-element", ("timed_results",)),
    Row("scaled_tolerance", "zeros"),
    Row("timed_results", "launch-counter", _STATE),
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
            before, after = worth(row, machine)
            proven = shown(before, after)
            failed += not proven
            off = f" (also off: {', '.join(row.also_off)})" if row.also_off else ""
            told = "yes" if proven else f"NO: {after.reason}"
            print(f"| {row.defence}{off} | {row.attack} | {before.outcome} | {after.outcome} | {told} |", flush=True)
    finally:
        machine.close()
    return 1 if failed else 0


def shown(before: Verdict, after: Verdict) -> bool:
    """Whether the attack was refused with the defence and came through the checks without it."""
    return before.outcome not in _THROUGH and after.outcome in _THROUGH


def worth(row: Row, machine: Machine) -> tuple[Verdict, Verdict]:
    """What becomes of the row's attack with its defence, and without it."""
    case = next(case for case in load_cases("attacks") if case.name == row.attack)
    base = replace(ALL, **dict.fromkeys(row.also_off, False))
    without = replace(base, **{row.defence: False})
    return _one(case, machine, base), _one(case, machine, without)


def _one(case: SelfCase, machine: Machine, defences: Defences) -> Verdict:
    return run_cases([case], machine, defences=defences)[0]


if __name__ == "__main__":
    sys.exit(main())
