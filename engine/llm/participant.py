"""What model and memory do in one run, behind one object; either may be missing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.compile.built import Built
from engine.llm.feed import Background
from engine.llm.lessons import Lessons
from engine.llm.session import COUNTERS, KnownProfiles, LlmSession, LlmSettings, diagnoser
from engine.model import Program, Target
from engine.rewrite.proposal import Proposal
from engine.search.profiling import Insight
from engine.search.question import Answer, Asked, Question
from engine.search.tree import Node, Tree
from engine.settings.memory_settings import MemorySettings
from engine.spec.kernel_spec import KernelSpec


@dataclass(frozen=True)
class WantedPart:
    """The model and the memory that a run asks for, and whether it goes on with an earlier one."""

    llm: LlmSettings | None
    memory: MemorySettings | None
    resume: bool = False


@dataclass(frozen=True)
class DiagnosisSources:
    """Where diagnoses come from: a profiler, or what stands in for it; `build` is for nodes of an earlier part of the run."""

    insight: Insight | None
    build: Callable[[Program], Built]
    known: KnownProfiles | None = None


class ModelParticipant:
    """Follows `engine.search.participants.Feed`. Call `join` with the run's tree before the search starts.

    Raises UsageError and MachineError where model or memory cannot be used at all.
    """

    def __init__(
        self, wanted: WantedPart, spec: KernelSpec, target: Target, out: Path, sources: DiagnosisSources
    ) -> None:
        self._insight = sources.insight
        diagnose = diagnoser(sources.insight or sources.known, sources.build)
        self.lessons = Lessons(wanted.memory, spec, target, diagnose) if wanted.memory is not None else None
        self.model: LlmSession | None = None
        if wanted.llm is not None:
            recall = self.lessons.recall if self.lessons is not None else (lambda node: ())
            # Without a profiler no expectation is ever compared
            counters = COUNTERS if sources.insight is not None else ()
            background = Background(diagnose, recall, counters)
            self.model = LlmSession(wanted.llm, spec, target, out, background, resume=wanted.resume)

    def join(self, tree: Tree) -> None:
        """Compete in the tree's mixture, and let the judge's opinion count in its rewards."""
        if self.model is not None:
            self.model.mixture = tree.mixture
            if self.model.judge is not None:
                tree.opinion = self.model.judge.opinion

    def booked(self, node: Node) -> None:
        """Remember what the node taught, and keep the model's account."""
        if self.lessons is not None:
            self.lessons.booked(node)
        if self.model is not None:
            self.model.booked(node)

    def questions(self, node: Node) -> Sequence[tuple[Node, Question]]:
        """The questions that a node gives rise to."""
        return self.model.questions(node) if self.model is not None else ()

    def ask(self, node: Node, question: Question) -> None:
        """Ask in the background."""
        assert self.model is not None
        self.model.ask(node, question)

    def go_on(self, asked: Asked, node: Node) -> tuple[bool, Sequence[tuple[Node, Question]]]:
        """What becomes of a question of an earlier part of the run; nothing without a model."""
        return self.model.go_on(asked, node) if self.model is not None else (False, ())

    def arrivals(self, known: Callable[[str], bool]) -> Sequence[Answer]:
        """Answers that came since the last call."""
        return self.model.arrivals(known) if self.model is not None else ()

    @property
    def room(self) -> int:
        """How many more questions may be asked now."""
        return self.model.room if self.model is not None else 0

    @property
    def awaited(self) -> int:
        """Questions without an answer."""
        return self.model.awaited if self.model is not None else 0

    @property
    def coming(self) -> Future[None]:
        """Done once there are arrivals."""
        return self.model.coming if self.model is not None else Future()

    @property
    def stopped(self) -> str:
        """Why nothing more is asked, or ""."""
        return self.model.stopped if self.model is not None else ""

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
