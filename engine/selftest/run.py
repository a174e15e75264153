"""Runs self-test cases through the real stages: build, evaluate, confirm."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from engine.evaluate.model import Built, Evaluator, NotBuilt
from engine.machine import Machine
from engine.model import PASSED, Evaluation, Failure, Outcome, Program
from engine.selftest.cases import SelfCase, original_text
from engine.source.load import load_program
from engine.spec.find import find_spec
from engine.verify.defences import ALL, Defences


@dataclass(frozen=True)
class Verdict:
    """What became of one case on this machine's path. `as_expected` is None where the path cannot see the case."""

    case: SelfCase
    outcome: Outcome | None
    reason: str
    as_expected: bool | None
    round: int = 1


def run_cases(
    cases: Iterable[SelfCase], machine: Machine, on_verdict: Callable[[Verdict], None] = lambda verdict: None,
    defences: Defences = ALL, rounds: int = 1,
) -> list[Verdict]:  # fmt: skip
    """Judge every case that this machine's path can see, each round on fresh seeds. Originals are opened once each.

    An attack that is not refused at first is confirmed like a suggestion, whatever its speed; so are honest edits in the
    first round. In further rounds these are evaluated alone: what a confirmation adds but for fresh seeds, the second process
    and the sanitizers, does not depend on the round.
    Raises OptimlError where an original itself is refused: then the suite says nothing.
    """
    verdicts: list[Verdict] = []
    ordered = sorted(cases, key=lambda case: case.original)
    for original, group in groupby(ordered, key=lambda case: case.original):
        ours = list(group)
        seen = [case for case in ours if case.expected(machine.mode)]
        unseen = [case for case in ours if case not in seen]
        verdicts += [Verdict(case, None, "", None, number + 1) for number in range(rounds) for case in unseen]
        if seen:
            verdicts += _of_original(original, seen, machine, on_verdict, defences, rounds)
    return verdicts


def _of_original(
    original: str,
    cases: Sequence[SelfCase],
    machine: Machine,
    on_verdict: Callable[[Verdict], None],
    defences: Defences,
    rounds: int,
) -> list[Verdict]:
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{original}.cu"
        path.write_bytes(original_text(original))
        root = path.parent.resolve()
        (root / ".git").mkdir()  # the root, wherever the temporary folder lies
        spec, spec_path = find_spec(root, path)
        program = load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
        with closing(machine.evaluator(spec, root, spec_path, defences)) as evaluator:
            first, _ = evaluator.open(program)
            with ThreadPoolExecutor(machine.jobs) as executor:
                builds = [executor.submit(_build, evaluator, _edited(program, case)) for case in cases]
                for number in range(1, rounds + 1):
                    for case, future in zip(cases, builds, strict=True):
                        confirmed = number == 1 or case.suite == "attacks"
                        evaluation = _evaluated(evaluator, future.result(), first, confirmed=confirmed)
                        verdict = replace(_judged(case, evaluation, machine.mode), round=number)
                        on_verdict(verdict)
                        verdicts.append(verdict)
    return verdicts


def _edited(program: Program, case: SelfCase) -> Program:
    return program.replace({program.kernel_file: case.text()})


def _build(evaluator: Evaluator, program: Program) -> Built | Evaluation:
    try:
        return evaluator.build(program)
    except NotBuilt as error:
        return error.evaluation or Evaluation(Outcome.SCREENED_OUT, failure=Failure(str(error)))


def _evaluated(evaluator: Evaluator, built: Built | Evaluation, original: Built, *, confirmed: bool) -> Evaluation:
    if isinstance(built, Evaluation):
        return built
    if built.identity == original.identity:
        return Evaluation(Outcome.DUPLICATE, failure=Failure("same machine code and launch as the original"))
    evaluation, _ = evaluator.evaluate(built, None)
    return evaluator.confirm(built) if confirmed and evaluation.outcome in PASSED else evaluation


def _judged(case: SelfCase, evaluation: Evaluation, mode: str) -> Verdict:
    reason = evaluation.failure.reason if evaluation.failure else ""
    outcome = evaluation.outcome
    if outcome is Outcome.GUARDRAIL and evaluation.measurement:
        # A slower edit was found to be right before its speed was looked at: honest ones may be slow, attacks have got through.
        outcome = Outcome.SLOWER if evaluation.measurement.ratio < 1 else outcome
    right = outcome in case.expected(mode) and case.reason in reason
    if case.suite == "attacks":
        right = right and bool(reason)
    return Verdict(case, outcome, reason, right)
