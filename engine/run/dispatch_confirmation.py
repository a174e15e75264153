"""Dispatch code held to what a suggestion is held to: each instance by itself, and the whole by the user's own command."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.compile.built import Built
from engine.cuda.parse import parse
from engine.errors import OptimlError, RefusedError
from engine.evaluate.build import Builder, BuildOptions
from engine.model import PASSED, CaseTiming, Evaluation, Guardrail, Program
from engine.run.confirmation import LEAST
from engine.run.machine import Machine
from engine.run.suggestion_gate import Gate, SuggestionConditions
from engine.settings.config import Guardrails
from engine.spec.kernel_spec import KernelSpec
from engine.spec.reader import specs_in
from engine.tune.dispatch import attempt, generate, same_code
from engine.tune.dispatch_target import holds
from engine.tune.space import Point
from engine.tune.template import ConstantTemplate, program_at
from engine.tune.tuning_result import Branch, Dispatch, TuneResult
from engine.verify.defences import ALL

# An instance is launched at its own shape alone; at others another branch is taken. Its point passed the drawn sizes by itself.
_ONE_BRANCH = dataclasses.replace(ALL, secret_sizes=False)


@dataclass(frozen=True)
class Confirming:
    """One kernel of the repository at `root`, and what its suggestions must pass."""

    machine: Machine
    spec: KernelSpec
    root: Path
    spec_path: str | None
    limits: Guardrails
    targets: tuple[str, ...]

    def attempt(self, template: ConstantTemplate, point: Point) -> None:
        """Write and compile dispatch code of one instance. Raises RefusedError where that cannot be done, whatever the table."""
        values = template.space.named(point)
        program = attempt(template, self.spec_path, values)
        try:
            self._instance(program, self._spec_in(program), values)
        except RefusedError:
            raise
        except OptimlError as error:
            do = "use the general configuration: omit --dispatch"
            raise RefusedError(f"no dispatch code can be generated: {error.what}", error.where, do) from None

    def dispatch(self, template: ConstantTemplate, result: TuneResult) -> tuple[Dispatch, Program]:
        """The dispatch code for a result's table, and its program; without a patch where it is not suggested.

        Raises RefusedError where none can be written, and where an instance is not confirmed.
        """
        assert template.default is not None
        original = template.original
        general = result.best.values if result.best is not None else template.space.named(template.default)
        program, selection = generate(template, self.spec_path, result.shapes, general)
        found = self._spec_in(program)
        holds(program, found, selection)
        # The command sees the whole once; a branch by itself is no program of the user's.
        each = Gate(
            self.machine,
            self.spec,
            self.root,
            self.spec_path,
            SuggestionConditions(dataclasses.replace(self.limits, command=()), self.targets),
        )
        evaluations: list[Evaluation] = []
        timed: dict[str, CaseTiming] = {}
        for branch in selection.branches:
            evaluation = self._branch(each, program, found, template, branch)
            if not branch.cases:  # confirmed before, over all cases
                evaluation = result.best.evaluation if result.best is not None else result.original
            assert evaluation.measurement is not None
            evaluations.append(evaluation)
            timed |= {c.case: c for c in evaluation.measurement.cases if c.case in branch.cases}
        cases = [timed[c.name] for c in self.spec.time]
        ratio, low, high = (_mean([(c.weight, getattr(c, f)) for c in cases]) for f in ("ratio", "low", "high"))
        least = LEAST[result.mode]
        verdicts: tuple[Guardrail, ...] = ()
        refused = f"below the threshold of {least:g}×" if ratio < least else ""
        if not refused:
            verdicts = Gate(
                self.machine, self.spec, self.root, self.spec_path, SuggestionConditions(self.limits)
            ).whole(original, program)
            refused = next((f"{v.name}: {v.detail}" for v in verdicts if v.verdict == "failed"), "")
        files = tuple(sorted(k for k, v in program.files.items() if original.files.get(k) != v))
        dispatch = Dispatch(
            selection.key, selection.branches, ratio, low, high, "" if refused else "dispatch.patch",
            () if refused else files, tuple(evaluations), verdicts, refused,
        )  # fmt: skip
        return dispatch, program

    def _branch(
        self, gate: Gate, program: Program, found: KernelSpec, template: ConstantTemplate, branch: Branch
    ) -> Evaluation:
        """The confirmation of one branch's instance, on the shapes that it serves; of one for shapes that were not measured only that it
        is the tuned code. Raises RefusedError."""
        said = ", ".join(branch.cases) or "other shapes"
        time_cases = tuple(c for c in self.spec.time if not branch.cases or c.name in branch.cases)
        point = tuple(branch.values[n] for n in template.space.names)
        timed = dataclasses.replace(self.spec, time=time_cases)
        defences = _ONE_BRANCH if self.machine.mode == "measured" else ALL
        evaluator = self.machine.evaluator(timed, self.root, self.spec_path, defences=defences, limits=self.limits)
        try:
            built, evaluation = evaluator.open(template.original)
            measured = evaluator.signals.mode == "measured"
            if point != template.default:
                built = evaluator.build(program_at(template.original, template, point), by_rules=True)
            instance = self._instance(program, dataclasses.replace(found, time=time_cases), branch.values)
            if not same_code(instance, built):
                raise RefusedError(
                    f"the instance for {said} differs from the tuned machine code and launch",
                    do="use the general configuration, and please report it",
                )
            if point != template.default and branch.cases:
                # On a GPU the instance itself is verified and timed; elsewhere its twin of the same instructions is screened.
                # Beyond the measured sizes other branches launch: there it is held to the launches of its twin.
                instance = dataclasses.replace(instance, further=built.further)
                evaluation = evaluator.confirm(instance if measured else built)
                if evaluation.outcome in PASSED:
                    evaluation = gate.judge(evaluation, template.original, built)
        finally:
            evaluator.close()
        if evaluation.measurement is None or evaluation.outcome not in PASSED:
            reason = evaluation.failure.reason if evaluation.failure else evaluation.outcome.value
            raise RefusedError(
                f"the instance for {said} was not confirmed: {reason}", do="use the general configuration"
            )
        return evaluation

    def _spec_in(self, program: Program) -> KernelSpec:
        return next(s for s in specs_in(program, self.spec_path) if s.kernel == self.spec.kernel)

    def _instance(self, program: Program, found: KernelSpec, values: Mapping[str, int]) -> Built:
        """One instance, compiled from the generated file with the launch that its host code has. Raises OptimlError."""
        head = parse(program.data, program.kernel_file).kernel(found.kernel).template_parameters
        arguments = ", ".join(str(values[p.split()[-1]]) for p in head)
        own = dataclasses.replace(found, steps=(dataclasses.replace(found.steps[0], template_args=arguments),))
        machine = self.machine
        builder = Builder(
            own,
            self.root,
            machine.compiler,
            machine.target,
            self.spec_path,
            BuildOptions(line_info=machine.mode == "predicted"),
        )
        return dataclasses.replace(builder.original(program), by_rules=True)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    """The weighted geometric mean."""
    total = sum(w for w, _ in weighted)
    return math.exp(sum(w * math.log(v) for w, v in weighted) / total)
