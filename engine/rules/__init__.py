"""The rewrite rules: the proposer that needs no model.

A rule is one module with a class that follows `engine.rewrite.proposal.Rule`; `registry.py` finds it.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from engine.cuda.clock import CALL_S, RULE_S, limited
from engine.rewrite import Family, Parametric, Proposal, Rule, Site
from engine.rules.program_site import make_site
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
    found = _asked(site, only, failures, lambda rule: rule.propose(site))
    return tuple(sorted(found, key=lambda p: -p.prior))


def families(
    site: Site, *, only: Iterable[str] | None = None, failures: list[RuleFailure] | None = None
) -> tuple[Family, ...]:
    """The families of proposals that parametric rules (or those named in `only`) have for the site, most promising first.

    Failures as in `proposals`.
    """
    found = _asked(site, only, failures, lambda rule: rule.families(site) if isinstance(rule, Parametric) else iter(()))
    return tuple(sorted(found, key=lambda f: -f.prior))


def _asked(
    site: Site, only: Iterable[str] | None, failures: list[RuleFailure] | None, ask: Callable[[Rule], Iterator[T]]
) -> list[T]:
    wanted = None if only is None else frozenset(only)
    found: list[T] = []
    left_s = CALL_S
    for rule in rules():
        if wanted is not None and rule.name not in wanted:
            continue
        begin = time.thread_time()
        try:
            with limited(min(RULE_S, left_s)):
                for one in ask(rule):
                    found.append(one)
        except Exception as error:  # any defect of one rule must leave the others working
            if failures is not None:
                failures.append(RuleFailure(rule.name, f"{type(error).__name__}: {error}"))
        left_s -= time.thread_time() - begin
    return found


__all__ = ["RuleFailure", "families", "make_site", "proposals", "rules"]
