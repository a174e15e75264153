"""Builds that begin while the device opens the original: of what a search will likely try first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress

from engine.compile.built import Built
from engine.cuda.edit import edit_program
from engine.model import Program
from engine.rewrite.proposal import Proposal


class FirstBuilds:
    """The most promising of a program's proposals, so many, built on `executor` by `build`. Thread-safe."""

    def __init__(
        self, propose: Callable[[Program], list[Proposal]], build: Callable[[Program], Built], executor: Executor, count: int
    ) -> None:  # fmt: skip
        self._propose, self._build, self._executor, self._count = propose, build, executor, count
        self._begun: dict[str, Future[Built]] = {}  # by the program's digest
        self._lock = threading.Lock()

    def begin(self, original: Program) -> None:
        """Begin in a thread, which first waits for the proposals."""
        threading.Thread(target=self._begin, args=(original,), daemon=True).start()

    def _begin(self, original: Program) -> None:
        found: list[Proposal] = []
        with suppress(Exception):  # the search asks again, and is told
            found = sorted(self._propose(original), key=lambda proposal: -proposal.prior)
        for proposal in found[: self._count]:
            with suppress(Exception):  # whoever tries it is told
                program = edit_program(original, proposal.edits)
                with self._lock:
                    if program.digest not in self._begun:
                        self._begun[program.digest] = self._executor.submit(self._build, program)

    def take(self, program: Program) -> Future[Built] | None:
        """The build of a program, once; None where none was begun."""
        with self._lock:
            return self._begun.pop(program.digest, None)
