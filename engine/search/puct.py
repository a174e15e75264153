"""Selection by PUCT with progressive widening: from the original down to the action with the highest score.

PUCT: Rosin 2011, "Multi-armed bandits with episode context"; progressive widening: Couëtoux et al. 2011. An edit that was not tried yet
competes with the children by what is expected of it (first-play urgency: Gelly, Wang 2006; see `engine.search.experience`).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING

from engine.rewrite.proposal import Proposal
from engine.search.experience import EDIT_WEIGHT, FAILED_GAIN, LEAST_GAIN, MOST_GAIN, PRIOR_GAIN, RULE_WEIGHT
from engine.search.question import AGAIN, MODEL, Question

if TYPE_CHECKING:
    from engine.search.tree import Node, Tree

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
        "again": {
            "value": AGAIN,
            "reason": "share of a question's prior and gain that is left each time it was asked there",
        },
        "least_scale": {
            "value": LEAST_SCALE,
            "reason": "of values, in doublings, so that noise about nothing is not blown up",
        },
    }


@dataclass(frozen=True)
class Line:
    """The way from a node to the best program below it, and what that program closes off.

    A rewrite may leave nothing for a rule to match. Such a rule can only come before it, however little it brings by itself.
    """

    way: tuple[Node, ...]

    @cached_property
    def rules(self) -> tuple[tuple[str, str], ...]:
        """The rules of the steps, in order."""
        return tuple(rule_of(node.proposal) for node in self.way[1:])

    @cached_property
    def kept(self) -> frozenset[tuple[str, str]] | None:
        """The rules on the way or offered at its end, when first asked; None where there is no way, and so nothing is closed off."""
        return self.way[-1].offers.union(self.rules) if len(self.way) > 1 else None


class Puct:
    """Follows `engine.search.policies.Policy`."""

    patient = False  # a selection that waits for proposals is made anew once they are there

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def changed(self, node: Node) -> None:
        """Nothing is kept of the tree but what its nodes hold."""

    def choose(self, node: Node) -> tuple[Node, Proposal] | None:
        """The edit to try next, at this node or below; anywhere where nothing is left there."""
        while True:
            # Rewards are logarithms of speedups, anything from 0.1 to 9 for one kernel. What was gained below a node sets its scale:
            # a per cent is much among refinements of a rewrite, and nothing beside the rewrite.
            scale = max(LEAST_SCALE, node.best - node.gained)
            curious = EXPLORATION * max(1.0, self._tree.root.visits / REFINED) * math.sqrt(node.visits + node.pending)
            line = self.line(node)
            kept = line.kept
            asking, edits = self._tree.asking, self._tree.actions(node)
            below = [child for child in node.children if child.open or (asking and child.asks)]
            if below and not _may_widen(node):
                edits = [edit for edit in edits if _closed_off(edit, kept)]
            edit: Proposal | None = None
            score, best = -math.inf, None
            if edits:
                score, edit = self._most_urgent(node, edits, line, scale, curious)
            for child in below:
                assert child.proposal is not None
                closed = kept is not None and child.proposal.family not in kept
                worth = self._worth_before(node, child, line) if closed else value(child)
                urgency = worth / scale + curious * child.proposal.prior / (1 + child.visits + child.pending)
                if urgency > score:
                    score, best = urgency, child
            if best is not None:
                node = best
            elif edit is not None:
                return node, edit
            elif node is self._tree.root:
                return None
            else:
                node = self._tree.root  # this branch is closed from now on; choose again

    def line(self, node: Node) -> Line:
        """The way from a node to the best program below it."""
        line = line_below(node)
        self._tree.asked(line.way[-1])  # so that it has said what it offers
        return line

    def _most_urgent(
        self, node: Node, edits: Sequence[Proposal], line: Line, scale: float, curious: float
    ) -> tuple[float, Proposal]:  # fmt: skip
        """The edit of a node to try next, by what is expected of it and its prior, and its score beside the children's."""
        near, kept = _near(node), line.kept
        of_each: dict[str, tuple[float, Proposal]] = {}  # a proposer's most urgent, the last of equals
        for proposal in edits:
            gain = self._tree.experience.expect(proposal)
            if isinstance(proposal, Question) and gain > 0:
                gain *= proposal.share
            if near:
                for key in proposal.alike:
                    gain = max(gain, near.get(key, gain))
            expected = node.gained + gain
            # Closed off, it costs as many candidates as there are steps to make again after it.
            if _closed_off(proposal, kept):
                expected = max(expected, node.best + gain / len(line.way))
            urgency = expected / scale + curious * proposal.prior
            held = of_each.get(proposal.proposer)
            if held is None or urgency >= held[0]:
                of_each[proposal.proposer] = urgency, proposal
        rising = sorted(of_each.values(), key=itemgetter(0))
        return rising[self._tree.mixture.pick([proposal for _, proposal in rising])]

    def _worth_before(self, node: Node, child: Node, line: Line) -> float:
        """The value of a child whose rule the best rewrite closes off: the worth that this rewrite, made after it, would give if gains
        add up, until that was tried."""
        worth = value(child)
        if child.best > child.gained:
            return worth
        self._tree.asked(child)
        rewrite = line.rules[0]
        if rewrite not in child.offers or any(rewrite == rule_of(other.proposal) for other in child.children):
            return worth
        return max(worth, child.gained + node.best - node.gained - BEFORE_LOSS)


def value(node: Node) -> float:
    """The worth of a node."""
    mean = node.total / max(1, node.visits)
    return BEST_SHARE * node.best + (1 - BEST_SHARE) * mean


def _closed_off(proposal: Proposal, kept: frozenset[tuple[str, str]] | None) -> bool:
    """Whether an edit fits nowhere after the best rewrite. A model's is of one program alone: the model may be asked there as well."""
    return kept is not None and proposal.proposer != MODEL and proposal.family not in kept


def _may_widen(node: Node) -> bool:
    return len(node.children) + node.pending < WIDTH * math.pow(node.visits + node.pending, WIDENING)


def line_below(node: Node) -> Line:
    if node.line is None:
        best = max(node.children, key=_best, default=None)
        node.line = Line((node, *line_below(best).way) if best is not None and best.best > node.gained else (node,))
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


def rule_of(proposal: Proposal | None) -> tuple[str, str]:
    """The rule of a step with its proposer."""
    return proposal.family if proposal is not None else ("", "")
