"""Who takes part in a search beside its tree and its evaluator: a model that is asked, searches within, who counts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.compile.built import Built
from engine.evaluate.devices import Devices
from engine.model import Evaluation, Program
from engine.rewrite.proposal import Proposal
from engine.search.question import Answer, Asked, Question
from engine.search.reward import Proxies
from engine.search.tree import Node

if TYPE_CHECKING:
    from engine.search.progress import Budget


@dataclass(frozen=True)
class Builds:
    """Where candidates are read, built and evaluated, so many at once.

    `prefetch` reads a promising program on `readers` (None: on `executor`) before its proposals are asked for. `begun` gives the build of a
    program that was begun before the search. Without `devices` the search's evaluator is the only one.
    """

    executor: Executor
    in_flight: int
    readers: Executor | None = None
    prefetch: Callable[[Program], object] = lambda program: None
    begun: Callable[[Program], Future[Built] | None] = lambda program: None
    devices: Devices | None = None


class Feed(Protocol):
    """A proposer that is asked at a program of the tree, and answers when it answers. Called from one thread."""

    def booked(self, node: Node) -> None:
        """A node is in the journal, the original first."""
        ...

    def questions(self, node: Node) -> Sequence[tuple[Node, Question]]:
        """The questions that a node gives rise to, with the nodes they are asked at: once, when it was evaluated."""
        ...

    def ask(self, node: Node, question: Question) -> None:
        """Ask; its answer comes with `arrivals`, whatever becomes of it."""
        ...

    def go_on(self, asked: Asked, node: Node) -> tuple[bool, Sequence[tuple[Node, Question]]]:
        """Of a question that an earlier part of this run asked: whether it has to be asked again now, and what may be asked else."""
        ...

    def arrivals(self, known: Callable[[str], bool]) -> Sequence[Answer]:
        """Answers that came since the last call, without edits whose programs are `known` by their digests."""
        ...

    @property
    def room(self) -> int:
        """How many more questions may be asked now."""
        ...

    @property
    def awaited(self) -> int:
        """Questions whose answers were not given by `arrivals` yet."""
        ...

    @property
    def coming(self) -> Future[None]:
        """Done once `arrivals` has something to give."""
        ...

    @property
    def stopped(self) -> str:
        """Why nothing more is asked in this run, or ""."""
        ...


@dataclass(frozen=True)
class Observation:
    """Counters of a node that came after it was booked. `counters` has, for each step, values with their units by name."""

    node: int
    metrics: str  # the set they were asked for in
    counters: Sequence[Mapping[str, tuple[float, str]]]
    proxies: Proxies


class Inner(Protocol):
    """What an inner search made of a proposal that stands for many: the best of them, and how many it tried."""

    @property
    def proposal(self) -> Proposal: ...
    @property
    def program(self) -> Program: ...
    @property
    def built(self) -> Built | None: ...
    @property
    def evaluation(self) -> Evaluation: ...
    @property
    def against(self) -> float | None: ...
    @property
    def points(self) -> int: ...
    @property
    def stage_s(self) -> Mapping[str, float]: ...


class InnerSearch(Protocol):
    """Searches within a proposal of the proposer "tuner" before it becomes a node (engine.tune.inner)."""

    def search(
        self, program: Program, proposal: Proposal, champion: Built | None, left: Budget, builds: Builds,
        known: Mapping[tuple[object, ...], tuple[int, Evaluation]],
    ) -> Generator[Sequence[Future[Built]], None, Inner]:  # fmt: skip
        """Search under `left`, the best measured against `champion`; `known` is what has been evaluated, by machine code.

        Gives the builds of which one is wanted before it can go on; it leaves the devices, which evaluate, free then.
        """
        ...

    def ready(self, program: Program, proposal: Proposal, executor: Executor) -> None:
        """The proposal will be searched: what can be done ahead on `executor`. Called by who calls `search`."""
        ...

    def points_of(self, notes: Sequence[str]) -> int:
        """The candidates that a booked node of such a proposal stands for."""
        ...

    def taken_over(self, program: Program, template: str) -> None:
        """An earlier part of this run found this program to be the best of that template."""
        ...


class Watch(Protocol):
    """Who counts what candidates move and execute, beside the search. Called from one thread."""

    def passed(self, node: Node, built: Built) -> None:
        """A program passed its checks, the original first."""
        ...

    def arrivals(self) -> Sequence[Observation]:
        """What was counted since the last call."""
        ...


@dataclass(frozen=True)
class Participants:
    """Who takes part in one search; `on_incumbent` is told of each program that becomes the best."""

    feed: Feed | None = None
    watch: Watch | None = None
    inner: InnerSearch | None = None
    on_incumbent: Callable[[Built, Evaluation], None] = lambda built, evaluation: None
