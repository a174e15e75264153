"""Other programs that must be correct for an edit to be: its texts by architecture, and its helpers in the original kernel."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from engine.compile.built import Built
from engine.cpu import CpuBinary
from engine.errors import OptimlError
from engine.evaluate import guardrails
from engine.evaluate.build import Builder
from engine.model import Evaluation, Guardrail
from engine.spec.kernel_spec import KernelSpec
from engine.verify.compiler_arms import compiler_arms
from engine.verify.helpers import NAME, with_new_helpers


@dataclass(frozen=True)
class EditVariants:
    """The variants of one original's edits. `build` compiles for the CPU; `screen` says what is wrong on check shapes."""

    spec: KernelSpec
    builder: Builder
    original: Built
    build: Callable[[Built], CpuBinary]
    screen: Callable[[Built, Evaluation], Evaluation | None]

    def arms(self, built: Built) -> Iterator[Built]:
        """The texts of an edit that differs by architecture, built. Raises NotBuilt."""
        for program in compiler_arms(self.original.program, built.program):
            yield self.builder.candidate(program, by_rules=built.by_rules)

    def helpers(self, built: Built, evaluation: Evaluation) -> tuple[Evaluation | None, Guardrail | None]:
        """Whether functions that other files may call still compute what they did: in the original kernel, as the edit has them."""
        try:
            found = with_new_helpers(self.original.program, built.program, self.spec)
            if found is None:
                return None, None
            program, names = found
            mixed = replace(self.original, program=program, text=self.builder.slice(program))
            mixed = replace(mixed, extra=self.build(mixed))
        except OptimlError as error:
            return None, Guardrail(NAME, "not checked", error.what)
        wrong = self.screen(mixed, evaluation)
        if wrong is None:
            return None, Guardrail(NAME, "passed", ", ".join(names))
        reason = f"changes what {', '.join(names)} computes, which other files may call"
        failed = Guardrail(NAME, "failed", f"{reason}: {wrong.failure.reason}" if wrong.failure else reason)
        return guardrails.applied(replace(evaluation, guardrails=(failed,))), None
