"""The rewrite rules: the proposer that needs no model.

A rule is one module with a class that follows `engine.rewrite.proposal.Rule`; `registry.py` finds it.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from engine.cuda.clock import CALL_S, RULE_S, limited
from engine.rewrite import Family, Parametric, Proposal, Rule, Site
from engine.rewrite.program_site import make_site
from engine.rules.normal_form.normal_form import NormalForm, normal_form
from engine.rules.registry import rules

T = TypeVar("T")


@dataclass(frozen=True)
class RuleFailure:
    """A rule that raised instead of proposing: a defect of ours, booked and passed over."""

    rule: str
    error: str


def proposals(
    site: Site, *, only: Iterable[str] | None = None, failures: list[RuleFailure] | None = None
) -> tuple[Proposal, ...]:
    """What all rules (or those named in `only`) propose for the site, most promising first.

    A rule that raises never ends the search: what it raised is appended to `failures`, and its proposals so far count.
    So do those of a rule that used up its time (`RULE_S`), or that of the whole call (`CALL_S`).
    """
    found = _asked(site, only, failures, _RuleQuestion(lambda rule, at: rule.propose(at), NormalForm.proposal))
    return tuple(sorted(found, key=lambda p: -p.prior))


def families(
    site: Site, *, only: Iterable[str] | None = None, failures: list[RuleFailure] | None = None
) -> tuple[Family, ...]:
    """The families of proposals that parametric rules (or those named in `only`) have for the site, most promising first.

    Failures as in `proposals`.
    """

    def ask(rule: Rule, at: Site) -> Iterator[Family]:
        return rule.families(at) if isinstance(rule, Parametric) else iter(())

    found = _asked(site, only, failures, _RuleQuestion(ask, NormalForm.family))
    return tuple(sorted(found, key=lambda f: -f.prior))


@dataclass(frozen=True)
class _RuleQuestion(Generic[T]):
    """What a rule is asked about a site, and how an answer about the normal form is one about the kernel as it is."""

    ask: Callable[[Rule, Site], Iterator[T]]
    back: Callable[[NormalForm, T], T | None]


def _asked(
    site: Site, only: Iterable[str] | None, failures: list[RuleFailure] | None, question: _RuleQuestion[T]
) -> list[T]:
    """Every rule's answers; rules that have none for the kernel as it is are asked about its normal form."""
    wanted = None if only is None else frozenset(only)
    found: list[T] = []
    left_s = CALL_S

    def answers(rule: Rule, at: Site) -> list[T]:
        nonlocal left_s
        given: list[T] = []
        begin = time.thread_time()
        try:
            with limited(min(RULE_S, left_s)):
                for one in question.ask(rule, at):
                    given.append(one)
        except Exception as error:  # any defect of one rule must leave the others working
            if failures is not None:
                failures.append(RuleFailure(rule.name, f"{type(error).__name__}: {error}"))
        left_s -= time.thread_time() - begin
        return given

    silent: list[Rule] = []
    for rule in rules():
        if wanted is None or rule.name in wanted:
            given = answers(rule, site)
            found += given
            silent += [rule] if not given else []
    normal = normal_form(site) if silent else None
    for rule in silent if normal is not None else ():
        assert normal is not None
        found += [back for one in answers(rule, normal.site) if (back := question.back(normal, one)) is not None]
    return found


__all__ = ["RuleFailure", "families", "make_site", "proposals", "rules"]
