"""The last conditions on a suggestion, beside what the evaluator confirmed: what it touches, other targets, the user's own command."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.builders.builders import LEAST_CORES
from engine.compile.built import Built
from engine.compile.nvrtc import NvrtcCompiler
from engine.errors import OptimlError
from engine.evaluate import guardrails, steering
from engine.evaluate.build import Builder, BuildOptions
from engine.model import Evaluation, Guardrail, Program, VerifiedInstance
from engine.predict.targets import figures_for, target_for
from engine.run.end_to_end import end_to_end
from engine.run.instance_check import INSTANCES, InstanceCheck
from engine.run.whole_check import WholeCheck, WholeVerdict, joined
from engine.settings.config import Guardrails
from engine.spec.kernel_spec import KernelSpec
from engine.verify.assumptions import assumptions
from engine.verify.defences import ALL, Defences
from engine.verify.names import NAMES, names, visible_instances
from engine.verify.screen import screen

if TYPE_CHECKING:
    from engine.run.machine import Machine


@dataclass(frozen=True)
class SuggestionConditions:
    """What a suggestion must hold: the settings' limits, the other targets that it must compile for, our defences."""

    limits: Guardrails
    targets: Sequence[str] = ()
    defences: Defences = ALL


_VERIFIED_TOO = "of the same template is verified as well before an edit that changes it is suggested"


