"""How the next action is chosen, beside the tree search: from the best program, by chance, at the original, in one line.

A policy keeps the programs with something left to try in order, so that a choice costs as much after 5,000 candidates as after 500.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from engine.rewrite.proposal import Proposal
from engine.search.puct import Puct

if TYPE_CHECKING:
    from engine.search.tree import Node, Tree

Strategy = Literal["mcts", "greedy", "best-of", "random", "refine"]


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


class _Heap:
    """Programs with something left, the first by a key; what has changed since it was entered is stale and passed over."""

    def __init__(self, tree: Tree, key: Callable[[Node], float], left: Callable[[Node], bool]) -> None:
        self._tree, self._key, self._left = tree, key, left
        self._heap: list[tuple[float, int]] = []
        self._queued: dict[int, float] = {}

    def enter(self, node: Node) -> None:
        """The node is new, or may have another key, or something left again."""
        key = self._key(node)
        if self._queued.get(node.id) != key and self._left(node):
            self._queued[node.id] = key
            heapq.heappush(self._heap, (key, node.id))

    def first(self) -> tuple[float, int] | None:
        """The key and the name of the first, None where nothing is left."""
        while self._heap:
            key, id = self._heap[0]
            if self._queued.get(id) == key:
                if self._left(self._tree.nodes[id]):
                    return key, id
                del self._queued[id]
            heapq.heappop(self._heap)
        return None


class _First:
    """Follows `Policy`: the most promising action of the first program with one, in an order of its own."""

    patient = True

    def __init__(self, tree: Tree, key: Callable[[Node], float]) -> None:
        self._tree = tree
        self._edits = _Heap(tree, key, tree.left)
        self._questions = _Heap(tree, key, lambda node: bool(node.questions))

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        while True:
            heaps = [self._edits, self._questions] if self._tree.asking else [self._edits]
            first = min((found for heap in heaps if (found := heap.first()) is not None), default=None)
            if first is None:
                return None
            node = self._tree.nodes[first[1]]
            actions = self._tree.actions(node)
            if actions:
                return node, actions[self._tree.mixture.pick(actions)]

    def changed(self, node: Node) -> None:
        self._edits.enter(node)
        self._questions.enter(node)


class Greedy(_First):
    """The program that gained most, the earliest of equals."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree, lambda node: -node.gained)


class Refine(_First):
    """Sequential self-correction: the newest program that passed; one candidate and one question at a time."""

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree, lambda node: -node.id)

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        if _awaited(self._tree):
            return None
        self._tree.asking &= not self._tree.awaited
        return super().choose(start)


class BestOf:
    """Follows `Policy`: independent edits of the original, the most promising first."""

    patient = True

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        actions = self._tree.actions(self._tree.root)
        return (self._tree.root, actions[self._tree.mixture.pick(actions)]) if actions else None

    def changed(self, node: Node) -> None:
        pass


class _Bag:
    """Programs with something left, any of which can be drawn."""

    def __init__(self, left: Callable[[Node], bool]) -> None:
        self._left = left
        self.ids: list[int] = []
        self._places: dict[int, int] = {}

    def enter(self, node: Node) -> None:
        """The node is new, or has something left again."""
        if node.id not in self._places and self._left(node):
            self._places[node.id] = len(self.ids)
            self.ids.append(node.id)

    def remove(self, id: int) -> None:
        """Nothing is left there."""
        place, last = self._places.pop(id), self.ids.pop()
        if last != id:
            self.ids[place], self._places[last] = last, place


class Chance:
    """Follows `Policy`: any action of any program that has one."""

    patient = True

    def __init__(self, tree: Tree, seed: int) -> None:
        self._tree, self._random = tree, random.Random(seed)
        self._edits, self._questions = _Bag(tree.left), _Bag(lambda node: bool(node.questions))

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        while True:
            asked = len(self._questions.ids) if self._tree.asking else 0
            count = len(self._edits.ids) + asked
            if not count:
                return None
            drawn = self._random.randrange(count)
            bag = self._edits if drawn < len(self._edits.ids) else self._questions
            node = self._tree.nodes[bag.ids[drawn - (0 if bag is self._edits else len(self._edits.ids))]]
            there: list[Proposal] = list(node.questions)
            if bag is self._edits:
                there = self._tree.proposals(node) if self._tree.left(node) else []
            if there:
                return node, there[self._random.randrange(len(there))]
            bag.remove(node.id)

    def changed(self, node: Node) -> None:
        self._edits.enter(node)
        self._questions.enter(node)


def _awaited(tree: Tree) -> int:
    """Candidates that have no result yet; a question without its answer holds up nothing."""
    return tree.root.pending - tree.awaited


def policy(strategy: Strategy, tree: Tree, seed: int) -> Policy:
    """The policy of that name over a tree."""
    match strategy:
        case "mcts":
            return Puct(tree)
        case "greedy":
            return Greedy(tree)
        case "best-of":
            return BestOf(tree)
        case "random":
            return Chance(tree, seed)
        case "refine":
            return Refine(tree)
