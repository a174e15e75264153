import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import engine.rules
from engine.cuda.clock import CALL_S, RULE_S
from engine.cuda.syntax import walk
from engine.rewrite.proposal import Family, Proposal
from engine.rewrite.site import Site
from engine.rules import RuleFailure, families, proposals, rules
from tests.engine.rules.workbench import SCALE, SCALE_LAUNCH, make
from tests.spent import spent


def test_every_rule_has_a_name_of_its_own_and_a_summary() -> None:
    found = [r.name for r in rules()]
    assert len(set(found)) == len(found) >= 8
    assert all(r.summary for r in rules())


def test_every_rule_stands_in_the_guide() -> None:
    guide = (Path(__file__).parents[3] / "docs" / "rules.md").read_text()
    assert [r.name for r in rules() if f"`{r.name}`" not in guide] == []


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


def test_nothing_is_promised_of_pointers_where_no_launch_is_seen() -> None:
    assert {p.rule for p in proposals(make(SCALE, SCALE_LAUNCH))} >= {"restrict", "read_only"}
    assert not proposals(make(SCALE, ""))


# Each local is spelled out twice in the next one: 2^34 names in the index of the load.
DOUBLING = "".join(f"        int d{k} = d{k - 1} / d{k - 1};\n" for k in range(1, 35))
HOSTILE = f"""
__global__ void scale(const float* x, float* y, float a, int n) {{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {{
        int d0 = i;
{DOUBLING}        float s = 0.0f;
        for (int j = 0; j < n; ++j) {{
            s += a * x[d34 * n + j];
        }}
        y[i] = s;
    }}
}}
"""


def test_definitions_that_double_are_given_up_at_once() -> None:
    failures: list[RuleFailure] = []
    with spent() as cost:
        found = proposals(make(HOSTILE, SCALE_LAUNCH), failures=failures)
    assert cost.seconds < 1.0
    assert not failures
    assert {"restrict", "block_size"} <= {p.rule for p in found}


class Endless:
    """A rule that walks over the kernel again and again."""

    summary = "Look at the kernel for ever"

    def __init__(self, name: str) -> None:
        self.name = name

    def propose(self, site: Site) -> Iterator[Proposal]:
        yield Proposal("rules", self.name, "", {}, {}, 0.5)
        while True:
            assert all(node.type for node in walk(site.kernel.node))


def test_a_rule_that_takes_too_long_is_named_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    others = rules()
    monkeypatch.setattr(engine.rules, "rules", lambda: (Endless("endless"), *others))
    monkeypatch.setattr(engine.rules, "RULE_S", 0.2)
    failures: list[RuleFailure] = []
    found = proposals(make(SCALE, SCALE_LAUNCH), failures=failures)
    assert failures == [RuleFailure("endless", "OutOfTime: the analysis of the kernel takes too long")]
    assert {"endless", "restrict", "block_size"} <= {p.rule for p in found}  # what it found until then counts


def test_templates_have_the_same_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's file could keep `optiml tune`, and a search with templates, for ever."""

    class Templates(Endless):
        def families(self, site: Site) -> Iterator[Family]:
            yield Family(self.name, "", {"x": (1, 2)}, (), lambda values: None)
            yield from cast("Iterator[Family]", self.propose(site))

    others = rules()
    monkeypatch.setattr(engine.rules, "rules", lambda: (Templates("endless"), *others))
    monkeypatch.setattr(engine.rules, "RULE_S", 0.2)
    failures: list[RuleFailure] = []
    found = families(make(SCALE, SCALE_LAUNCH), failures=failures)
    assert failures == [RuleFailure("endless", "OutOfTime: the analysis of the kernel takes too long")]
    assert {"endless", "block_size"} <= {f.rule for f in found}


def test_all_rules_together_have_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine.rules, "rules", lambda: tuple(Endless(f"endless{k}") for k in range(20)))
    monkeypatch.setattr(engine.rules, "RULE_S", 0.1)
    monkeypatch.setattr(engine.rules, "CALL_S", 0.25)
    failures: list[RuleFailure] = []
    begin = time.thread_time()
    proposals(make(SCALE, SCALE_LAUNCH), failures=failures)
    assert time.thread_time() - begin < 0.8  # 0.1 + 0.1 + 0.05, and the last look at the clock of each
    assert [f.rule for f in failures] == [f"endless{k}" for k in range(20)]


def test_the_deadline_is_declared() -> None:
    assert 0 < RULE_S < CALL_S <= 5
