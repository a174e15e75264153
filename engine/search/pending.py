"""What is under way in a search: on the device, between tree and journal, within a template."""

from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from engine.compile.built import Built
from engine.model import Evaluation, Program
from engine.rewrite.proposal import Proposal
from engine.search.journal import Entry
from engine.search.participants import Inner
from engine.search.tree import Node


@dataclass(frozen=True)
class Running:
    """A candidate that is on a device."""

    parent: Node
    proposal: Proposal
    program: Program
    built: Built
    champion: Built | None  # what it is measured against
    answer: Future[tuple[Evaluation, float | None]]


@dataclass(frozen=True)
class Booked:
    """A candidate that is in the tree and not yet in the journal."""

    node: Node
    entry: Entry
    built: Built | None = None  # where it is the first with its machine code
    best: bool = False  # so far


@dataclass(eq=False)
class Within:
    """A search within a template, which goes on once one of the builds is there that it waits for."""

    parent: Node
    champion: Built | None  # what its points are measured against
    steps: Generator[Sequence[Future[Built]], None, Inner]
    wanted: Sequence[Future[Built]] = ()

    @property
    def ready(self) -> bool:
        return any(future.done() for future in self.wanted)

    def advance(self) -> Inner | None:
        """Go on with it; what came out where that was its end."""
        try:
            self.wanted = next(self.steps)
        except StopIteration as ended:
            found: Inner = ended.value
            return found
        return None
