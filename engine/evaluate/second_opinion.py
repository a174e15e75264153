"""What the CPU path finds in a suggestion that a GPU has verified: sizes, values, distances and races that no GPU run has shown."""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from engine.compile.built import Built
from engine.cpu import CpuMachine, Unsupported
from engine.errors import OptimlError, RefusedError
from engine.evaluate.build import Builder
from engine.evaluate.contained import unexpected
from engine.evaluate.cpu_screen import CpuScreen
from engine.model import Evaluation, Failure, Guardrail, Outcome
from engine.spec.kernel_spec import KernelSpec
from engine.verify.compiler_arms import compiler_arms

NAME = "also checked on the CPU"
_UNDECIDED = frozenset({Outcome.TIMED_OUT})  # the GPU ran it to its end: the CPU is slow

Opinion = tuple[Evaluation | None, tuple[Guardrail, ...]]


class SecondOpinion:
    """The CPU path's checks of suggestions of one spec. The original is validated there once, at the latest with the first of them."""

    def __init__(self, spec: KernelSpec, builder: Builder, machine: Callable[[], CpuMachine]) -> None:
        self._spec, self._builder, self._machine = spec, builder, machine
        self._opening: Future[CpuScreen] | None = None

    def open_beside(self, original: Built) -> None:
        """Begin with the original in a thread, so that the first suggestion does not wait for it."""
        if self._opening is None:
            self._opening = Future()
            # A daemon: whoever ends the search early does not wait for it, and its processes end with it.
            threading.Thread(target=self._open, args=(original, self._opening), daemon=True).start()

    def _open(self, original: Built, opening: Future[CpuScreen]) -> None:
        try:
            screen = CpuScreen(self._spec, self._builder, self._machine(), random.Random(secrets.randbits(64)))
            screen.open(original)
            screen.prepare()
            opening.set_result(screen)
        except Exception as error:
            opening.set_exception(error)

    def judge(self, original: Built, built: Built) -> Opinion:
        """The evaluation of what is refuted (None: it is not), and what was checked or why it was not."""
        try:
            opinion = self._judge(original, built)
        except Exception as error:
            opinion = _unchecked(unexpected(error))
        if (
            opinion[0] is None
            and opinion[1][0].verdict == "not checked"
            and compiler_arms(original.program, built.program)
        ):
            failure = Failure(f"differs by architecture, and that was not checked on the CPU: {opinion[1][0].detail}")
            return Evaluation(Outcome.SCREENED_OUT, failure=failure), ()
        return opinion

    def _judge(self, original: Built, built: Built) -> Opinion:
        self.open_beside(original)
        assert self._opening is not None
        try:
            screen = self._opening.result()
        except OptimlError as error:
            return _unchecked(error.what)
        evaluation = Evaluation(Outcome.CRASHED, None, None, built.binary.resources, built.binary.code_hash)
        try:
            wrong, checked = screen.confirm(screen.complete(built), evaluation)
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
