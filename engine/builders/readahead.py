"""What is read in programs is asked once for each text, and ahead of time where that can be foreseen."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from engine.errors import OptimlError
from engine.evaluate.analysis import Analysis
from engine.model import Program
from engine.rewrite.proposal import Proposal
from engine.rules import RuleFailure

T = TypeVar("T")


class Ahead(Generic[T]):
    """What `here` says of a program, asked once per text. Thread-safe.

    `ahead` says the same in another process. What `prefetch` was told of is asked there, in the calling thread, and so is everything
    else where there is an executor `aside` for it: then who asks waits, and leaves this process to those that work in it. Neither of
    the two may raise.
    """

    def __init__(
        self, here: Callable[[Program], T], ahead: Callable[[Program], T] | None = None, aside: Executor | None = None
    ) -> None:
        self._here, self._ahead, self._aside = here, ahead or here, aside
        self._known: dict[str, Future[T]] = {}
        self._queued: dict[str, Future[T]] = {}  # for `aside`
        self._lock = threading.Lock()

    def __call__(self, program: Program) -> T:
        coming = self.coming(program)
        if coming is not None:
            with suppress(Exception):  # the search has ended, or a process could not start
                return coming.result()
        return self._of(program, self._here)

    def coming(self, program: Program) -> Future[T] | None:
        """What there is to wait for where it is read in another process, and asked for now at the latest.

        None where it is known, and where that process failed: then it is read here.
        """
        with self._lock:
            known = self._known.get(program.digest)
            if known is None and self._aside is not None:
                known = self._queued.get(program.digest)
                if known is None or known.cancelled():
                    with suppress(RuntimeError):  # it was shut down: the search has ended
                        known = self._queued[program.digest] = self._aside.submit(self._of, program, self._ahead)
        return known if known is not None and not known.done() else None

    def prefetch(self, program: Program) -> None:
        """Have it ready when it is asked for."""
        self._of(program, self._ahead)

    def _of(self, program: Program, analysis: Callable[[Program], T]) -> T:
        with self._lock:
            known = self._known.get(program.digest)
            if known is None:
                mine = self._known[program.digest] = Future[T]()
        if known is not None:  # or somebody is at it
            return known.result()
        try:
            mine.set_result(analysis(program))
        except BaseException as error:  # an interrupt, say: others must not wait for what never comes
            with self._lock:
                self._known.pop(program.digest, None)
            mine.set_exception(error)
            raise
        with self._lock:
            self._queued.pop(program.digest, None)
        return mine.result()


class Proposals:
    """What the rules propose for a program; asked once per text, from any thread, and ahead of time by a front if there is one."""

    def __init__(
        self, here: Analysis, front: Analysis | None = None, *, rules: bool = True, aside: Executor | None = None
    ) -> None:
        self._rules = rules
        self._lock = threading.Lock()
        self.failures: list[RuleFailure] = []
        ahead = None if front is None else partial(self._asked, front)
        self._of = Ahead(partial(self._asked, here), ahead, aside)

    def __call__(self, program: Program) -> list[Proposal]:
        return list(self._of(program))

    def prefetch(self, program: Program) -> None:
        """Have them ready when they are asked for."""
        self._of.prefetch(program)

    def coming(self, program: Program) -> Future[list[Proposal]] | None:
        """As `Ahead.coming`."""
        return self._of.coming(program)

    def _asked(self, analysis: Analysis, program: Program) -> list[Proposal]:
        if not self._rules:
            return []
        try:
            found, failures = analysis.propose(program)
        except OptimlError as error:
            found, failures = [], [RuleFailure("all", error.what)]
        with self._lock:
            self.failures += failures
        return found


class Readable(Protocol):
    """What can be read ahead: an `Ahead`, or what holds one."""

    def prefetch(self, program: Program) -> None: ...
    def coming(self, program: Program) -> Future[Any] | None: ...


class Foresight:
    """Has programs read ahead, each in all the ways that a search will ask for."""

    def __init__(self, ways: Sequence[Readable], aside: Executor | None) -> None:
        self._ways, self._aside = ways, aside
        self._waiting: Future[None] | None = None

    def coming(self, program: Program) -> Future[Any] | None:
        """The first thing that there is to wait for before the program is read in every way; None where it is.

        All of them are asked for at once.
        """
        awaited = [way.coming(program) for way in self._ways]
        return next((coming for coming in awaited if coming is not None), None)

    def read(self, program: Program) -> None:
        """Read it now, in this thread."""
        for way in self._ways:
            way.prefetch(program)

    def soon(self, program: Program) -> None:
        """Have it read beside everything else, in place of what waits for that; nothing where there is no front. From one thread."""
        if self._aside is not None:
            if self._waiting is not None:
                self._waiting.cancel()
            self._waiting = self._aside.submit(self.read, program)
