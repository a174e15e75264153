"""The search tree over programs: selection by PUCT with progressive widening, greedily or at random; backpropagation.

PUCT: Rosin 2011, "Multi-armed bandits with episode context"; progressive widening: Couëtoux et al. 2011. An edit that was not tried yet
competes with the children by what is expected of it (first-play urgency: Gelly, Wang 2006; see `engine.search.experience`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import Any, Literal

from engine.model import Evaluation, Outcome, Program
from engine.rewrite.proposal import Proposal
from engine.search.experience import (
    EDIT_WEIGHT,
    FAILED_GAIN,
    LEAST_GAIN,
    MOST_GAIN,
    PRIOR_GAIN,
    RULE_WEIGHT,
    Experience,
)
from engine.search.mixture import Mixture
from engine.search.reward import Proxies, Reward, failed

# All constants of this module are ours. They were set on simulated landscapes at a hundred candidates (benchmarks/landscapes.py,
# docs/search.md). KernelOPT (arXiv 2609.30059) explores with 1.4 on rewards as they are; ours are scaled, and priors and experience tell
# much.
EXPLORATION = 0.02
# After so many visits exploration grows with them: what a long search has refined for hundreds of candidates gains little more, and a
# first step that gained less than another may lead further.
REFINED = 100.0
# A node with n visits may have WIDTH * n ** WIDENING children: the first twenty of a hundred visits see the best proposals, and
# the rest go below what was good.
WIDTH = 2.0
WIDENING = 0.5
# The value of a child mixes the best and the mean reward below it. The best finds; the mean settles ties and no more: where one rewrite
# brought five doublings, a failure below it costs the mean more than a refinement brings. For the same reason an awaited visit counts
# among the visits and not as a poor reward.
BEST_SHARE = 0.998
# After an edit that must come before a rewrite, the rewrite is expected to gain this much less than it did without, in doublings: gains
# seldom add up wholly. On the landscapes 0.03 to 0.1 are alike; with 0 too much is spent on it, with 0.2 too little.
BEFORE_LOSS = 0.05
# Of what was gained after an edit, this share is expected after the same edit with another number too, which has yet to be found there.
# On the landscapes 0.5 to 0.8 are alike; with 1 other sizes are tried where nothing is left to gain.
SIZE_SHARE = 0.8
# Values are scaled by what was gained below the node that chooses; noise about nothing is not blown up beyond this, in doublings (3.5 %).
LEAST_SCALE = 0.05


_best = attrgetter("best")

Strategy = Literal["mcts", "greedy", "random"]
TUNER = "tuner"  # the proposer whose proposals stand for a template: tried once, whatever point became of it


def constants() -> dict[str, dict[str, float | str]]:
    """The search's own constants with their reasons, for the result."""
    return {
        "exploration": {"value": EXPLORATION, "reason": "on values scaled to what was gained: priors tell much"},
        "refined": {"value": REFINED, "reason": "visits after which exploration grows with them"},
        "width": {"value": WIDTH, "reason": "a node with n visits may have width * n ** widening children"},
        "widening": {"value": WIDENING, "reason": "the first twenty of a hundred visits see the most promising edits"},
        "best_share": {
            "value": BEST_SHARE,
            "reason": "of a value: the best below it finds, the mean settles ties, or a failure hides a refinement of one per cent",
        },
        "before_loss": {
            "value": BEFORE_LOSS,
            "reason": "doublings that a rewrite is expected to gain less after an edit that can only come before it",
        },
        "size_share": {
            "value": SIZE_SHARE,
            "reason": "of what was gained after an edit, expected after the same edit with another number",
        },
        "prior_gain": {"value": PRIOR_GAIN, "reason": "doublings expected of a prior of 1 before anything is known"},
        "rule_weight": {"value": RULE_WEIGHT, "reason": "tries of a rule that its prior counts for"},
        "edit_weight": {"value": EDIT_WEIGHT, "reason": "tries of an edit that its rule counts for"},
        "failed_gain": {"value": FAILED_GAIN, "reason": "what a failure teaches of an edit and its rule"},
        "most_gain": {"value": MOST_GAIN, "reason": "what one try may teach: one lucky place must not stand for all"},
        "least_gain": {"value": LEAST_GAIN, "reason": "what one try may teach: nor one hopeless place"},
        "least_scale": {
            "value": LEAST_SCALE,
            "reason": "of values, in doublings, so that noise about nothing is not blown up",
        },
    }


