"""Other instances of the kernel's template that an edit changes: verified as the spec's own is, or the reason why an edit is refused."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.compile.built import Built
from engine.cuda.parse import parse
from engine.errors import OptimlError, SourceError, SpecError
from engine.evaluate.cpu import CpuEvaluator
from engine.evaluate.guardrails import predicted_costs
from engine.model import PASSED, Evaluation, Guardrail, Measurement, Outcome, Program, VerifiedInstance
from engine.predicted_number import approximate
from engine.settings.config import Guardrails
from engine.spec.instance_spec import instance_specs
from engine.spec.kernel_spec import KernelSpec
from engine.spec.reader import relaunched
from engine.spec.tables import split_kernel
from engine.spec.template_choice import launched_arguments
from engine.verify.defences import Defences
from engine.verify.host_object import public_name

if TYPE_CHECKING:
    from engine.evaluate.build import Builder
    from engine.evaluate.evaluator import Evaluator
    from engine.run.machine import Machine

INSTANCES = "other instances of the kernel unchanged or verified"
_UNVERIFIABLE = "which cannot be verified"
_MOST = 4  # instances that are verified for one suggestion: each takes as long as a confirmation. Ours


@dataclass(frozen=True)
class InstanceVerdict:
    """The guardrail, the instances that were verified, and what was built of each, original and candidate, by its name expression."""

    guardrail: Guardrail
    instances: tuple[VerifiedInstance, ...] = ()
    built: dict[str, tuple[Built, Built]] = field(default_factory=dict)


@dataclass
class _NotVerified(OptimlError):
    """An instance that an edit changes and that is not verified, or not correct."""


@dataclass(frozen=True)
class _AskedInstance:
    """One instance of a candidate by its name expression, and the entries of those that were verified, maybe under other names."""

    original: Program
    candidate: Built
    name: str
    verified: Collection[tuple[str, ...]]


@dataclass(frozen=True)
class _JudgedInstance:
    """An instance as it was built of original and candidate; `evaluation` is None where there was nothing to verify."""

    original: Built
    built: Built
    evaluation: Evaluation | None


@dataclass(frozen=True)
class InstanceCheck:
    """Verifies candidates of one spec of the repository at `root` on other instances of its kernels."""

    machine: Machine
    spec: KernelSpec
    root: Path
    spec_path: str | None
    limits: Guardrails
    defences: Defences
    unverifiable: dict[str, str] = field(default_factory=dict)  # why, by name expression: no edit mends that

    def launched(self, program: Program) -> list[str]:
        """The name expressions of the instances that the text shows to be launched, without the spec's own."""
        found: list[str] = []
        unit = parse(program.data, program.kernel_file)
        for step in self.spec.steps:
            with suppress(KeyError, SourceError):
                own = split_kernel(step.expression)[1]
                for arguments, _ in launched_arguments(program, unit.kernel(step.kernel)) if own else ():
                    name = f"{step.kernel}<{arguments}>"
                    found += [name] if split_kernel(name)[1] != own else []
        return found

    def look_ahead(self, original: Program, name: str) -> str:
        """Why an instance cannot be verified, as far as building it shows; "" where nothing speaks against it."""
        try:
            for spec in self._specs(original, name):
                with suppress(OptimlError):
                    self._builder(spec).original(original)
                    return ""
            self._builder(spec).original(original)
        except OptimlError as error:
            return self.unverifiable.setdefault(name, error.what)
        return ""

    def known(self, original: Program, candidate: Built) -> Guardrail | None:
        """The verdict on a candidate that changes an instance of which is known that it cannot be verified; None: not known. Compiles."""
        for name, why in self.unverifiable.items():
            with suppress(OptimlError):
                if self._code(original, name) != self._code(candidate.program, name):
                    return _failed(name, f"{_UNVERIFIABLE}: {why}")
        return None

    def _code(self, program: Program, name: str) -> str:
        """The hash of an instance's machine code, whatever a spec could say of it. Raises OptimlError."""
        kernel, arguments = split_kernel(name)
        step = replace(self.spec.steps[0], kernel=kernel, template_args=arguments, launch=None)
        builder = self._builder(replace(self.spec, steps=(step,)))
        return builder.compile(builder.slice(program), (step.expression,)).code_hash

    def _builder(self, spec: KernelSpec) -> Builder:
        return self.machine.builder(spec, self.root, self.spec_path, self.defences, self.limits)

    def judge(
        self,
        original: Program,
        candidate: Built,
        changed: Collection[str],
        others: Iterable[str] = (),
        *,
        same: bool = True,
    ) -> InstanceVerdict:
        """The verdict on the instances whose machine code the candidate changes, by their name expressions, and on the `others`.

        Of the others those count that are launched otherwise or, where their code is not known to be the `same`, whose code is another.
        Each that counts takes seconds.
        """
        names = [*dict.fromkeys(changed)]
        names += [n for n in dict.fromkeys(others) if n not in names and self._differs(original, candidate, n, same)]
        if len(names) > _MOST:
            what = f"changes {len(names)} other instances ({', '.join(names)[:200]}), and at most {_MOST} are verified"
            return InstanceVerdict(Guardrail(INSTANCES, "failed", what))
        verified: dict[tuple[str, ...], tuple[VerifiedInstance, str]] = {}
        built: dict[str, tuple[Built, Built]] = {}
        for name in names:
            try:
                found = self._verified(_AskedInstance(original, candidate, name, verified))
            except OptimlError as error:
                return InstanceVerdict(_failed(name, error.what))
            built[name] = found.original, found.built
            if found.evaluation is not None and found.evaluation.measurement is not None:
                instance = VerifiedInstance(name, found.evaluation.measurement)
                verified[_entries(found.built)] = instance, _described(instance, found.evaluation)
        if not verified:
            return InstanceVerdict(Guardrail(INSTANCES, "passed"), built=built)
        detail = "; ".join(said for _, said in verified.values())
        instances = tuple(instance for instance, _ in verified.values())
        return InstanceVerdict(Guardrail(INSTANCES, "passed", f"also verified: {detail}"), instances, built)

    def _differs(self, original: Program, candidate: Built, name: str, same: bool) -> bool:
        """Whether a candidate launches an instance otherwise, or changes its code, which may be known to be the same."""
        program = candidate.program
        try:
            builder = self._builder(self._specs(original, name)[0])
            before = builder.launches(original)
        except OptimlError:  # nothing is known of its launch
            with suppress(OptimlError):
                return not same and self._code(original, name) != self._code(program, name)
            return False  # the original has no such instance
        with suppress(OptimlError):
            if builder.launches(program) == before:
                return not same and self._code(original, name) != self._code(program, name)
        return True

    def _verified(self, asked: _AskedInstance) -> _JudgedInstance:
        """Raises OptimlError with the end of the sentence "changes k<half>, …"."""
        problem, name = "", asked.name
        try:
            for spec in self._specs(asked.original, name):
                try:
                    return self._with_spec(asked, spec)
                except _NotVerified:
                    raise
                except OptimlError as error:  # its original does not build, or proves nothing
                    problem = problem or error.what
        except SpecError as error:
            problem = error.what
        self.unverifiable[name] = problem
        raise _NotVerified(f"{_UNVERIFIABLE}: {problem}")

    def _specs(self, original: Program, name: str) -> tuple[KernelSpec, ...]:
        """Raises SpecError where no spec can be made."""
        try:
            return instance_specs(original, self.spec, name)
        except KeyError:
            raise SpecError("its template is not in the kernel's file") from None

    def _with_spec(self, asked: _AskedInstance, spec: KernelSpec) -> _JudgedInstance:
        """Raises `_NotVerified` where the candidate's instance is incorrect or too slow, OptimlError where the original's is not valid."""
        program, builder = asked.candidate.program, self._builder(spec)
        first = builder.original(asked.original)
        try:
            if not spec.origin and relaunched(program, self.spec).steps != self.spec.steps:
                raise OptimlError("the edit changes a declared launch, which is not that of this instance")
            built = builder.candidate(program, by_rules=asked.candidate.by_rules)
        except OptimlError as error:
            raise _NotVerified(f"which does not build: {error.what}") from None
        if _entries(built) in asked.verified:
            return _JudgedInstance(first, built, None)
        with closing(self.machine.evaluator_with(spec, builder)) as evaluator:
            evaluation = self._evaluated(evaluator, asked.original, asked.candidate)
        costs = predicted_costs(evaluation)  # a prediction alone refuses nothing
        if failed := next((g for g in evaluation.guardrails if g.verdict == "failed" and g not in costs), None):
            raise _NotVerified(f"which fails the guardrail '{failed.name}': {failed.detail}")
        if evaluation.outcome not in PASSED and not costs:
            raise _NotVerified(_ending(evaluation))
        return _JudgedInstance(first, built, evaluation)

    def _evaluated(self, evaluator: Evaluator, original: Program, candidate: Built) -> Evaluation:
        if isinstance(evaluator, CpuEvaluator):
            evaluator.speeds.lenient = True  # it is asked for correctness
        with self.machine.turns if self.machine.mode == "measured" else nullcontext():
            evaluator.open(original)
        try:
            return evaluator.confirm(evaluator.build(candidate.program, by_rules=candidate.by_rules), any_speed=True)
        except OptimlError as error:
            raise _NotVerified(f"{_UNVERIFIABLE}: {error.what}") from None


