"""Which programs of the tree are read before their proposals are asked for: those that gained most."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from concurrent.futures import Executor

from engine.model import Program
from engine.search.policies import READ_AHEAD
from engine.search.tree import Node


class ReadAhead:
    """Has the best of the programs read that a search may go on from. From one thread."""

    def __init__(self, read: Callable[[Program], object], readers: Executor) -> None:
        self._read, self._readers = read, readers
        # The best first. What was asked for since goes once it comes first.
        self._unasked: list[tuple[float, int, Node]] = []
        self._begun: set[int] = set()

    def booked(self, node: Node) -> None:
        """A node is in the tree, with its result."""
        if not node.open:
            return  # a twin, or a failure
        insort(self._unasked, (-node.gained, node.id, node))
        while self._unasked[0][2].untried is not None:
            del self._unasked[0]
            if not self._unasked:
                return
        for _, id, best in self._unasked[:READ_AHEAD]:
            if id not in self._begun:
                self._begun.add(id)
                self._readers.submit(self._read, best.program)
