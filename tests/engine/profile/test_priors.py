import pytest

from engine.profile.diagnosis import Diagnosis, Finding
from engine.profile.priors import INFLUENCES, PRIORS, factor, reweighted
from engine.rewrite.proposal import Proposal
from engine.rules import rules

UNCOALESCED = Diagnosis("latency", "", (Finding("uncoalesced_loads", "", 1.0),))


def test_every_rule_of_the_table_exists_and_every_rule_is_called_for_by_something():
    known = {rule.name for rule in rules()}
    named = {influence.rule for influence in INFLUENCES}
    assert named <= known
    called_for = {influence.rule for influence in INFLUENCES if influence.factor > 1}
    assert called_for <= known
    assert {"row_parallel", "transpose_tile", "vectorize", "block_size"} <= called_for


def test_every_code_of_the_table_is_one_that_a_diagnosis_can_give():
    from pathlib import Path

    text = (Path(__file__).parents[3] / "engine" / "profile" / "diagnosis.py").read_text()
    for code in PRIORS:
        assert f'"{code}"' in text or code.removesuffix("_bound") in ("memory", "compute", "latency", "launch"), code


def test_no_pair_stands_twice():
    pairs = [(i.code, i.rule) for i in INFLUENCES]
    assert len(pairs) == len(set(pairs))
    assert all(i.reason and 0 < i.factor != 1 for i in INFLUENCES)


def test_a_diagnosis_reorders_proposals():
    first, second = (Proposal("rules", rule, "", {}, {}, 0.5) for rule in ("fast_math", "row_parallel"))
    ordered = reweighted([first, second], UNCOALESCED)
    assert [p.rule for p in ordered] == ["row_parallel", "fast_math"]
    assert all(0 < p.prior <= 1 for p in ordered)
    assert ordered[0].prior == pytest.approx(2.5 / 3.5)


def test_variants_of_one_rule_keep_their_order():
    variants = [Proposal("rules", "row_parallel", str(i), {}, {}, 0.9 - i / 10) for i in range(5)]
    ordered = reweighted(variants, UNCOALESCED)
    assert [p.summary for p in ordered] == ["0", "1", "2", "3", "4"]
    assert len({p.prior for p in ordered}) == 5
    assert ordered[0].prior < 1


def test_a_slight_finding_counts_less_than_a_grave_one():
    slight = Diagnosis("latency", "", (Finding("uncoalesced_loads", "", 0.1),))
    assert 1 < factor(slight, "row_parallel") < factor(UNCOALESCED, "row_parallel")


def test_factors_are_bounded_and_unknown_rules_keep_their_prior():
    codes = ("dram_saturated", "uncoalesced", "uncoalesced_loads", "memory_stalls", "excess_traffic")
    everything = Diagnosis("memory", "", tuple(Finding(code, "", 1.0) for code in codes))
    assert factor(everything, "fast_math") == 0.25
    assert factor(everything, "row_parallel") == 3.0
    assert factor(everything, "a_rule_of_tomorrow") == 1.0
    (kept,) = reweighted([Proposal("llm", "", "", {}, {}, 1.0)], everything)
    assert kept.prior == 1.0
