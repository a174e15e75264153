"""What the verifier says of the rules' own edits: each is honest, and none may be refused as wrong.

    python benchmarks/honest_rules.py --most 4 --seconds 200 --state honest.jsonl --record benchmarks/results/honest_rules-cpu.json

Every edit that a rule proposes for a kernel of examples/ and benchmarks/suite/ (with `--most`, so many of each kernel, drawn by
`--seed`) is built, evaluated, confirmed and put before the gate like a suggestion, whatever its speed. An edit that does not compile,
or is refused for its speed or its registers, was refused for no cheating. With `--state` each verdict is kept in a file of lines, and a
later call goes on behind them; with `--seconds` a call ends after so long. With `--parallel` so many processes share the files, and the
device: each has its own state, the named file with its number behind. Measured speeds are then worth nothing, which decides
nothing here. The record is written when no edit is left. Exit code 0 when no edit was refused as wrong, 1 otherwise, 3 where
edits are left.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from engine.run.suggestion_gate import SuggestionConditions

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.examples import commit, machine  # noqa: E402 - the path above makes it importable as a script
from benchmarks.selftest import device as described  # noqa: E402
from engine.compile.built import Built, NotBuilt  # noqa: E402
from engine.cuda.edit import edit_program  # noqa: E402
from engine.cuda.load import load_program  # noqa: E402
from engine.errors import OptimlError  # noqa: E402
from engine.evaluate import guardrails  # noqa: E402
from engine.model import Evaluation, Outcome  # noqa: E402
from engine.run.machine import Machine, make_machine  # noqa: E402
from engine.run.suggestion_gate import Gate  # noqa: E402
from engine.selftest.cases import HONEST  # noqa: E402
from engine.selftest.runner import Judges  # noqa: E402
from engine.spec.find import find_spec  # noqa: E402

RIGHT = frozenset(HONEST)


@dataclass(frozen=True)
class Edit:
    """One edit of a rule, and what became of it."""

    kernel: str
    rule: str
    summary: str
    outcome: str
    reason: str
    refused: bool


def main(given: Sequence[str] | None = None) -> int:
    """Run the edits; see the module's docstring."""
    parser = argparse.ArgumentParser(description="What the verifier says of the rules' own edits.")
    parser.add_argument("--device", choices=("cpu", "gpu"), default="cpu", help="which path (default: cpu)")
    parser.add_argument("--only", nargs="*", default=[], metavar="KERNEL", help="these files, by stem (default: all)")
    parser.add_argument("--most", type=int, help="edits of each kernel (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw (default: 0)")
    parser.add_argument("--jobs", type=int, help="compilers at once (default: one per core)")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no edit after so long (default: no limit)"
    )
    parser.add_argument("--state", type=Path, help="the file that keeps what was found, for a later call to go on")
    parser.add_argument("--parallel", type=int, metavar="N", help="share the files among N processes; needs --state")
    parser.add_argument("--share", default="0/1", metavar="I/N", help="every Nth file from the Ith on (default: all)")
    parser.add_argument("--record", type=Path, help="the JSON record to write")
    options = parser.parse_args(given)
    if options.parallel and not options.state:
        parser.error("--parallel needs --state")
    paths = sorted([*ROOT.glob("examples/*.cu"), *ROOT.glob("benchmarks/suite/*.cu")])
    paths = [path for path in paths if not options.only or path.stem in options.only]
    share, shares = map(int, options.share.split("/"))
    end = time.monotonic() + options.seconds
    if options.parallel:
        parts = [options.state.with_name(f"{options.state.name}.{number}") for number in range(options.parallel)]
        shared = in_parallel(parts, sys.argv[1:] if given is None else given)
        state = State(None, commit())
        for part in parts:
            state.take(State(part, commit()))
    else:
        state = State(options.state, commit())
    here = make_machine(device=options.device, jobs=options.jobs)
    try:
        done = (
            shared
            if options.parallel
            else all(judge_file(path, here, (options.most, options.seed), state, end) for path in paths[share::shares])
        )
        record: dict[str, Any] = {
            "schema": "optiml.honest_rules/2",
            "command": ["python", "benchmarks/honest_rules.py", *(sys.argv[1:] if given is None else given)],
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "device": described(here),
            "not_run": state.not_run,
            "edits": [asdict(edit) for edit in state.edits],
        }
    finally:
        here.close()
    refused = sum(edit.refused for edit in state.edits)
    judged = sum(edit.refused or edit.outcome in RIGHT for edit in state.edits)
    kernels = len({edit.kernel for edit in state.edits})
    print(f"{len(state.edits)} edits of {kernels} kernels, {judged} judged, {refused} refused as wrong", flush=True)
    if not done:
        print("edits are left: call it again")
        return 3
    if options.record:
        options.record.parent.mkdir(parents=True, exist_ok=True)
        options.record.write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return 1 if refused else 0


