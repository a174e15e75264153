"""Which proposer is to make the next edit of a node: a bandit over what each brought lately for its seconds and dollars."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.model import Evaluation, Outcome
from engine.rewrite.proposal import Proposal
from engine.search.question import MODEL, Question

if TYPE_CHECKING:
    from engine.search.tree import Node

# Discounted UCB (Garivier and Moulines 2011, "On upper-confidence bound policies for switching bandit problems"): what a proposer
# brought at the start of a run says little about its end. A candidate counts half after some thirteen more. Ours.
_DISCOUNT = 0.95
# Gains are between 0 and 1 and most are 0, so a wider interval than this would be chance alone. Ours.
_EXPLORE = 0.2
_MOST_GAIN = 1.0  # log2 over the best so far: more than a doubling is one lucky find, and no rate
# An hour of a data-centre GPU is rented for some four dollars: a dollar is worth so many seconds of it. Ours.
SECONDS_PER_USD = 900.0
# The index of one that was never tried: above all others, if its candidates cost as much
_NEVER_TRIED = 2.0 * _MOST_GAIN


@dataclass
class _Arm:
    """One proposer: discounted sums for the choice, plain ones for the report."""

    weight: float = 0.0
    gain: float = 0.0
    cost_s: float = 0.0
    candidates: int = 0
    passed: int = 0
    best: int = 0  # times it made the best so far
    total_gain: float = 0.0
    also: float = 0.0  # of that, what another proposer's candidate brought first
    seconds: float = 0.0
    usd: float = 0.0


@dataclass(frozen=True)
class Share:
    """What one proposer came to: its candidates, those that passed every check, and those that became the best so far.

    `gain` is what those brought, in doublings of the speed (log2), `also` what it has of that in common with who tried it first;
    `seconds` went into evaluating its candidates, `usd` into asking.
    """

    candidates: int
    passed: int
    best: int
    gain: float
    seconds: float
    usd: float
    also: float = 0.0


@dataclass
class Mixture:
    """Keeps account of every proposer by its name, whatever the names are. Used from the search's thread alone."""

    seconds_per_usd: float = SECONDS_PER_USD
    counted: bool = False  # every candidate costs the same: their number ends the search, and the clock must not decide
    _arms: dict[str, _Arm] = field(default_factory=dict)
    _best: float = 1.0
    awaited: Counter[str] = field(default_factory=Counter)  # questions without an answer yet, by proposer

    def pick(self, untried: Sequence[Proposal]) -> int:
        """The place of the next proposal in a list by rising prior: the most promising of the proposer whose turn it is.

        One that takes many candidates has to promise as many times as much.
        """
        last = {proposal.proposer: place for place, proposal in enumerate(untried)}
        if len(last) == 1:
            return len(untried) - 1
        # Among equals, as at the start, a question comes first: its answer comes beside what is tried meanwhile. Then the prior decides.
        return max(
            last.values(),
            key=lambda at: (
                self._index(untried[at].proposer) / untried[at].tries,
                isinstance(untried[at], Question),
                untried[at].prior,
            ),
        )

    def booked(self, node: Node) -> float:
        """An edit was evaluated, now or in the run that is resumed; what it brought over the best so far, in doublings."""
        if node.evaluation is None or node.proposal is None:
            return 0.0
        gained = self._gain(node.evaluation)
        seconds = sum(node.evaluation.stage_s.values())
        for other in self._arms.values():
            other.weight *= _DISCOUNT
            other.gain *= _DISCOUNT
            other.cost_s *= _DISCOUNT
        arm = self._arm(node.proposal.proposer)
        arm.weight += 1.0
        arm.gain += min(_MOST_GAIN, gained)
        arm.cost_s += 1.0 if self.counted else seconds
        arm.candidates += 1
        arm.passed += node.evaluation.measurement is not None and node.evaluation.outcome is not Outcome.GUARDRAIL
        arm.best += gained > 0
        arm.total_gain += gained
        arm.seconds += seconds
        return gained

    def credit(self, proposer: str, gain: float, *, tried: bool) -> None:
        """A proposer had an edit that another's candidate stands for, which brought so much; `tried`: a candidate of its own.

        The report says so whoever they are. The bandit learns it where a model takes part.
        """
        arm = self._arm(proposer)
        arm.best += 1
        arm.total_gain += gain
        arm.also += gain
        if tried and MODEL in self._arms:
            arm.gain += min(_MOST_GAIN, gain)

    def charge(self, proposer: str, usd: float) -> None:
        """Money that a proposer spent beside the evaluation of its candidates."""
        if usd > 0:
            arm = self._arm(proposer)
            arm.usd += usd
            arm.cost_s += usd * self.seconds_per_usd

    @property
    def shares(self) -> Mapping[str, Share]:
        """What each proposer came to so far, by name."""
        return {
            name: Share(arm.candidates, arm.passed, arm.best, arm.total_gain, arm.seconds, arm.usd, arm.also)
            for name, arm in sorted(self._arms.items())
        }

    def _arm(self, name: str) -> _Arm:
        return self._arms.setdefault(name, _Arm())

    def _index(self, name: str) -> float:
        """The upper bound of what a proposer's next candidate brings, over what one costs."""
        arm = self._arms.get(name)
        if arm is None or arm.weight <= 0.0:
            return _NEVER_TRIED / (1 + self.awaited[name])
        total = sum(other.weight for other in self._arms.values())
        bound = arm.gain / arm.weight + _EXPLORE * math.sqrt(math.log(1.0 + total) / (arm.weight + self.awaited[name]))
        every = sum(other.cost_s for other in self._arms.values()) / total
        # Costs are noisy where candidates are few: half of a candidate at the price of all steadies them.
        cost = (arm.cost_s + 0.5 * every) / (arm.weight + 0.5)
        return bound / (cost / every) if every > 0 else bound

    def _gain(self, evaluation: Evaluation) -> float:
        """log2 of the speedup over the best so far, 0 for what does not beat it."""
        measurement = evaluation.measurement
        if measurement is None or evaluation.outcome not in (Outcome.ACCEPTED, Outcome.SCREENED):
            return 0.0
        if measurement.ratio <= self._best:
            return 0.0
        gained, self._best = math.log2(measurement.ratio / self._best), measurement.ratio
        return gained