@dataclass(eq=False)
class Node:
    """One program in the tree. `pending` counts selections below it whose evaluations are still awaited."""

    id: int
    program: Program
    parent: Node | None
    proposal: Proposal | None
    evaluation: Evaluation | None = None
    children: list[Node] = field(default_factory=list)
    untried: list[Proposal] | None = None  # by rising prior; None: not asked for yet
    offers: frozenset[tuple[str, str]] = frozenset()  # every rule that proposed something here, with its proposer
    visits: int = 0
    pending: int = 0
    weighed: bool = False  # the untried proposals' priors are by this program's diagnosis
    open: bool = True  # something can still be tried at or below it
    sizes: dict[Hashable, list[Node]] = field(
        default_factory=dict
    )  # children, by what edits with another number share with theirs
    line: Line | None = None  # the way to the best program below it, as long as that is known
    near: dict[Hashable, float] | None = (
        None  # by the keys of `sizes`, what its children with another number gained, likewise
    )
    total: float = 0.0
    best: float = -math.inf
    gained: float = 0.0  # its own reward
    proxies: Proxies | None = None  # what counters say of it

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else self.parent.depth + 1

    def path(self) -> list[Node]:
        """From the original to this node."""
        return [*(self.parent.path() if self.parent else []), self]

    def value(self) -> float:
        """The node's worth."""
        mean = self.total / max(1, self.visits)
        return BEST_SHARE * self.best + (1 - BEST_SHARE) * mean


@dataclass(frozen=True)
class Line:
    """The way from a node to the best program below it, and what that program closes off.

    A rewrite may leave nothing for a rule to match. Such a rule can only come before it, however little it brings by itself.
    """

    way: tuple[Node, ...]

    @cached_property
    def rules(self) -> tuple[tuple[str, str], ...]:
        """The rules of the steps, in order."""
        return tuple(_rule(node.proposal) for node in self.way[1:])

    @cached_property
    def kept(self) -> frozenset[tuple[str, str]] | None:
        """The rules on the way or offered at its end, when first asked; None where there is no way, and so nothing is closed off."""
        return self.way[-1].offers.union(self.rules) if len(self.way) > 1 else None


class NotYet(Exception):
    """What to try next depends on proposals that are still being looked for; ask again when `coming` is done."""

    def __init__(self, coming: Future[Any]) -> None:
        super().__init__("proposals are still being looked for")
        self.coming = coming