class Gate:
    """The guardrails that need neither the GPU's worker nor the CPU's: for one spec of the repository at `root`."""

    def __init__(
        self, machine: Machine, spec: KernelSpec, root: Path, spec_path: str | None, conditions: SuggestionConditions
    ) -> None:
        self._machine, self._spec, self._root, self._spec_path = machine, spec, root, spec_path
        self._limits, self._defences = conditions.limits, conditions.defences
        self._whole = WholeCheck(spec, root, machine.arch, machine.box, machine.cache / "whole")
        self._instances = InstanceCheck(machine, spec, root, spec_path, conditions.limits, conditions.defences)
        self._targets = [t for t in dict.fromkeys(conditions.targets) if t.rstrip("a") != machine.arch.rstrip("a")]

    def begin(self, original: Program, built: Built) -> None:
        """Begin with what takes long of `judge`, beside the confirmation: where a GPU confirms and compilers have cores left."""
        if self._machine.mode == "measured" and self._machine.jobs >= LEAST_CORES and self._defences.whole_build:
            self._whole.begin(original, built)

    def look_ahead(self, original: Built, say: Callable[[str], None]) -> None:
        """Find, in a thread, the other instances of the kernel that an edit would change, and say what becomes of such an edit."""
        if self._defences.whole_build and any(step.template_args for step in self._spec.steps):
            # A daemon: a search that ends sooner does not wait for it.
            threading.Thread(target=self._look_ahead, args=(original, say), daemon=True).start()

    def _look_ahead(self, original: Built, say: Callable[[str], None]) -> None:
        # Where the file cannot be built a suggestion's guardrail says so; and a search that ends closes what this needs.
        with suppress(Exception):
            for name in self._whole.other_instances(original):
                why = self._instances.look_ahead(original.program, name)
                say(_cannot(name, why) if why else f"the instance {name} {_VERIFIED_TOO}")

    @property
    def notes(self) -> tuple[str, ...]:
        """What kept edits from being suggested, in sentences."""
        return tuple(_cannot(name, why) for name, why in self._instances.unverifiable.items())

    def known(self, original: Program, built: Built) -> Guardrail | None:
        """A guardrail of which is known that the candidate fails it; None where its confirmation is worth its time."""
        return self._instances.known(original, built)

    def judge(self, evaluation: Evaluation, original: Program, built: Built) -> Evaluation:
        """A confirmed evaluation with the further verdicts; GUARDRAIL where one failed. The cheap ones come first."""
        verdicts: list[Guardrail] = [self._scope(original, built.program)]
        if self._machine.mode == "predicted" and steering.steers_only(original, built.program):
            verdicts.append(steering.REFUSED)
        try:
            verdicts.append(guardrails.fits(built.binary.resources, built.launches, figures_for(self._machine.arch)))
        except OptimlError as error:
            name = f"threads and shared memory within the limits of {self._machine.arch}"
            verdicts.append(Guardrail(name, "not checked", error.what))
        for arch in self._targets:
            verdicts += self._other_target(arch, original, built.program)
        if self._defences.names:
            verdicts.append(self._names(original, built.program))
        if self._defences.assumptions:
            try:
                verdicts += assumptions(original, built.program, self._spec)
            except OptimlError as error:
                verdicts.append(Guardrail("assumptions about callers", "not checked", error.what))
        whole = WholeVerdict(())
        if self._defences.whole_build and not _failed(verdicts):
            whole = self._whole.judge(original, built)
            verdicts += whole.guardrails
        instances: tuple[VerifiedInstance, ...] = ()
        if (self._defences.names or self._defences.whole_build) and not _failed(verdicts):
            found, instances = self._other_instances(original, built, whole)
            verdicts = list(joined([*verdicts, *found]))
        judged = replace(evaluation, guardrails=(*evaluation.guardrails, *verdicts), instances=instances)
        if guardrails.broken(judged) is None and self._limits.command:
            judged = replace(judged, guardrails=(*judged.guardrails, self._end_to_end(original, built.program)))
        return guardrails.applied(judged)

    def whole(self, original: Program, candidate: Program) -> tuple[Guardrail, ...]:
        """The user's command on a program whose parts were judged one by one; nothing where the settings name none."""
        return (self._end_to_end(original, candidate),) if self._limits.command else ()

    def _scope(self, original: Program, candidate: Program) -> Guardrail:
        if not self._defences.screening:
            return guardrails.scope(None)
        try:
            return guardrails.scope(screen(original, candidate, self._spec, self._defences))
        except OptimlError as error:
            return guardrails.scope(f"cannot be read: {error.what}")

    def _names(self, original: Program, candidate: Program) -> Guardrail:
        try:
            return names(original, candidate, self._whole.around(original, candidate), self._spec)
        except OptimlError as error:
            return Guardrail(NAMES, "not checked", error.what)

    def _other_instances(
        self, original: Program, built: Built, whole: WholeVerdict
    ) -> tuple[list[Guardrail], tuple[VerifiedInstance, ...]]:
        """The verdicts on the instances that the whole build or the text shows to be changed."""
        changed, others = {instance.name for instance in whole.instances}, list(whole.unchanged)
        if self._defences.names and not whole.complete:
            try:
                around = self._whole.around(original, built.program)
                others += visible_instances(original, built.program, around, self._spec)
                others += self._instances.launched(original)
            except OptimlError as error:
                return [Guardrail(INSTANCES, "not checked", error.what)], ()
        verdict = self._instances.judge(original, built, sorted(changed), others, same=whole.complete)
        found = [verdict.guardrail]
        unknown = not whole.complete
        if unknown and verdict.guardrail.verdict == "passed" and any(step.template_args for step in self._spec.steps):
            detail = "; ".join(filter(None, (verdict.guardrail.detail, "others than the text names are not known")))
            found = [Guardrail(INSTANCES, "not checked", f"{detail} without a build of the whole file")]
        for instance in whole.instances:
            if (own := verdict.built.get(instance.name)) is not None:
                found.append(self._whole.instance(instance, *own))
        return found, verdict.instances

    def _other_target(self, arch: str, original: Program, candidate: Program) -> list[Guardrail]:
        """Whether a declared target's compiler takes it, and whether its launches fit there."""
        machine = self._machine
        try:
            target, figures = target_for(arch), figures_for(arch)
            compiler = NvrtcCompiler(arch, cache=machine.cache / "compile", sandbox=machine.box, jobs=1)
        except OptimlError as error:
            return [Guardrail(f"compiles for {arch}", "not checked", error.what)]
        try:
            # The text was screened before: here the compiler alone has a say.
            builder = Builder(
                self._spec,
                self._root,
                compiler,
                target,
                self._spec_path,
                BuildOptions(defences=replace(ALL, screening=False)),
            )
            try:
                builder.original(original)
            except OptimlError as error:
                return [guardrails.compiles(arch, None, error.what)]
            try:
                built = builder.candidate(candidate)
            except OptimlError as error:
                return [guardrails.compiles(arch, error.what)]
            return [guardrails.compiles(arch, None), guardrails.fits(built.binary.resources, built.launches, figures)]
        finally:
            compiler.close()

    def _end_to_end(self, original: Program, candidate: Program) -> Guardrail:
        changed = {path: data for path, data in candidate.files.items() if original.files.get(path) != data}
        machine = self._machine
        with machine.turns:
            return end_to_end(
                self._root, changed, self._limits, machine.box, machine.scratch, gpu=machine.mode == "measured"
            )


def _cannot(name: str, why: str) -> str:
    return f"the instance {name} cannot be verified, so no edit that changes it is suggested: {why}"


def _failed(verdicts: Sequence[Guardrail]) -> bool:
    return any(verdict.verdict == "failed" for verdict in verdicts)