def _failed(name: str, why: str) -> Guardrail:
    return Guardrail(INSTANCES, "failed", f"changes {name[:120]}, {why}")


def _entries(built: Built) -> tuple[str, ...]:
    return tuple(public_name(entry) for entry in built.binary.entries)


def _ending(evaluation: Evaluation) -> str:
    reason = evaluation.failure.reason if evaluation.failure is not None else evaluation.outcome.value
    case = f" in case {evaluation.failure.case}" if evaluation.failure is not None and evaluation.failure.case else ""
    how = "which is incorrect" if evaluation.outcome is Outcome.WRONG_RESULT else "which is not confirmed"
    return f"{how}: {reason}{case}"


def _described(instance: VerifiedInstance, evaluation: Evaluation) -> str:
    unchecked = [guardrail.name for guardrail in evaluation.guardrails if guardrail.verdict == "not checked"]
    without = f", not checked: {', '.join(unchecked)}" if unchecked else ""
    costs = "".join(f"; at a cost: {guardrail.detail}" for guardrail in predicted_costs(evaluation))
    return f"{instance.name} ({_speed(instance.measurement)}{without}{costs})"


def _speed(measured: Measurement) -> str:
    if measured.predicted:
        return f"predicted {approximate(measured.ratio)}×"
    return f"{measured.ratio:.2f}×, 95 % interval {measured.low:.2f} to {measured.high:.2f}"
