"""What the CPU path finds in a suggestion that a GPU has verified: sizes, values, distances and races that no GPU run has shown."""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace

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
# A program is checked ahead once it has been the best for this share of the time since the original was opened, and at least for so long:
# what is given up before its end costs the compilers cores. Ours.
_STOOD, _STOOD_LEAST_S = 0.15, 1.0

Opinion = tuple[Evaluation | None, tuple[Guardrail, ...]]


class _GivenUp(Exception):
    """Checks that were begun ahead and that nobody waits for."""


@dataclass(eq=False)
class _Ahead:
    """Checks that begin before they are asked for; `opinion` is None where they were given up."""

    built: Built | None = None
    opinion: Opinion | None = None
    given_up: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def of(self, built: Built) -> bool:
        """Whether these are the checks of this program."""
        return (
            self.built is not None
            and self.built.by_rules == built.by_rules
            and self.built.program.digest == built.program.digest
        )


class SecondOpinion:
    """The CPU path's checks of suggestions of one spec. The original is validated there once, at the latest with the first of them.

    Checks of a likely suggestion can begin ahead, in a thread, beside the search; of any two checks one runs.
    """

    def __init__(self, spec: KernelSpec, builder: Builder, machine: Callable[[], CpuMachine]) -> None:
        self._spec, self._builder, self._machine = spec, builder, machine
        self._opening: Future[CpuScreen] | None = None
        self._begin = 0.0
        self._known: list[_Ahead] = []
        self._lock, self._turn = threading.Lock(), threading.Lock()  # of what is known; whose checks run
        self._running: _Ahead | None = None

    def open_beside(self, original: Built) -> None:
        """Begin with the original in a thread, so that the first suggestion does not wait for it."""
        if self._opening is None:
            self._opening, self._begin = Future(), time.monotonic()
            # A daemon: whoever ends the search early does not wait for it, and its processes end with it.
            threading.Thread(target=self._open, args=(original, self._opening), daemon=True).start()

    def _open(self, original: Built, opening: Future[CpuScreen]) -> None:
        try:
            machine = self._machine()
            machine.go_on = self._go_on
            screen = CpuScreen(self._spec, self._builder, machine, random.Random(secrets.randbits(64)))
            screen.open(original)
            screen.prepare()
            opening.set_result(screen)
        except Exception as error:
            opening.set_exception(error)

    def begin_ahead(self, original: Built, build: Callable[[], Built]) -> None:
        """Check in a thread what will likely be suggested, unless another such program comes soon; gives up an earlier one's checks."""
        self.open_beside(original)
        self.give_up()
        ahead = _Ahead()
        with self._lock:
            self._known.append(ahead)
        threading.Thread(target=self._begin_when_stood, args=(ahead, original, build), daemon=True).start()

    def give_up(self, but: Built | None = None) -> _Ahead | None:
        """End, soon, the checks that were begun ahead and have not ended, but for those of one program, which are returned."""
        with self._lock:
            kept = self._ahead(but)
            for ahead in self._known:
                if ahead is not kept:
                    ahead.given_up.set()
            self._known = [ahead for ahead in self._known if ahead is kept or ahead.opinion is not None]
        return kept

    def refuted(self, built: Built) -> Evaluation | None:
        """The evaluation of what checks begun ahead have refuted."""
        with self._lock:
            known = self._ahead(built)
        return known.opinion[0] if known is not None and known.opinion is not None else None

    def _ahead(self, built: Built | None) -> _Ahead | None:
        return next((ahead for ahead in self._known if built is not None and ahead.of(built)), None)

    def _begin_when_stood(self, ahead: _Ahead, original: Built, build: Callable[[], Built]) -> None:
        stood_s = max(_STOOD_LEAST_S, _STOOD * (time.monotonic() - self._begin))
        if ahead.given_up.wait(stood_s):
            ahead.ended.set()
            return
        self._work(ahead, original, build)
        with suppress(OptimlError):
            while ahead.opinion is not None and ahead.opinion[0] is not None:
                built = build()
                with self._lock:
                    if ahead.given_up.is_set() or self._ahead(built) is not None:
                        return
                    ahead = _Ahead(built)
                    self._known.append(ahead)
                self._work(ahead, original, build)

    def _work(self, ahead: _Ahead, original: Built, build: Callable[[], Built]) -> None:
        try:
            ahead.built = ahead.built or build()
            assert self._opening is not None
            wait([self._opening])  # its runs are nobody's to give up
            with self._turn:
                self._running = ahead
                try:
                    self._go_on()
                    ahead.opinion = self._opinion(original, ahead.built)
                finally:
                    self._running = None
        except (_GivenUp, OptimlError):  # what could not be built is judged, if it is, when it is asked for
            return
        finally:
            ahead.ended.set()

    def _go_on(self) -> None:
        if self._running is not None and self._running.given_up.is_set():
            raise _GivenUp

    def judge(self, original: Built, built: Built) -> Opinion:
        """The evaluation of what is refuted (None: it is not), and what was checked or why it was not."""
        ahead = self.give_up(but=built)
        if ahead is not None:
            ahead.ended.wait()
            if ahead.opinion is not None:
                return ahead.opinion
        with self._turn:
            return self._opinion(original, built)

    def of_first(self, original: Built, incumbent: Built | None, built: Built, evaluation: Evaluation) -> Evaluation:
        """The evaluation of what is about to become the best: refuted at once where it brings the first code that no rule wrote.

        A search would build upon such code until its end, and nothing of it could be suggested. `incumbent` None is the original.
        """
        if (
            built.by_rules
            or not (incumbent is None or incumbent.by_rules)
            or evaluation.outcome is not Outcome.ACCEPTED
        ):
            return evaluation
        begin = time.monotonic()
        wrong, _ = self.judge(original, built)
        stages = {**evaluation.stage_s, "screen": time.monotonic() - begin}
        return replace(evaluation if wrong is None else wrong, stage_s=stages)

    def _opinion(self, original: Built, built: Built) -> Opinion:
        try:
            opinion = self._judge(original, built)
        except _GivenUp:
            raise
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
            wrong, checked = screen.confirm(built, evaluation)
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