class Tree:
    """Programs reached from the original.

    `propose` gives a node's proposals, asked for once and only when needed. `coming` says what they wait for where that is done
    elsewhere and has not ended, None where `propose` has them or makes them itself. `weigh` gives them priors by the diagnosis of the
    program with this digest, most promising first, or None as long as there is none. `reward` says what evaluations are worth.
    """

    def __init__(
        self, original: Program, propose: Callable[[Program], list[Proposal]], seed: int, strategy: Strategy = "mcts",
        weigh: Callable[[str, list[Proposal]], list[Proposal] | None] = lambda digest, proposals: None,
        reward: Reward | None = None, coming: Callable[[Program], Future[Any] | None] = lambda program: None,
    ) -> None:  # fmt: skip
        self._propose, self._strategy, self._weigh = propose, strategy, weigh
        self._coming, self._patient = coming, True
        self.reward = reward or Reward()
        self.mixture = Mixture()
        self.experience = Experience()
        self.opinion: Callable[[Node], float] = lambda node: 0.0  # a judge's, as a part of the reward
        self._late: list[tuple[Node, Proposal]] = []  # the most promising last
        self._seed, self._random = seed, random.Random(seed)
        self.root = Node(0, original, None, None, visits=1, total=0.0, best=0.0)
        self.nodes: dict[int, Node] = {0: self.root}
        self.digests: dict[str, Node] = {original.digest: self.root}
        # Whether the program with this digest need not be tried.
        self.known: Callable[[str], bool] = self.digests.__contains__

    def select(self) -> tuple[Node, Proposal] | None:
        """The next edit to try, and the node it starts from; None when nothing is left to try. Marks the path pending.

        Raises NotYet, with nothing marked, where the tree policy cannot tell before it knows a program's proposals.
        """
        late = self._arrived() if self._strategy != "random" else None
        if late is not None:
            for step in late[0].path():
                step.pending += 1
            return late
        self._patient = self._strategy != "mcts"  # what is drawn at random cannot be drawn again
        start = self.root
        try:
            while True:
                chosen = self._flat() if self._patient else self._puct(start)
                if chosen is None:
                    return None
                node, proposal = chosen
                untried = self._proposals(node)
                untried.pop(next(i for i, p in enumerate(untried) if p is proposal))
                self._reopened(node)
                if proposal.makes is None or not self.known(proposal.makes):
                    break
                # The same text by another way. Above this node nothing has changed.
                start = node if node.open else self.root
        finally:
            self._patient = True
        for step in node.path():
            step.pending += 1
        return node, proposal

    def _arrived(self) -> tuple[Node, Proposal] | None:
        """A late proposal to try at once: it was asked for, and is not made to wait until its node has been visited often enough."""
        while self._late:
            node, proposal = self._late[-1]
            if not self.mixture.pays(proposal.proposer):
                return None
            self._late.pop()
            at = next((i for i, p in enumerate(node.untried or ()) if p.edits is proposal.edits), None)
            if at is not None and node.untried is not None:
                proposal = node.untried.pop(at)
                self._reopened(node)
                return node, proposal
        return None

    def _flat(self) -> tuple[Node, Proposal] | None:
        """The edit to try without a tree policy: the most promising one of the best so far, or any of any."""
        if self._strategy == "random":
            nodes = [
                n for n in self.nodes.values() if n is self.root or (n.evaluation and not _closed(n.evaluation.outcome))
            ]
            self._random.shuffle(nodes)
            node = next((n for n in nodes if self._proposals(n)), None)
        else:
            node = self._best_to_build_on()
        if node is None:
            return None
        untried = self._proposals(node)
        random = self._strategy == "random"
        return node, untried[self._random.randrange(len(untried)) if random else self.mixture.pick(untried)]

    def _best_to_build_on(self) -> Node | None:
        """Of the programs with an edit to try, the one that gained most, the earliest of equals."""
        while True:
            some = (n for n in self.nodes.values() if n.untried or (n.untried is None and n.open))
            node = max(some, key=lambda n: n.gained, default=None)
            if node is None or self._proposals(node):
                return node

    def _puct(self, node: Node) -> tuple[Node, Proposal] | None:
        """The edit to try next, at this node or below; anywhere where nothing is left there."""
        while True:
            # Rewards are logarithms of speedups, anything from 0.1 to 9 for one kernel. What was gained below a node sets its scale:
            # a per cent is much among refinements of a rewrite, and nothing beside the rewrite.
            scale = max(LEAST_SCALE, node.best - node.gained)
            curious = EXPLORATION * max(1.0, self.root.visits / REFINED) * math.sqrt(node.visits + node.pending)
            line = self._line(node)
            kept = line.kept
            edits = self._proposals(node)
            below = [child for child in node.children if child.open]
            if below and not _may_widen(node):
                edits = [edit for edit in edits if kept is not None and edit.family not in kept]
            edit: Proposal | None = None
            score, best = -math.inf, None
            if edits:
                score, edit = self._most_urgent(node, edits, line, scale, curious)
            for child in below:
                assert child.proposal is not None
                closed = kept is not None and child.proposal.family not in kept
                value = (self._worth_before(node, child, line) if closed else child.value()) / scale
                value += curious * child.proposal.prior / (1 + child.visits + child.pending)
                if value > score:
                    score, best = value, child
            if best is not None:
                node = best
            elif edit is not None:
                return node, edit
            elif node is self.root:
                return None
            else:
                node = self.root  # this branch is closed from now on; choose again

    def _line(self, node: Node) -> Line:
        """The way from a node to the best program below it."""
        line = _line(node)
        self._asked(line.way[-1])  # so that it has said what it offers
        return line

    def _most_urgent(
        self, node: Node, edits: Sequence[Proposal], line: Line, scale: float, curious: float
    ) -> tuple[float, Proposal]:  # fmt: skip
        """The edit of a node to try next, by what is expected of it and its prior, and its score beside the children's."""
        near, kept = _near(node), line.kept
        of_each: dict[str, tuple[float, Proposal]] = {}  # a proposer's most urgent, the last of equals
        for proposal in edits:
            gain = self.experience.expect(proposal)
            if near:
                for key in proposal.alike:
                    gain = max(gain, near.get(key, gain))
            expected = node.gained + gain
            # Closed off, it costs as many candidates as there are steps to make again after it.
            if kept is not None and proposal.family not in kept:
                expected = max(expected, node.best + gain / len(line.way))
            urgency = expected / scale + curious * proposal.prior
            held = of_each.get(proposal.proposer)
            if held is None or urgency >= held[0]:
                of_each[proposal.proposer] = urgency, proposal
        rising = sorted(of_each.values(), key=itemgetter(0))
        return rising[self.mixture.pick([proposal for _, proposal in rising])]

    def _worth_before(self, node: Node, child: Node, line: Line) -> float:
        """The value of a child whose rule the best rewrite closes off: the worth that this rewrite, made after it, would give if gains
        add up, until that was tried."""
        worth = child.value()
        if child.best > child.gained:
            return worth
        self._asked(child)
        rewrite = line.rules[0]
        if rewrite not in child.offers or any(rewrite == _rule(other.proposal) for other in child.children):
            return worth
        return max(worth, child.gained + node.best - node.gained - BEFORE_LOSS)

    def _proposals(self, node: Node) -> list[Proposal]:
        """What is untried at a node, with priors by its diagnosis once there is one."""
        untried = self._asked(node)
        if untried and not node.weighed:
            weighed = self._weigh(node.program.digest, untried[::-1])
            if weighed is not None:
                node.untried, node.weighed = weighed[::-1], True
                return node.untried
        return untried

    def _asked(self, node: Node) -> list[Proposal]:
        """What is untried at a node."""
        if node.untried is None:
            if node.evaluation is not None and _closed(node.evaluation.outcome):
                node.untried = []
            else:
                coming = None if self._patient else self._coming(node.program)
                if coming is not None:
                    raise NotYet(coming)
                proposals = self._propose(node.program)
                # Equal priors are tried in an order of the seed's, the same whenever this node is asked: a resumed run asks later.
                random.Random(f"{self._seed} {node.program.digest}").shuffle(proposals)
                node.untried = sorted(_untried(proposals, node.children), key=lambda p: p.prior)
                node.offers = frozenset(_rule(p) for p in proposals)
            self._reopened(node)
        return node.untried

    def offer(self, node: Node, proposals: Iterable[Proposal]) -> None:
        """Add proposals for a node that came later than those of `propose`; none for what is not built upon."""
        if node.evaluation is None or not _closed(node.evaluation.outcome):
            late, there = [], self._proposals(node)
            for proposal in proposals:
                at = next((i for i, p in enumerate(there) if p.edits is proposal.edits), None)
                if at is None:
                    late.append(proposal)
                else:
                    there[at] = proposal  # with another prior
            node.untried = sorted([*there, *late], key=lambda p: p.prior)
            node.offers |= {_rule(p) for p in late}
            for step in node.path():
                step.line = None  # what is offered at its end
            self._reopened(node)
            self._late += [(node, proposal) for proposal in sorted(late, key=lambda p: p.prior)]

    def _reopened(self, node: Node) -> None:
        """What is left to try at a node, or whether a child is open, may have changed: keep `open`, here and above."""
        step: Node | None = node
        while step is not None:
            left = step.untried is None or bool(step.untried) or any(child.open for child in step.children)
            now = left and (step.evaluation is None or not _closed(step.evaluation.outcome))
            if now == step.open:
                return
            step.open, step = now, step.parent

    def add(self, id: int, parent: Node, proposal: Proposal, program: Program, evaluation: Evaluation) -> Node:
        """Book an evaluated child and carry its reward up the path."""
        node = Node(id, program, parent, proposal, evaluation, open=not _closed(evaluation.outcome))
        parent.children.append(node)
        self._reopened(parent)
        self.nodes[id] = node
        self.digests.setdefault(program.digest, node)
        self.mixture.booked(node)
        node.gained = self.reward(evaluation, opinion=self.opinion(node))
        if not _closed(evaluation.outcome):
            for key in proposal.alike:
                parent.sizes.setdefault(key, []).append(node)
        for step in node.path():
            step.visits += 1
            step.line = step.near = None
            step.total += node.gained
            if (
                evaluation.outcome is not Outcome.DUPLICATE
            ):  # its twin stands for it: below this one there is nothing to find
                step.best = max(step.best, node.gained)
        self.experience.learn(proposal, FAILED_GAIN if failed(evaluation.outcome) else node.gained - parent.gained)
        return node

    def observe(self, node: Node, proxies: Proxies) -> None:
        """Counters of a node that came after it was booked: its reward changes, and the difference goes up its path.

        Counters of the original are what all others are held against, so they change the rewards of every node that has any.
        """
        node.proxies = proxies
        if node is self.root:
            self.reward.original = proxies
            for other in self.nodes.values():
                self._revalue(other)
        else:
            self._revalue(node)

    def _revalue(self, node: Node) -> None:
        if node is self.root or node.evaluation is None or node.proxies is None:
            return
        gained = self.reward(node.evaluation, node.proxies, opinion=self.opinion(node))
        difference = gained - node.gained
        if not difference:
            return
        node.gained = gained
        for step in reversed(node.path()):
            step.line = step.near = None
            step.total += difference
            step.best = max([step.gained, *(child.best for child in step.children)])

    def settle(self, parent: Node) -> None:
        """An awaited visit below `parent` has ended (booked or dropped)."""
        for step in parent.path():
            step.pending = max(0, step.pending - 1)

    def walk(self) -> Iterator[Node]:
        yield from self.nodes.values()


