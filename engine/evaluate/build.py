"""From a program to something that can run: launch figures for every case, the device slice, machine code."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from engine.compile.built import Built, NotBuilt
from engine.compile.compiler import Compiler, Translation, further_errors
from engine.compile.index_precision import WORDS
from engine.errors import CompileError, OptimlError, SourceError
from engine.evaluate.analysis import Analysis
from engine.evaluate.guardrails import LIMITS
from engine.model import Binary, Evaluation, Failure, LaunchConfig, Outcome, Program, Target
from engine.settings.config import Guardrails
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import KernelSpec
from engine.verify.defences import ALL, Defences


class CandidateBuilder(Protocol):
    """Where candidates are built, once the original is known."""

    original_program: Program | None
    further: dict[object, Sequence[Mapping[str, int | float]]]  # see `Analysis`

    def build(self, program: Program) -> Built:
        """As `Builder.candidate`, without what depends on the original's machine code."""
        ...


@dataclass(frozen=True)
class BuildOptions:
    """How programs are built, and what candidates must pass; with `workers` these build them."""

    line_info: bool = False
    defences: Defences = ALL
    limits: Guardrails = LIMITS
    workers: CandidateBuilder | None = None


_PLAIN = BuildOptions()


class Builder(Analysis):
    """Builds programs of one spec for one target. Thread-safe as far as the compiler is."""

    def __init__(
        self, spec: KernelSpec, root: Path, compiler: Compiler, target: Target, spec_path: str | None = None,
        options: BuildOptions = _PLAIN,
    ) -> None:  # fmt: skip
        super().__init__(spec, root, target, spec_path, defences=options.defences)
        self.limits = options.limits  # of the guardrails
        self._compiler, self._line_info = compiler, options.line_info
        self._front = options.workers
        if self._front is not None:
            self.further = self._front.further  # who asks here asks there
        self.original_binary: Binary | None = None
        self.expressions = spec.expressions

    def original(self, program: Program) -> Built:
        """Build the original; its errors are the user's to see. Raises CompileError, SourceError, SpecError."""
        begin = time.perf_counter()
        launches = self.launches(program)
        self.check_limits(launches)
        text = self.slice(program)
        binary = self._compiler.compile(self.translation(text))
        if reason := beyond_bound(binary, launches):
            raise SourceError(reason, self.spec.file, "launch smaller blocks, or raise the bound")
        if reason := self._other_constants(binary):
            raise SourceError(reason, self.spec.origin or self.spec.file, "correct its type in the spec")
        self.original_program = program
        if self._front is not None:
            self._front.original_program = program
        self.original_binary = binary
        return Built(program, text, self.expressions, binary, launches, {"compile": time.perf_counter() - begin})

    def candidate(self, program: Program, *, by_rules: bool = False) -> Built:
        """Build a candidate; `by_rules` as of `Built`. Raises NotBuilt with the outcome."""
        built = self._front.build(program) if self._front is not None else self._candidate(program)
        first = self.original_binary
        if first is not None and self.defences.device_state and built.binary.kept_bytes > first.kept_bytes:
            raise not_built(Outcome.SCREENED_OUT, "keeps data in device memory that outlives a launch", built.stage_s)
        if first is not None and self.defences.clocks and built.binary.clock_reads > first.clock_reads:
            raise not_built(
                Outcome.SCREENED_OUT, "reads a clock or sleeps, according to its machine code", built.stage_s
            )
        if first is not None and self.defences.atomic_scope and built.binary.block_atomics > first.block_atomics:
            reason = "uses block-scope atomics on memory shared between blocks, according to its machine code"
            raise not_built(Outcome.SCREENED_OUT, reason, built.stage_s)
        lossy = built.binary.lossy_indices & ~first.lossy_indices if first is not None else 0
        if lossy and self.defences.index_precision:
            reason = next(words for bit, words in WORDS.items() if lossy & bit)
            raise not_built(Outcome.SCREENED_OUT, f"{reason}, according to its PTX", built.stage_s)
        return replace(built, by_rules=by_rules)

    def _candidate(self, program: Program) -> Built:
        begin = time.perf_counter()
        try:
            prepared = self.prepare(program)
        except OptimlError as error:
            raise not_built(Outcome.SCREENED_OUT, error.what, {"parse": time.perf_counter() - begin}) from None
        parsed = time.perf_counter()
        try:
            binary = self._compiler.compile(self.translation(prepared.text), owner=self)
        except CompileError as error:
            line = error.where.rpartition(":")[2]
            stages = {"parse": parsed - begin, "compile": time.perf_counter() - parsed}
            more = further_errors(error, self.spec.file)
            reason = f"{error.what}; {more}" if more else error.what
            raise not_built(Outcome.COMPILE_ERROR, reason, stages, line=int(line) if line.isdigit() else None) from None
        except OptimlError as error:
            raise not_built(Outcome.COMPILE_ERROR, str(error), {"parse": parsed - begin}) from None
        stages = {"parse": parsed - begin, "compile": time.perf_counter() - parsed}
        if reason := beyond_bound(binary, prepared.launches) or self._other_constants(binary):
            raise not_built(Outcome.SCREENED_OUT, reason, stages)
        further = self.further_launches(program)
        return Built(program, prepared.text, self.expressions, binary, prepared.launches, stages, further)

    def _other_constants(self, binary: Binary) -> str:
        """Which of the spec's constants the machine code has with another size; "" where there is none."""
        for argument, (_, size) in zip(self.spec.symbols, binary.constants, strict=True):
            elements = int(argument.size) if argument.role != "scalar" else 1
            if (given := elements * parse_dtype(argument.type).itemsize) != size:
                return f"the __constant__ variable '{argument.name}' has {size} bytes, the spec gives {given}"
        return ""

    def close(self) -> None:
        """End what is being built: it comes to nothing."""
        self._compiler.give_up(self)

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


def beyond_bound(binary: Binary, launches: Sequence[Sequence[LaunchConfig]]) -> str:
    """Why a launch is refused for what the kernel's code was bound to; "" where it is not."""
    for step, bound in enumerate(binary.most_threads):
        most = max((case[step].threads for case in launches), default=0)
        if bound is not None and most > bound:
            return f"a block of {most} threads exceeds the kernel's __launch_bounds__ of {bound}"
    return ""


def not_built(outcome: Outcome, reason: str, stages: Mapping[str, float], line: int | None = None) -> NotBuilt:
    """A candidate that ended before it could run, with its evaluation."""
    evaluation = Evaluation(outcome, failure=Failure(reason, line=line), stage_s=stages)
    return NotBuilt(reason, evaluation=evaluation)
