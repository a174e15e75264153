"""How the next action is chosen, beside the tree search: from the best program, by chance, in a beam, at the original, in one line.

A policy keeps the programs with something left to try in order, so that a choice costs as much after 5,000 candidates as after 500.
"""

from __future__ import annotations

import heapq
import random
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from engine.rewrite.proposal import Proposal
from engine.search.puct import Puct

if TYPE_CHECKING:
    from engine.search.tree import Node, Tree

# The programs that a beam goes on from at each number of edits, and the actions of each before the beam moves on. Ours.
BEAM_WIDTH, BEAM_TRIES = 4, 8

Strategy = Literal["mcts", "greedy", "beam", "best-of", "random", "refine"]


class Policy(Protocol):
    """Chooses actions of a tree; all else of a search is shared."""

    patient: bool  # it waits for a program's proposals instead of being asked again

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        """The next action and its node, not removed from there; None: nothing, or nothing before what is awaited has come.

        A tree policy begins at `start`. Raises NotYet unless it is patient.
        """
        ...

    def changed(self, node: Node) -> None:
        """The node is new, or its reward, or what is left to try there, may have changed."""
        ...


class _First:
    """Follows `Policy`: the most promising action of the first program with one, in an order of its own."""

    patient = True

    def __init__(self, tree: Tree, key: Callable[[Node], float]) -> None:
        self._tree, self._key = tree, key
        self._heap: list[tuple[float, int]] = []
        self._queued: dict[int, float] = {}  # the key with which a node stands in the heap; others of it are stale

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        while self._heap:
            key, id = self._heap[0]
            if self._queued.get(id) == key:
                node = self._tree.nodes[id]
                untried = self._tree.proposals(node) if self._tree.left(node) else []
                if untried:
                    return node, untried[self._tree.mixture.pick(untried)]
                del self._queued[id]
            heapq.heappop(self._heap)
        return None

    def changed(self, node: Node) -> None:
        key = self._key(node)
        if self._queued.get(node.id) != key and self._tree.left(node):
            self._queued[node.id] = key
            heapq.heappush(self._heap, (key, node.id))


class Greedy(_First):
    """The program that gained most, the earliest of equals."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree, lambda node: -node.gained)


class Refine(_First):
    """Sequential self-correction: the newest program that passed; one candidate at a time."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree, lambda node: -node.id)

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        return None if self._tree.root.pending else super().choose(start)


class BestOf:
    """Follows `Policy`: independent edits of the original, the most promising first."""

    patient = True

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        untried = self._tree.proposals(self._tree.root)
        return (self._tree.root, untried[self._tree.mixture.pick(untried)]) if untried else None

    def changed(self, node: Node) -> None:
        pass


class Chance:
    """Follows `Policy`: any action of any program that has one."""

    patient = True

    def __init__(self, tree: Tree, seed: int) -> None:
        self._tree, self._random = tree, random.Random(seed)
        self._ids: list[int] = []
        self._places: dict[int, int] = {}

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        while self._ids:
            node = self._tree.nodes[self._ids[self._random.randrange(len(self._ids))]]
            untried = self._tree.proposals(node) if self._tree.left(node) else []
            if untried:
                return node, untried[self._random.randrange(len(untried))]
            self._remove(node.id)
        return None

    def changed(self, node: Node) -> None:
        if node.id not in self._places and self._tree.left(node):
            self._places[node.id] = len(self._ids)
            self._ids.append(node.id)

    def _remove(self, id: int) -> None:
        place, last = self._places.pop(id), self._ids.pop()
        if last != id:
            self._ids[place], self._places[last] = last, place


class Beam:
    """Follows `Policy`: some actions of each of the best programs with so many edits, then the same with one edit more.

    Where no programs with more edits are left it begins again at the original, with further actions of each.
    """

    patient = True

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._levels: list[
            list[tuple[float, int]]
        ] = []  # by the number of edits: who has something left, the best first
        self._placed: dict[int, tuple[int, float]] = {}  # the level of each, and the key with which it stands there
        self._tries: dict[int, int] = {}
        self._level, self._round = 0, 1

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        while True:
            chosen = self._of_level()
            if chosen is not None:
                return chosen
            if self._tree.root.pending:  # the next level is not known before
                return None
            self._level += 1
            if self._level >= len(self._levels):
                if not any(self._levels):
                    return None
                self._level, self._round = 0, self._round + 1

    def _of_level(self) -> tuple[Node, Proposal] | None:
        level = self._levels[self._level] if self._level < len(self._levels) else []
        place = 0
        while place < min(BEAM_WIDTH, len(level)):
            node = self._tree.nodes[level[place][1]]
            untried = self._tree.proposals(node) if self._tree.left(node) else []
            tries = self._tries.get(node.id, len(node.children))
            if not untried:
                self._remove(node.id)
            elif tries < BEAM_TRIES * self._round:
                self._tries[node.id] = tries + 1
                return node, untried[self._tree.mixture.pick(untried)]
            else:
                place += 1
        return None

    def changed(self, node: Node) -> None:
        placed = self._placed.get(node.id)
        if placed is not None and placed[1] == -node.gained:
            return
        if not self._tree.left(node):
            return
        depth = self._remove(node.id) if placed is not None else node.depth
        while len(self._levels) <= depth:
            self._levels.append([])
        self._placed[node.id] = depth, -node.gained
        insort(self._levels[depth], (-node.gained, node.id))

    def _remove(self, id: int) -> int:
        depth, key = self._placed.pop(id)
        del self._levels[depth][bisect_left(self._levels[depth], (key, id))]
        return depth


def policy(strategy: Strategy, tree: Tree, seed: int) -> Policy:
    """The policy of that name over a tree."""
    match strategy:
        case "mcts":
            return Puct(tree)
        case "greedy":
            return Greedy(tree)
        case "beam":
            return Beam(tree)
        case "best-of":
            return BestOf(tree)
        case "random":
            return Chance(tree, seed)
        case "refine":
            return Refine(tree)
