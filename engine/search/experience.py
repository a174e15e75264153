"""What edits have brought so far in this run, wherever in the tree they were made: what to expect of one that was not tried here.

An edit's effect is much the same at many nodes, so what it brought at one of them counts at all: the all-moves-as-first heuristic of
Monte Carlo tree search (RAVE: Gelly, Silver 2011, "Monte-Carlo tree search and rapid action value estimation in computer Go").
"""

from collections import defaultdict
from collections.abc import Hashable

from engine.rewrite.proposal import Proposal

# All ours, set on simulated landscapes (independent rules, chains, rules that need or exclude each other) at a hundred candidates.
PRIOR_GAIN = 0.5  # doublings that are expected of a prior of 1, before anything is known
RULE_WEIGHT = 2.0  # tries of a rule that its prior counts for
EDIT_WEIGHT = 1.0  # tries of an edit that its rule counts for
FAILED_GAIN = -0.2  # what a failure teaches: try others first, but a rule may fail here and work there
# One lucky or hopeless place must not stand for all; but rewrites that bring five doublings are told from those that bring three.
MOST_GAIN, LEAST_GAIN = 6.0, -1.0


class Experience:
    """Mean gains of rules and of single edits, in doublings of the speed over the program they were made on."""

    def __init__(self) -> None:
        self._sums: defaultdict[Hashable, list[float]] = defaultdict(lambda: [0.0, 0.0])  # tries, gains

    def learn(self, proposal: Proposal, gain: float) -> None:
        """Count one try."""
        for key in (proposal.family, proposal.identity):
            kept = self._sums[key]
            kept[0] += 1
            kept[1] += min(MOST_GAIN, max(LEAST_GAIN, gain))

    def expect(self, proposal: Proposal) -> float:
        """The gain to expect: the prior's, drawn to what its rule brought, and that to what the same edit brought."""
        expected = proposal.prior * PRIOR_GAIN
        for key, weight in ((proposal.family, RULE_WEIGHT), (proposal.identity, EDIT_WEIGHT)):
            known = self._sums.get(key)
            if known is not None:
                expected = (weight * expected + known[1]) / (weight + known[0])
        return expected
