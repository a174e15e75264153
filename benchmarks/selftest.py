"""The self-test's two scores over several rounds, each on fresh seeds.

    python benchmarks/selftest.py --device cpu --suite honest --rounds 10 --record benchmarks/results/selftest-cpu.json
    python benchmarks/selftest.py --generators benchmarks.outside_attacks --seed 1 --record ...

With `--state` each verdict of a single round is kept in a file of lines and a later call goes on behind them; with `--seconds` a
call begins no further cases after so long, and ends with 3 where some are left. The record is written when none is left; its
`seconds` are those of the last call. `--again RECORD` runs only the cases that another record has as unexpected.

The same cases as `optiml selftest`, the same stages; every round draws its inputs anew. What is confirmed like a suggestion (in
a second process, with the sanitizers) is said for each round: honest edits are in the first one, and evaluated on fresh seeds
in the others. Exit code 0 when every case ended as expected in every round, 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from engine.model import Outcome  # noqa: E402
from engine.run.machine import Machine, make_machine  # noqa: E402
from engine.run.provenance import provenance  # noqa: E402
from engine.selftest.case_runs import Verdict, run_cases  # noqa: E402
from engine.selftest.cases import SelfCase, Suite, load_cases  # noqa: E402
from engine.selftest.generators.protocol import generated  # noqa: E402

_PIECE = 12  # cases of one original between two looks at the clock
SUITES: tuple[Suite, ...] = ("attacks", "honest")


def main(given: Sequence[str] | None = None) -> int:
    """Run the rounds; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Scores of the self-test over several rounds.")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="which path (default: cpu)")
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="all", help="which cases (default: all)")
    parser.add_argument("--rounds", type=int, default=1, help="how often, each on fresh seeds (default: 1)")
    parser.add_argument("--jobs", type=int, help="compilers at once (default: one per core)")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    parser.add_argument(
        "--generators", metavar="PACKAGE", help="newly written cases of this package's generators instead"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the generators (default: 0)")
    parser.add_argument(
        "--again", type=Path, metavar="RECORD", help="only the cases that this record has as unexpected"
    )
    parser.add_argument("--state", type=Path, help="the file that keeps the verdicts of one round, to go on later")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no cases after so long")
    options = parser.parse_args(given)
    if options.state and options.rounds > 1:
        parser.error("--state is for one round")
    suites = [suite for suite in SUITES if options.suite in (suite, "all")]
    if options.generators:
        every = generated(options.seed, package=importlib.import_module(options.generators))
        cases = [case for case in every if case.suite in suites]
        print(f"{len(cases)} cases of seed {options.seed}", flush=True)
    else:
        cases = [case for suite in suites for case in load_cases(suite)]
    if options.again:
        names = unexpected(json.loads(options.again.read_text(encoding="utf-8")))
        if missing := names - {case.name for case in cases}:
            parser.error(f"not among these cases: {', '.join(sorted(missing))}")
        cases = [case for case in cases if case.name in names]
    here = make_machine(device=options.device, jobs=options.jobs)
    begin = time.monotonic()
    try:
        if options.state:
            verdicts, done = _in_pieces(cases, here, options.state, begin + options.seconds)
            if not done:
                print(f"{len(verdicts)} of {len(cases)} cases are done: call it again")
                return 3
        else:
            verdicts = run_cases(cases, here, _say, rounds=options.rounds)
        rounds = []
        for number in range(1, options.rounds + 1):
            confirmed = "attacks and honest edits" if number == 1 else "attacks"
            own = scores([verdict for verdict in verdicts if verdict.round == number])
            rounds.append({"confirmed": confirmed, "scores": own})
            print(f"round {number}: {_line(own)}", flush=True)
        record = {
            "schema": "optiml.selftest/1",
            "command": ["python", "benchmarks/selftest.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "device": device(here),
            "versions": provenance(())["versions"],
            "seconds": time.monotonic() - begin,
            "rounds": rounds,
        }
    finally:
        here.close()
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return 1 if any(verdict.as_expected is False for verdict in verdicts) else 0


def _in_pieces(cases: Sequence[SelfCase], here: Machine, state: Path, end: float) -> tuple[list[Verdict], bool]:
    """The verdicts that are kept and those of further originals until `end`, and whether that is all. Of one commit alone."""
    if not state.exists():
        state.write_text(json.dumps(commit()) + "\n", encoding="utf-8")
    head, *rows = state.read_text(encoding="utf-8").splitlines()
    if json.loads(head) != commit():
        sys.exit(f"{state} is of the commit {json.loads(head)}")
    by_name = {case.name: case for case in cases}
    verdicts = []
    for row in map(json.loads, rows):
        outcome = Outcome(row["outcome"]) if row["outcome"] else None
        verdicts.append(Verdict(by_name[row["case"]], outcome, row["reason"], row["as_expected"]))
    known = {verdict.case.name for verdict in verdicts}
    left = [case for case in cases if case.name not in known]
    with state.open("a", encoding="utf-8") as file:
        for original in dict.fromkeys(case.original for case in left):
            own = [case for case in left if case.original == original]
            for some in (own[at : at + _PIECE] for at in range(0, len(own), _PIECE)):
                if time.monotonic() > end:
                    return verdicts, False
                for v in run_cases(some, here, _say):
                    kept = {"case": v.case.name, "outcome": v.outcome, "reason": v.reason, "as_expected": v.as_expected}
                    file.write(json.dumps(kept) + "\n")
                    verdicts.append(v)
                file.flush()
    return verdicts, True


def _say(verdict: Verdict) -> None:
    if verdict.as_expected is False:
        print(f"round {verdict.round}: {verdict.case.name}: {verdict.outcome}: {verdict.reason}", flush=True)


def scores(verdicts: Sequence[Verdict]) -> dict[str, dict[str, Any]]:
    """By suite: cases judged, those that ended as expected, those this path cannot see, and what went wrong with a reason."""
    found: dict[str, dict[str, Any]] = {}
    for suite in SUITES:
        own = [v for v in verdicts if v.case.suite == suite]
        if own:
            judged = [v for v in own if v.as_expected is not None]
            found[suite] = {
                "judged": len(judged),
                "as_expected": sum(v.as_expected is True for v in judged),
                "not_seen": len(own) - len(judged),
                "unexpected": [
                    {"case": v.case.name, "outcome": str(v.outcome), "reason": v.reason}
                    for v in judged
                    if not v.as_expected
                ],
            }
    return found


def unexpected(record: dict[str, Any]) -> set[str]:
    """The names of the cases that did not end as expected in some round of a record."""
    every = [score for run in record["rounds"] for score in run["scores"].values()]
    return {row["case"] for score in every for row in score["unexpected"]}


def device(here: Machine) -> dict[str, str]:
    """The path, and the GPU's name where there is one."""
    found = {"mode": here.mode, "arch": here.arch}
    if here.mode == "measured":
        import pynvml

        pynvml.nvmlInit()
        found["name"] = str(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(here.device)))
        found["driver_version"] = str(pynvml.nvmlSystemGetDriverVersion())
    return found


def _line(found: dict[str, dict[str, Any]]) -> str:
    words = {"attacks": "attacks refused", "honest": "honest edits accepted"}
    text = ", ".join(f"{words[suite]}: {score['as_expected']} of {score['judged']}" for suite, score in found.items())
    wrong = [f"{u['case']} {u['outcome']} ({u['reason']})" for score in found.values() for u in score["unexpected"]]
    return "; ".join([text, *wrong])


if __name__ == "__main__":
    sys.exit(main())
