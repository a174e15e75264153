"""What the CPU path finds in a suggestion that a GPU has verified: sizes, values, distances and races that no GPU run has shown."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from dataclasses import replace

from engine.compile.built import Built
from engine.cpu import CpuMachine, Unsupported
from engine.errors import OptimlError, RefusedError
from engine.evaluate.build import Builder
from engine.evaluate.contained import unexpected
from engine.evaluate.cpu_screen import CpuScreen
from engine.model import Evaluation, Failure, Guardrail, Outcome
from engine.spec.kernel_spec import KernelSpec

NAME = "also checked on the CPU"
_UNDECIDED = frozenset({Outcome.TIMED_OUT})  # the GPU ran it to its end: the CPU is slow

Opinion = tuple[Evaluation | None, tuple[Guardrail, ...]]


class SecondOpinion:
    """The CPU path's checks of suggestions of one spec. The original is validated there with the first of them: a search pays nothing."""

    def __init__(self, spec: KernelSpec, builder: Builder, machine: Callable[[], CpuMachine]) -> None:
        self._spec, self._builder, self._machine = spec, builder, machine
        self._screen: CpuScreen | None = None
        self._why = ""  # it has no opinion on this original

    def judge(self, original: Built, built: Built) -> Opinion:
        """The evaluation of what is refuted (None: it is not), and what was checked or why it was not."""
        try:
            return self._judge(original, built)
        except Exception as error:
            return _unchecked(unexpected(error))

    def _judge(self, original: Built, built: Built) -> Opinion:
        if self._screen is None and not self._why:
            try:
                screen = CpuScreen(self._spec, self._builder, self._machine(), random.Random(secrets.randbits(64)))
                screen.open(original)
                self._screen = screen
            except OptimlError as error:
                self._why = error.what
        if self._screen is None:
            return _unchecked(self._why)
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash)
        try:
            wrong, checked = self._screen.confirm(self._screen.complete(built), evaluation)
        except RefusedError as error:
            return replace(evaluation, outcome=Outcome.SCREENED_OUT, failure=Failure(error.what)), ()
        except Unsupported as error:
            return _unchecked(f"the CPU path cannot run {', '.join(error.features)}")
        except OptimlError as error:
            return _unchecked(error.what)
        if wrong is None:
            return None, (Guardrail(NAME, "passed", "on check shapes, in several orders of threads"), *checked)
        assert wrong.failure is not None
        if wrong.outcome in _UNDECIDED:
            return _unchecked(wrong.failure.reason)
        return replace(wrong, failure=replace(wrong.failure, reason=f"on the CPU: {wrong.failure.reason}")), ()


def _unchecked(why: str) -> Opinion:
    return None, (Guardrail(NAME, "not checked", why),)
