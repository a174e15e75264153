"""Who takes part in a search beside its tree and its evaluator: proposers that answer late, searches within, who counts."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.compile.built import Built
from engine.evaluate.devices import Devices
from engine.model import Evaluation, Program
from engine.process.interrupt import NEVER, Interrupt
from engine.rewrite.proposal import Proposal
from engine.search.reward import Proxies
from engine.search.tree import Node

if TYPE_CHECKING:
    from engine.search.progress import Budget


class Feed(Protocol):
    """A proposer that answers late: it is told of every evaluation, and its proposals come when they come. Called from one thread."""

    def booked(self, node: Node) -> None:
        """A node has been evaluated, the original first."""
        ...

    def arrivals(self) -> Sequence[tuple[Node, Sequence[Proposal]]]:
        """Proposals that came since the last call, with the nodes they are for."""
        ...

    def wait(self, timeout_s: float | None, interrupt: Interrupt = NEVER) -> bool:
        """Wait for arrivals while there is nothing else to do, until an interrupt; whether there are any."""
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
        self, program: Program, proposal: Proposal, champion: Built | None, left: Budget, executor: Executor,
        devices: Devices, known: Mapping[tuple[object, ...], tuple[int, Evaluation]],
    ) -> Generator[Sequence[Future[Built]], None, Inner]:  # fmt: skip
        """Search under `left`, the best measured against `champion`; `known` is what has been evaluated, by machine code.

        Gives the builds of which one is wanted before it can go on; it leaves the `devices`, which evaluate, free then.
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
