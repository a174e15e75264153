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
# Of the programs whose proposals nobody asked for yet, so many of the best are read before that. Reading one takes as long as building
# several, and a search asks for one in ten. Ours.
READ_AHEAD = 2
# The share of choices that are made by chance where all others are greedy. Ours.
EPSILON = 0.1

Strategy = Literal["mcts", "greedy", "epsilon-greedy", "beam", "best-of", "random", "refine"]


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

    def leave(self, node: Node) -> None:
        """It is passed over until it is entered again."""
        self._queued.pop(node.id, None)

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
    """Follows `Policy`: the most promising action of the first program with one, in an order of its own.

    Where the tree is eager, a program whose proposals are still being looked for does not hold up the next ones.
    """

    patient = False

    def __init__(self, tree: Tree, key: Callable[[Node], float]) -> None:
        self._tree = tree
        self._edits = _Heap(tree, key, tree.left)
        self._questions = _Heap(tree, key, lambda node: bool(node.questions))

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        heaps = [self._edits, self._questions] if self._tree.asking else [self._edits]
        passed: list[Node] = []
        try:
            while True:
                first = min((found for heap in heaps if (found := heap.first()) is not None), default=None)
                if first is None and not passed:
                    return None
                node = self._tree.nodes[first[1]] if first is not None else passed[0]
                few = len(passed) < READ_AHEAD  # else the rest of the tree would be read, each for a moment
                if (
                    first is not None
                    and self._tree.eager
                    and node.untried is None
                    and not (few and not self._tree.awaits(node))
                ):
                    passed.append(node)
                    for heap in heaps:
                        heap.leave(node)
                    continue
                actions = self._tree.actions(node)
                if actions:
                    return node, actions[self._tree.mixture.pick(actions)]
                if first is None:
                    passed.pop(0)
        finally:
            for node in passed:
                self.changed(node)

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


class EpsilonGreedy:
    """Follows `Policy`: greedy, but now and then any action of any program."""

    patient = True

    def __init__(self, tree: Tree, seed: int) -> None:
        self._greedy, self._chance = Greedy(tree), Chance(tree, seed)
        self._random = random.Random(f"{seed} epsilon")

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        policy = self._chance if self._random.random() < EPSILON else self._greedy
        return policy.choose(start)

    def changed(self, node: Node) -> None:
        self._greedy.changed(node)
        self._chance.changed(node)


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
        self._limited = False  # somebody on the way down has more to try in the next round

    def choose(self, start: Node) -> tuple[Node, Proposal] | None:
        while True:
            chosen = self._of_level()
            if chosen is not None:
                return chosen
            if _awaited(self._tree):  # the next level is not known before
                return None
            self._level += 1
            if self._level >= len(self._levels):
                self._level = 0
                if not self._limited:
                    return None
                self._limited, self._round = False, self._round + 1

    def _of_level(self) -> tuple[Node, Proposal] | None:
        level = self._levels[self._level] if self._level < len(self._levels) else []
        place = members = 0
        while place < len(level) and members < BEAM_WIDTH:
            node = self._tree.nodes[level[place][1]]
            actions = self._tree.actions(node) if self._left(node) else []
            tries = self._tries.get(node.id, len(node.children))
            if actions and tries < BEAM_TRIES * self._round:
                self._tries[node.id] = tries + 1
                return node, actions[self._tree.mixture.pick(actions)]
            self._limited |= bool(actions)
            if self._left(node):
                place, members = place + 1, members + 1
            else:
                self._remove(node.id)
        return None

    def _left(self, node: Node) -> bool:
        return self._tree.left(node) or bool(node.questions)

    def changed(self, node: Node) -> None:
        placed = self._placed.get(node.id)
        if (placed is not None and placed[1] == -node.gained) or not self._left(node):
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
        case "epsilon-greedy":
            return EpsilonGreedy(tree, seed)
        case "beam":
            return Beam(tree)
        case "best-of":
            return BestOf(tree)
        case "random":
            return Chance(tree, seed)
        case "refine":
            return Refine(tree)