def in_parallel(states: Sequence[Path], given: Sequence[str]) -> bool:
    """Run this program once for each state, all at once, each with its share of the files. Whether each came to its end."""
    command = [sys.executable, str(Path(__file__).resolve()), *own_arguments(given)]
    started = [
        subprocess.Popen([*command, "--share", f"{number}/{len(states)}", "--state", str(state)])
        for number, state in enumerate(states)
    ]
    ends = [process.wait() for process in started]
    if bad := [code for code in ends if code not in (0, 1, 3)]:
        sys.exit(f"a process ended with {bad[0]}")
    return 3 not in ends


def own_arguments(given: Sequence[str]) -> list[str]:
    """The arguments of a process that has a share: without what concerns all of them."""
    found, skip = [], False
    for word in given:
        name, equals, _ = word.partition("=")
        if skip or name in ("--parallel", "--state", "--record"):
            skip = not skip and not equals
            continue
        found.append(word)
    return found


class State:
    """What was found so far, of one commit: a file of another one is refused."""

    def __init__(self, path: Path | None, of: str) -> None:
        self._path = path
        self.edits: list[Edit] = []
        self.files: set[str] = set()  # that are done
        self.not_run: dict[str, str] = {}  # files whose original is refused, with the reason
        if path is None or not path.exists():
            self._write({"commit": of})
            return
        first, *rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if first["commit"] != of:
            sys.exit(f"{path} is of the commit {first['commit']}")
        for row in rows:
            if "file" in row:
                self.files.add(row["file"])
                if row["reason"]:
                    self.not_run[row["file"]] = row["reason"]
            else:
                self.edits.append(Edit(**row))

    def take(self, other: State) -> None:
        """Add what another state holds, in memory."""
        self.edits += other.edits
        self.files |= other.files
        self.not_run |= other.not_run

    def add(self, edit: Edit) -> None:
        self.edits.append(edit)
        self._write(asdict(edit))

    def end(self, name: str, reason: str = "") -> None:
        self.files.add(name)
        if reason:
            self.not_run[name] = reason
        self._write({"file": name, "reason": reason})

    def _write(self, row: dict[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def judge_file(path: Path, here: Machine, draw: tuple[int | None, int], state: State, end: float) -> bool:
    """Judge a file's edits that are not judged yet. False where time ran out before the last one."""
    if path.stem in state.files:
        return True
    if time.monotonic() > end:
        return False
    most, seed = draw
    spec, spec_path = find_spec(ROOT, path)
    program = load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
    proposed, _ = here.builder(spec, ROOT, spec_path).propose(program)
    if most is not None:
        proposed = random.Random(seed).sample(proposed, min(most, len(proposed)))
    known = sum(edit.kernel == path.stem for edit in state.edits)
    try:
        with closing(here.evaluator(spec, ROOT, spec_path)) as evaluator:
            first, _ = evaluator.open(program)
            judges = Judges(
                evaluator, Gate(here, spec, ROOT, spec_path, SuggestionConditions(guardrails.LIMITS)), first
            )
            for one in proposed[known:]:
                if time.monotonic() > end:
                    return False
                built: Built | Evaluation
                try:
                    built = replace(evaluator.build(edit_program(program, one.edits)), by_rules=True)
                except NotBuilt as error:
                    built = error.evaluation or Evaluation(Outcome.SCREENED_OUT)
                evaluation = judges.evaluated(built, confirmed=True)
                reason = evaluation.failure.reason if evaluation.failure else ""
                outcome = evaluation.outcome
                refused = outcome not in RIGHT and outcome is not Outcome.COMPILE_ERROR
                state.add(Edit(path.stem, one.rule, one.summary, str(outcome), reason, refused))
                if refused:
                    print(f"{path.stem}: {one.rule}: {one.summary}: {outcome}: {reason}", flush=True)
    except OptimlError as error:
        state.end(path.stem, str(error))
        return True
    state.end(path.stem)
    return True


if __name__ == "__main__":
    sys.exit(main())
