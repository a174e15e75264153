"""What a rule is, and what it proposes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from engine.cuda.kernel import Edit

if TYPE_CHECKING:
    from engine.rewrite.site import Site

Edits = Mapping[str, tuple[Edit, ...]]
Point = Mapping[str, int]  # a value for each parameter of a family


@dataclass(frozen=True)
class Proposal:
    """One edit of a program that a proposer suggests.

    `edits` are by repository-relative path, against the files of the program they were made for. `summary` is one sentence
    in the imperative ("Add launch bounds"). `prior` in (0, 1]: how promising before anything is measured. `tries`: how
    many candidates it takes to see what it brings. `makes` is the digest of the program that it gives, where whoever made it knows.
    """

    proposer: str  # "rules", "tuner", "llm"
    rule: str
    summary: str
    edits: Mapping[str, tuple[Edit, ...]]
    parameters: Mapping[str, int | str] = field(default_factory=dict)
    prior: float = 0.5
    tries: int = 1
    makes: str | None = field(default=None, compare=False)

    @cached_property
    def family(self) -> tuple[str, str]:
        """The rule with its proposer."""
        return self.proposer, self.rule

    @property
    def by_rules(self) -> bool:
        """Whether an installed rule or the tuner wrote the edits, whose code is trusted."""
        return self.proposer in ("rules", "tuner")

    @cached_property
    def identity(self) -> tuple[str, str, str, str]:
        """What the edit is known by wherever it is proposed again, in this process or another."""
        return self.proposer, self.rule, self.summary, repr(sorted(self.parameters.items()))

    @cached_property
    def alike(self) -> tuple[tuple[object, ...], ...]:
        """What it shares with edits that differ in one whole number alone: one key for each of its own."""
        figures = sorted(self.parameters.items())
        return tuple(
            (self.family, name, *figures[:k], *figures[k + 1 :])
            for k, (name, value) in enumerate(figures)
            if isinstance(value, int)
        )


@dataclass(frozen=True)
class Family:
    """A rule's edit of one site with its figures left open: what a tuner searches.

    `parameters` are the values that each figure may take, `conditions` expressions over them (for `engine.arith`) that must not
    be 0, those of the target's limits included as far as the rule knows them. `make` gives the proposal for one choice, or
    None where the edit cannot be written so. `impossible` says, as a condition, what a choice breaks that expressions cannot tell.
    """

    rule: str
    summary: str
    parameters: Mapping[str, tuple[int, ...]]
    conditions: tuple[str, ...]
    make: Callable[[Point], Proposal | None]
    prior: float = 0.5  # as of a proposal: that the best choice helps
    impossible: Callable[[Point], str] = lambda values: ""


Proposals = Iterator[Proposal]
Families = Iterator[Family]


class Rule(Protocol):
    """A rewrite rule: one module, one idea. `propose` yields nothing where the precondition does not hold."""

    name: str
    summary: str

    def propose(self, site: Site) -> Proposals: ...


@runtime_checkable
class Parametric(Protocol):
    """A rule that can make its proposals at any choice of their figures."""

    name: str

    def families(self, site: Site) -> Families: ...


def proposal(rule: str, summary: str, edits: Edits | None, prior: float, **parameters: int | str) -> Proposals:
    """One proposal, or none where `edits` is None or empty."""
    if edits:
        yield Proposal("rules", rule, summary, edits, parameters, prior)


def merge(*parts: Edits | None) -> dict[str, tuple[Edit, ...]] | None:
    """All edits together; None where a part is None or two of them overlap."""
    merged: dict[str, list[Edit]] = {}
    for part in parts:
        if part is None:
            return None
        for path, edits in part.items():
            merged.setdefault(path, []).extend(e for e in edits if e not in merged.get(path, []))
    for found in merged.values():
        ordered = sorted(found, key=lambda e: e.span)
        if any(a.span.end > b.span.start or a.span == b.span for a, b in pairwise(ordered)):
            return None
    return {path: tuple(sorted(edits, key=lambda e: e.span)) for path, edits in merged.items() if edits}