def _may_widen(node: Node) -> bool:
    return len(node.children) + node.pending < WIDTH * math.pow(node.visits + node.pending, WIDENING)


def _line(node: Node) -> Line:
    if node.line is None:
        best = max(node.children, key=_best, default=None)
        node.line = Line((node, *_line(best).way) if best is not None and best.best > node.gained else (node,))
    return node.line


def _near(node: Node) -> dict[Hashable, float]:
    """What another number brought at a node says more of an edit than what its rule brought elsewhere.

    The best of those tried may have better ones beside it.
    """
    if node.near is None:
        node.near = {
            key: max(child.gained + SIZE_SHARE * max(0.0, child.best - child.gained) for child in children)
            - node.gained
            for key, children in node.sizes.items()
        }
    return node.near


def _rule(proposal: Proposal | None) -> tuple[str, str]:
    return proposal.family if proposal is not None else ("", "")


def _untried(proposals: Sequence[Proposal], children: Sequence[Node]) -> list[Proposal]:
    """The proposals without those that an earlier part of this run has tried."""
    if not children:
        return list(proposals)
    tried = {child.proposal.identity for child in children if child.proposal is not None}
    tuned = {
        child.proposal.family for child in children if child.proposal is not None and child.proposal.proposer == TUNER
    }
    known = Counter(p.identity for p in proposals if p.identity in tried)
    # Of several edits with one identity it cannot be said which was tried; that is seen by the text it gives.
    return [p for p in proposals if known[p.identity] != 1 and not (p.proposer == TUNER and p.family in tuned)]


def _closed(outcome: Outcome) -> bool:
    """Whether nothing is built upon such a candidate: it failed, or its twin elsewhere in the tree stands for it."""
    return failed(outcome) or outcome is Outcome.DUPLICATE
