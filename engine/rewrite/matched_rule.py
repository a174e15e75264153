"""Rules in three parts: what they match, which values they leave open, what they write for one choice of them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from engine.rewrite.proposal import Edits, Family, Proposal
from engine.rewrite.site import Site

M = TypeVar("M")
Values = Mapping[str, int | str]


@dataclass(frozen=True)
class Space:
    """The values of a rule's parameters at one match.

    `choices` are proposed one by one, each with its prior. `open` are the values that a tuner may combine, under `conditions`
    (for `engine.arith`) that must not be 0; `prior` is that the best combination helps.
    """

    choices: Sequence[tuple[Values, float]]
    open: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    conditions: tuple[str, ...] = ()
    prior: float = 0.5


@dataclass(frozen=True)
class Change:
    """What a rule writes: its edits, one sentence about them, and parameters beside those that were chosen."""

    summary: str
    edits: Edits
    parameters: Values = field(default_factory=dict)


class MatchedRule(ABC, Generic[M]):
    """A rule whose single proposals and tunable families follow from `match`, `space` and `rewrite`.

    A precondition is written once: in `match`, or in `rewrite` where it depends on the values.
    """

    name: str
    summary: str

    @abstractmethod
    def match(self, site: Site) -> M | None:
        """What the rule needs to know of the site; None where it does not apply."""

    @abstractmethod
    def space(self, match: M) -> Space:
        """The values to propose and to leave open."""

    @abstractmethod
    def rewrite(self, match: M, values: Values) -> Change | None:
        """The edit for one choice of values; None where it cannot be written."""

    def propose(self, site: Site) -> Iterator[Proposal]:
        """One proposal for each choice that can be written."""
        match = self.match(site)
        if match is not None:
            for values, prior in self.space(match).choices:
                yield from self._proposals(match, values, prior)

    def families(self, site: Site) -> Iterator[Family]:
        """The open values as one family, where the first choice can be written."""
        match = self.match(site)
        space = self.space(match) if match is not None else None
        if match is None or space is None or not space.open:
            return
        found = match
        if any(True for values, prior in space.choices[:1] for _ in self._proposals(found, values, prior)):

            def make(values: Mapping[str, int]) -> Proposal | None:
                return next(self._proposals(found, values, space.prior), None)

            yield Family(self.name, self.summary, space.open, space.conditions, make, space.prior)

    def _proposals(self, match: M, values: Values, prior: float) -> Iterator[Proposal]:
        change = self.rewrite(match, values)
        if change is not None and change.edits:
            parameters = {**change.parameters, **values}
            yield Proposal("rules", self.name, change.summary, change.edits, parameters, prior)
