"""Runs self-test cases through the real stages: build, evaluate, confirm, and the conditions on a suggestion."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from engine.compile.built import Built, NotBuilt
from engine.cuda.load import load_program
from engine.errors import MachineError, OptimlError
from engine.evaluate import guardrails, steering
from engine.evaluate.cpu import CpuEvaluator
from engine.evaluate.evaluator import Evaluator
from engine.model import Evaluation, Failure, Guardrail, Outcome, Program
from engine.run.machine import Machine
from engine.run.suggestion_gate import Gate, SuggestionConditions
from engine.selftest.cases import CORRECT, SelfCase
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
    Where an original itself is refused, none of its cases ends as expected. Raises MachineError.
    """
    verdicts: list[Verdict] = []
    ordered = sorted(cases, key=_same_original)
    for _, group in groupby(ordered, key=_same_original):
        ours = list(group)
        seen = [case for case in ours if case.expected(machine.mode)]
        unseen = [case for case in ours if case not in seen]
        verdicts += [Verdict(case, None, "", None, number + 1) for number in range(rounds) for case in unseen]
        if seen:
            try:
                verdicts += _of_original(seen, machine, on_verdict, defences, rounds)
            except MachineError:
                raise
            except OptimlError as error:
                for case in seen:
                    verdicts.append(Verdict(case, None, f"the original is refused: {error}", False))
                    on_verdict(verdicts[-1])
    return verdicts


def _same_original(case: SelfCase) -> tuple[str, bytes, tuple[tuple[str, bytes], ...]]:
    return case.original, case.source, case.files


def _of_original(
    cases: Sequence[SelfCase], machine: Machine, on_verdict: Callable[[Verdict], None], defences: Defences, rounds: int
) -> list[Verdict]:
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        for name, data in cases[0].before.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
        path = root / cases[0].path
        (root / ".git").mkdir()  # the root, wherever the temporary folder lies
        spec, spec_path = find_spec(root, path)
        program = load_program(path, spec_file=spec_path, kernels=[step.kernel for step in spec.steps])
        with closing(machine.evaluator(spec, root, spec_path, defences)) as evaluator:
            if isinstance(evaluator, CpuEvaluator):
                evaluator.speeds.lenient = True
            first, _ = evaluator.open(program)
            gate = Gate(machine, spec, root, spec_path, SuggestionConditions(guardrails.LIMITS, defences=defences))
            judges = Judges(evaluator, gate, first)
            with ThreadPoolExecutor(machine.jobs) as executor:
                builds = [executor.submit(_build, evaluator, program, case) for case in cases]
                for number in range(1, rounds + 1):
                    for case, future in zip(cases, builds, strict=True):
                        confirmed = number == 1 or case.suite == "attacks"
                        evaluation = judges.evaluated(future.result(), confirmed=confirmed)
                        verdict = replace(_judged(case, evaluation, machine.mode), round=number)
                        on_verdict(verdict)
                        verdicts.append(verdict)
    return verdicts


def _build(evaluator: Evaluator, program: Program, case: SelfCase) -> Built | Evaluation:
    try:
        return evaluator.build(program.replace(case.changed()), by_rules=False)
    except NotBuilt as error:
        return error.evaluation or Evaluation(Outcome.SCREENED_OUT, failure=Failure(str(error)))


@dataclass(frozen=True)
class Judges:
    """What decides on the edits of one original."""

    evaluator: Evaluator
    gate: Gate
    original: Built

    def evaluated(self, built: Built | Evaluation, *, confirmed: bool) -> Evaluation:
        """How an edit ends. What is found correct is confirmed and put before the gate whatever its speed, or none could be measured."""
        if isinstance(built, Evaluation):
            return built
        if built.identity == self.original.identity:
            return Evaluation(Outcome.DUPLICATE, failure=Failure("same machine code and launch as the original"))
        evaluation = _by_speed(self.evaluator.evaluate(built, None)[0])
        if not confirmed or evaluation.outcome not in CORRECT:
            return evaluation
        evaluation = _by_speed(self.evaluator.confirm(built))
        if evaluation.outcome not in CORRECT:
            return evaluation
        before = len(evaluation.guardrails)
        judged = self.gate.judge(evaluation, self.original.program, built)
        for verdict in judged.guardrails[before:]:
            # Hints are refused for want of a measurement, like what is slower: they may be right.
            if verdict.verdict == "failed" and verdict.name != steering.REFUSED.name:
                reason = f"{verdict.name}: {verdict.detail}"
                return replace(judged, outcome=Outcome.GUARDRAIL, failure=Failure(reason))
        return replace(judged, outcome=evaluation.outcome, failure=_unchecked(judged.guardrails[before:]))


def _by_speed(evaluation: Evaluation) -> Evaluation:
    """Slower, where a guardrail on the speed alone ended it: honest edits may be slow, and an attack has got through."""
    failed = guardrails.broken(evaluation)
    if evaluation.outcome is Outcome.GUARDRAIL and failed is not None and failed.name.startswith(guardrails.SPEED):
        return replace(evaluation, outcome=Outcome.SLOWER)
    return evaluation


def _unchecked(verdicts: Sequence[Guardrail]) -> Failure | None:
    """What the gate of an accepted edit did not check, for its verdict."""
    missing = [f"{v.name} ({v.detail})" for v in verdicts if v.verdict == "not checked"]
    return Failure(f"not checked: {'; '.join(missing)}") if missing else None


def _judged(case: SelfCase, evaluation: Evaluation, mode: str) -> Verdict:
    reason = evaluation.failure.reason if evaluation.failure else ""
    outcome = evaluation.outcome
    right = outcome in case.expected(mode) and case.reason in reason
    if case.suite == "attacks":
        right = right and bool(reason)
    return Verdict(case, outcome, reason, right)
