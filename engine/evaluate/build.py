"""From a program to something that can run: launch figures for every case, the device slice, machine code."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from engine.compile.compiler import Compiler, Translation
from engine.config import Guardrails
from engine.errors import CompileError, OptimlError
from engine.evaluate.model import Built, NotBuilt
from engine.guardrails import LIMITS
from engine.model import Binary, Evaluation, Failure, LaunchConfig, Outcome, Program
from engine.rules.model import Target
from engine.source.launch import evaluate
from engine.source.slice import device_slice
from engine.spec.model import KernelSpec, Step
from engine.spec.read import specs_in
from engine.verify.defences import ALL, Defences
from engine.verify.screen import keeps_state, screen

MAX_GRID = (2**31 - 1, 65535, 65535)


class Builder:
    """Builds programs of one spec for one target. Thread-safe as far as the compiler is."""

    def __init__(
        self, spec: KernelSpec, root: Path, compiler: Compiler, target: Target, spec_path: str | None = None,
        *, line_info: bool = False, defences: Defences = ALL, limits: Guardrails = LIMITS,
    ) -> None:  # fmt: skip
        self.limits = limits  # of the guardrails
        self.spec, self._root, self._compiler, self._target, self._spec_path = spec, root, compiler, target, spec_path
        self._line_info, self.defences = line_info, defences
        self._first: tuple[Program, Binary] | None = None
        self.expressions = tuple(expression(step) for step in spec.steps)

    def original(self, program: Program) -> Built:
        """Build the original; its errors are the user's to see. Raises CompileError, SourceError, SpecError."""
        begin = time.perf_counter()
        launches = self.launches(program)
        self.check_limits(launches)
        text = self._slice(program)
        binary = self._compiler.compile(self.translation(text))
        self._first = (program, binary)
        return Built(program, text, self.expressions, binary, launches, {"compile": time.perf_counter() - begin})

    def candidate(self, program: Program) -> Built:
        """Build a candidate. Raises NotBuilt with the outcome."""
        begin = time.perf_counter()
        try:
            reason = self._screened(program)
            if reason:
                raise OptimlError(reason)
            launches = self.launches(program)
            self.check_limits(launches)
            text = self._slice(program)
        except OptimlError as error:
            raise _not_built(Outcome.SCREENED_OUT, error.what, {"parse": time.perf_counter() - begin}) from None
        parsed = time.perf_counter()
        try:
            binary = self._compiler.compile(self.translation(text))
        except CompileError as error:
            line = error.where.rpartition(":")[2]
            stages = {"parse": parsed - begin, "compile": time.perf_counter() - parsed}
            raise _not_built(
                Outcome.COMPILE_ERROR, error.what, stages, line=int(line) if line.isdigit() else None
            ) from None
        except OptimlError as error:
            raise _not_built(Outcome.COMPILE_ERROR, str(error), {"parse": parsed - begin}) from None
        stages = {"parse": parsed - begin, "compile": time.perf_counter() - parsed}
        if self._first is not None and self.defences.device_state and keeps_state(self._first[1].cubin, binary.cubin):
            raise _not_built(Outcome.SCREENED_OUT, "keeps data in device memory that outlives a launch", stages)
        return Built(program, text, self.expressions, binary, launches, stages)

    def _screened(self, program: Program) -> str | None:
        """Why the text alone speaks against a candidate. Raises SourceError, SpecError."""
        if self._first is None or not self.defences.screening:
            return None
        return screen(self._first[0], program, self.spec)

    def compile(self, text: str, expressions: Sequence[str]) -> Binary:
        """Compile other text than a program's slice with this spec's options. Raises CompileError."""
        return self._compiler.compile(self.translation(text, expressions))

    def translation(self, text: str, expressions: Sequence[str] | None = None) -> Translation:
        """What the compiler gets for a slice of this spec."""
        options = self.spec.compile
        return Translation(
            text=text,
            path=self.spec.file,
            expressions=tuple(expressions or self.expressions),
            defines=options.defines,
            std=options.std,
            line_info=self._line_info,
        )

    def _slice(self, program: Program) -> str:
        names = list(dict.fromkeys(step.kernel for step in self.spec.steps))
        return device_slice(program, names, root=self._root, include=self.spec.compile.include).text

    def launches(self, program: Program) -> tuple[tuple[LaunchConfig, ...], ...]:
        """The launches that the program's own text evaluates to, per case. Raises SourceError."""
        return tuple(self.launches_for(program, case.sizes) for case in (*self.spec.check, *self.spec.time))

    def launches_for(self, program: Program, sizes: Mapping[str, int | float]) -> tuple[LaunchConfig, ...]:
        """The launches, one per step, at any sizes. Raises SourceError."""
        spec = self._with_current_launch(program)
        return tuple(evaluate(program, spec, step, sizes) for step in range(len(spec.steps)))

    def _with_current_launch(self, program: Program) -> KernelSpec:
        """The spec as validated, but with the launch that this program's text declares: nothing else of a spec may change."""
        if all(step.launch is None for step in self.spec.steps):
            return self.spec
        for current in specs_in(program, self._spec_path):
            if [s.kernel for s in current.steps] == [s.kernel for s in self.spec.steps]:
                steps = tuple(replace(a, launch=b.launch) for a, b in zip(self.spec.steps, current.steps, strict=True))
                return replace(self.spec, steps=steps)
        return self.spec

    def check_limits(self, launches: Sequence[Sequence[LaunchConfig]]) -> None:
        """Raises OptimlError where a launch is beyond the target's limits."""
        for launch in (launch for case in launches for launch in case):
            if not 1 <= launch.threads <= self._target.max_threads_per_block or min(launch.block) < 1:
                raise OptimlError(
                    f"a block of {launch.threads} threads does not fit the limit of {self._target.max_threads_per_block}"
                )
            if any(not 1 <= g <= most for g, most in zip(launch.grid, MAX_GRID, strict=True)) or launch.block[2] > 64:
                raise OptimlError(f"a grid of {launch.grid} with blocks of {launch.block} cannot be launched")
            if not 0 <= launch.shared_bytes <= self._target.shared_per_sm:
                raise OptimlError(f"{launch.shared_bytes} bytes of dynamic shared memory do not fit")


def expression(step: Step) -> str:
    """The name expression of a step's kernel: "k" or "k<float, 256>"."""
    return f"{step.kernel}<{step.template_args}>" if step.template_args else step.kernel


def _not_built(outcome: Outcome, reason: str, stages: Mapping[str, float], line: int | None = None) -> NotBuilt:
    evaluation = Evaluation(outcome, failure=Failure(reason, line=line), stage_s=stages)
    return NotBuilt(reason, evaluation=evaluation)
