"""What model and memory do in one run, behind one object; either may be missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.compile.built import Built
from engine.llm.lessons import Lessons, MemorySettings
from engine.llm.session import Known, LlmSession, LlmSettings, diagnoser
from engine.model import Program, Target
from engine.process.interrupt import NEVER, Interrupt
from engine.rewrite.proposal import Proposal
from engine.search.profiling import Insight
from engine.search.tree import Node, Tree
from engine.spec.kernel_spec import KernelSpec


class Part:
    """Follows `engine.search.participants.Feed`. Call `join` with the run's tree before the search starts.

    Raises UsageError and MachineError where model or memory cannot be used at all.
    """

    def __init__(
        self, llm: LlmSettings | None, memory: MemorySettings | None, spec: KernelSpec, target: Target, out: Path,
        insight: Insight | None, known: Known | None = None, *, build: Callable[[Program], Built], resume: bool = False,
    ) -> None:  # fmt: skip
        self._insight = insight
        diagnose = diagnoser(insight or known, build)
        self.lessons = Lessons(memory, spec, target, diagnose) if memory is not None else None
        self.model: LlmSession | None = None
        if llm is not None:
            recall = self.lessons.recall if self.lessons is not None else (lambda node: ())
            self.model = LlmSession(llm, spec, target, out, diagnose=diagnose, recall=recall, resume=resume)

    def join(self, tree: Tree) -> None:
        """Compete in the tree's mixture, and let the judge's opinion count in its rewards."""
        if self.model is not None:
            self.model.mixture = tree.mixture
            if self.model.judge is not None:
                tree.opinion = self.model.judge.opinion

    def booked(self, node: Node) -> None:
        """Remember what the node taught, then let the model decide whether to be asked."""
        if self.lessons is not None:
            self.lessons.booked(node)
        if self.model is not None:
            self.model.booked(node)

    def arrivals(self) -> Sequence[tuple[Node, Sequence[Proposal]]]:
        """Proposals that came since the last call."""
        return self.model.arrivals() if self.model is not None else ()

    def wait(self, timeout_s: float | None, interrupt: Interrupt = NEVER) -> bool:
        """Wait for proposals; whether any are there."""
        return self.model.wait(timeout_s, interrupt) if self.model is not None else False

    def weigh(self, digest: str, proposals: Sequence[Proposal]) -> list[Proposal] | None:
        """The proposals by the program's diagnosis and by what was learnt; None while there is neither."""
        found = self._insight.weigh(digest, proposals) if self._insight is not None else None
        if self.lessons is None or (found is None and self._insight is not None):
            return found  # with a diagnosis to come, the memory is asked with it
        return self.lessons.weigh(digest, found if found is not None else proposals) or found

    def settle(self, timeout_s: float) -> None:
        """See `LlmSession.settle`."""
        if self.model is not None:
            self.model.settle(timeout_s)

    def observe(self) -> None:
        """See `LlmSession.observe`."""
        if self.model is not None:
            self.model.observe()

    @property
    def summary(self) -> dict[str, Any] | None:
        """The model's part for the result; None without a model."""
        return self.model.summary if self.model is not None else None

    @property
    def memory(self) -> dict[str, Any] | None:
        """The memory's part for the result; None without a memory."""
        return self.lessons.summary if self.lessons is not None else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the result, where something did not go as asked."""
        trouble = self.lessons.trouble if self.lessons is not None else ""
        return (*((trouble,) if trouble else ()), *(self.model.notes if self.model is not None else ()))

    def close(self) -> None:
        """Ask nothing more, close the files. Twice is once."""
        if self.model is not None:
            self.model.close()
        if self.lessons is not None:
            self.lessons.close()
