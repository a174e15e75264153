"""Switches the verifier's defences off, one at a time, and shows which attacks then pass.

    python benchmarks/mutate_verifier.py --device cpu --record benchmarks/results/mutate_verifier-cpu.json

Defences overlap: behind some stand others that refuse the same attack for another reason. Where no attack is known that one
defence alone stops, the others are off in both runs of a row, and the row says which. Exit code 0 when every attack named is
refused with the defence and passes without it, 1 otherwise.

The clock of the host (`host_time`) is not among the rows: no kernel that the screening lets through has been found that
runs on after the event behind it, so that check is shown with a worker that lies, in tests/adversarial/test_host_time.py.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from benchmarks.selftest import device as described  # noqa: E402
from engine.errors import OptimlError  # noqa: E402
from engine.model import PASSED, Outcome  # noqa: E402
from engine.run.machine import Machine, make_machine  # noqa: E402
from engine.selftest.case_runs import Verdict, run_cases  # noqa: E402
from engine.selftest.cases import SelfCase, load_cases  # noqa: E402
from engine.verify.defences import ALL, Defences  # noqa: E402


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


# What a confirmation and the gate do last refuses much of what the others stop.
LAST = (
    "sampled_sizes", "infinite_inputs", "mixed_magnitudes", "alike_inputs", "ignored_nan", "added_conditions", "helpers",
    "other_callers", "undeclared", "equal_terms", "far_inputs", "halves", "any_address", "earlier_launch",
    "second_opinion", "whole_build", "names", "assumptions",
)  # fmt: skip
# With either on, a kernel cannot keep anything from one launch to the next.
_STATE = ("screening", "device_state")
CPU = (
    Row("screening", "constant-as-state"),
    Row("forms", "digraph-define"),
    Row("clocks", "sleeps"),
    Row("atomic_scope", "atomic-of-a-block"),
    Row("counters", "strides-past-the-end"),
    Row("counters", "staged-for-some-blocks"),
    Row("device_state", "time-bomb"),
    Row("shapes", "first-and-timed-shape-only", ("secret_sizes",)),
    Row("secret_sizes", "named-sizes-only"),
    Row("secret_sizes", "few-rows-a-block"),
    Row("other_scalars", "the-spec-s-factor"),
    Row("other_callers", "the-spec-s-flag"),
    Row("other_callers", "block-of-the-spec"),
    Row("other_callers", "reads-what-it-wrote-in-place"),
    Row("other_callers", "the-larger-branch"),
    Row("other_callers", "stores-beside-the-region"),
    Row("other_callers", "row-in-a-local-array"),
    Row("other_callers", "two-warps-at-least"),
    Row("other_callers", "length-in-a-short"),
    Row("other_callers", "bound-of-the-spec-s-block"),
    # A launch of two blocks may be drawn.
    Row("other_callers", "fence-of-one-lane", ("secret_sizes",)),
    Row("earlier_launch", "tickets-modulo"),
    Row("any_address", "one-address-tested"),
    Row("undeclared", "mask-as-factor"),
    Row("undeclared", "skips-masked-first"),
    Row("far_inputs", "one-pass-variance"),
    Row("halves", "rounds-halves-away"),
    # Special values leave a subnormal unit in some draws.
    Row("halves", "rounded-by-reciprocal", ("families",)),
    Row("undeclared", "row-taken-as-dense"),
    Row("equal_terms", "uncompensated"),
    Row("families", "ordinary-values-only"),
    Row("nan_inputs", "nan-becomes-zero"),
    Row("infinite_inputs", "clips-the-largest"),
    Row("mixed_magnitudes", "product-overflows"),
    Row("mixed_magnitudes", "folds-large-shift"),
    Row("mixed_magnitudes", "quotient-of-huge"),
    Row("alike_inputs", "counts-as-constant"),
    Row("alike_inputs", "key-orders-zeros"),
    Row("ignored_nan", "largest-of-bits"),
    Row("ignored_nan", "starts-with-its-first"),
    Row("fresh_inputs", "fits-the-sample", ("secret_sizes",)),
    Row("poison", "skips-what-is-always-one"),
    Row("scaled_tolerance", "off-by-a-thousandth"),
    Row("sampled_sizes", "narrow-index"),
    Row("sampled_sizes", "narrow-counter"),
    Row("sampled_sizes", "overflowing-index"),
    Row("index_precision", "float-counter"),
    Row("index_precision", "rounded-reciprocal"),
    Row("added_conditions", "hashed-size"),
    Row("added_conditions", "one-pointer-twice"),
    Row("added_conditions", "wrong-in-other-blocks"),
    Row("access_checks", "restores-input"),
    Row("access_checks", "rereads-read-only"),
    Row("undefined", "shifts-too-far"),
    Row("late_copies", "reads-before-arrival"),
    Row("thread_orders", "atomics-without-barrier"),
    Row("races", "dropped-atomic"),
    Row("helpers", "helper-of-others"),
    Row("names", "right-for-one-instance", ("whole_build",)),
    Row("whole_build", "right-for-one-instance", ("names",)),
    Row("assumptions", "restrict-with-caller-in-place"),
    Row("object_checks", "unseen-update", ("screening",)),
)
GPU = (
    Row("screening", "constant-as-state"),
    Row("forms", "digraph-define"),
    Row("clocks", "sleeps"),
    Row("atomic_scope", "atomic-of-a-block"),
    Row("counters", "strides-past-the-end"),
    Row("index_precision", "float-counter"),
    Row("index_precision", "rounded-reciprocal"),
    Row("device_state", "time-bomb"),
    Row("shapes", "first-and-timed-shape-only", ("secret_sizes",)),
    Row("secret_sizes", "named-sizes-only"),
    Row("other_scalars", "the-spec-s-factor"),
    Row("families", "ordinary-values-only"),
    Row("nan_inputs", "nan-becomes-zero"),
    Row("fresh_inputs", "fits-the-sample", ("secret_sizes",)),
    # Beside NaN "always one" is wrong.
    Row("poison", "skips-what-is-always-one", ("nan_inputs",)),
    Row("guard_zones", "marks-behind-output", ("sanitizers",)),
    Row("input_hash", "eats-input"),
    Row("scaled_tolerance", "off-by-a-thousandth"),
    Row("timed_inputs", "keeps-results-by-input", (*_STATE, "roofline_floor"), speed=True),
    Row("timed_results", "once-per-input", (*_STATE, "timed_inputs")),
    Row("checks_after_timing", "until-timed", _STATE),
    Row("module_states", "wrong-in-first-launch", _STATE),
    Row("roofline_floor", "keeps-results-by-input", (*_STATE, "timed_inputs"), speed=True),
    Row("sanitizers", "looks-past-end", speed=True),
    Row("second_opinion", "no-barrier-behind-zeros"),
    Row("names", "right-for-one-instance", ("whole_build",)),
    Row("whole_build", "right-for-one-instance", ("names",)),
    Row("assumptions", "restrict-with-caller-in-place"),
)


def main(given: Sequence[str] | None = None) -> int:
    """Run the table; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Show what each of the verifier's defences is worth.")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="which path (default: cpu)")
    parser.add_argument("--only", nargs="+", metavar="DEFENCE", help="these rows (default: all)")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    device: Literal["cpu", "gpu"] = options.device
    rows = [row for row in (CPU if device == "cpu" else GPU) if options.only is None or row.defence in options.only]
    if not rows:
        parser.error(f"no row for {', '.join(options.only)} on this path")
    here = make_machine(device=device)
    table: list[dict[str, Any]] = []
    print("| defence | attack | with it | without it | shown |\n|---|---|---|---|---|")
    try:
        for row in rows:
            table.append(_tried(row, here))
            off = f" (also off: {', '.join(row.also_off)})" if row.also_off else ""
            told = "yes" if table[-1]["shown"] else f"NO: {table[-1]['reason']}"
            with_it, without = table[-1]["with"], table[-1]["without"]
            print(f"| {row.defence}{off} | {row.attack} | {with_it} | {without} | {told} |", flush=True)
        record = {
            "schema": "optiml.mutate_verifier/1",
            "command": ["python", "benchmarks/mutate_verifier.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "device": described(here),
            "rows": table,
        }
    finally:
        here.close()
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return 0 if all(tried["shown"] for tried in table) else 1


def _tried(row: Row, here: Machine) -> dict[str, Any]:
    found = {"defence": row.defence, "attack": row.attack, "also_off": list(row.also_off)}
    try:
        before, after = worth(row, here)
    except OptimlError as error:
        return {**found, "with": "", "without": "", "shown": False, "reason": str(error)}
    ends = {"with": str(before.outcome), "without": str(after.outcome)}
    return {**found, **ends, "shown": shown(row, before, after), "reason": after.reason}


def shown(row: Row, before: Verdict, after: Verdict) -> bool:
    """Whether the attack was refused with the defence and came through without it."""
    through = {Outcome.ACCEPTED, Outcome.SCREENED} if row.speed else PASSED
    return before.outcome not in through and after.outcome in through


def worth(row: Row, machine: Machine) -> tuple[Verdict, Verdict]:
    """What becomes of the row's attack with its defence, and without it."""
    case = next(case for case in load_cases("attacks") if case.name == row.attack)
    base = replace(ALL, **dict.fromkeys({*row.also_off, *LAST} - {row.defence}, False))
    without = replace(base, **{row.defence: False})
    return one(case, machine, base), one(case, machine, without)


def one(case: SelfCase, machine: Machine, defences: Defences) -> Verdict:
    """What becomes of one attack under these defences."""
    return run_cases([case], machine, defences=defences)[0]


if __name__ == "__main__":
    sys.exit(main())
