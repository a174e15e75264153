from collections.abc import Iterator

import pytest

import engine.rules
from engine.rules import RuleFailure, proposals, rules
from engine.rules.model import Proposal, Site
from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, make


def test_every_rule_has_a_name_of_its_own_and_a_summary() -> None:
    found = [r.name for r in rules()]
    assert len(set(found)) == len(found) >= 8
    assert all(r.summary for r in rules())


def test_proposals_come_best_first_and_differ() -> None:
    found = proposals(make(SCALE, SCALE_LAUNCH))
    assert [p.prior for p in found] == sorted((p.prior for p in found), reverse=True)
    assert all(0 < p.prior <= 1 and p.summary and p.edits for p in found)
    assert len({str(sorted(p.edits.items())) for p in found}) == len(found)
    assert {p.rule for p in proposals(make(SCALE, SCALE_LAUNCH), only=["restrict"])} == {"restrict"}


def test_a_rule_that_raises_is_booked_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "broken"
        summary = "Raise"

        def propose(self, site: Site) -> Iterator[Proposal]:
            raise ZeroDivisionError("by zero")

    others = rules()
    monkeypatch.setattr(engine.rules, "rules", lambda: (Broken(), *others))
    failures: list[RuleFailure] = []
    assert proposals(make(SCALE, SCALE_LAUNCH), failures=failures)
    assert failures == [RuleFailure("broken", "ZeroDivisionError: by zero")]


def test_a_site_without_a_visible_launch_keeps_its_launch() -> None:
    found = proposals(make(SCALE, ""))
    assert found
    assert {p.rule for p in found} <= {"restrict", "unroll", "row_vectorize", "fast_math", "register_accumulate"}
