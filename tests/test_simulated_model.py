"""The simulated model: the same for the same seed, at its declared rates, asked where a policy selects a question."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks import simulated_model
from benchmarks.landscapes import landscape
from benchmarks.simulated_model import ARMS, CANDIDATES, JUDGES, PARTS, RATES, TEMPLATES, TOKENS, Run
from engine.model import Outcome


def nodes(run: Run) -> list:
    return [node for node in run._tree.walk() if node.proposal is not None]


def test_a_run_is_its_kernel_and_its_seed() -> None:
    one, again = (Run(landscape("chain", 1), ARMS["mcts"], 5).to(60) for _ in range(2))
    assert one.curve == again.curve
    assert one.done == 60
    assert one.best > 0


def test_edits_fail_and_change_nothing_at_the_declared_rates() -> None:
    ended: Counter[str] = Counter()
    for seed in range(12):
        for node in nodes(
            Run(landscape("mixed", seed), replace(ARMS["best-of"], rates=replace(RATES, hidden=1.0)), seed).to(60)
        ):
            assert node.proposal.proposer == "llm"  # the rules have none
            kind = int(node.proposal.parameters["rule"])
            ended["fails" if kind == -2 else "idle" if kind == -1 else "edit"] += 1
            if kind == -2:
                assert node.evaluation.outcome is Outcome.WRONG_RESULT
    usable = 1.0 - RATES.unusable
    assert ended["fails"] / ended.total() == pytest.approx(RATES.failing / usable, abs=0.06)
    assert ended["idle"] / ended.total() == pytest.approx(RATES.useless / usable, abs=0.08)


def test_a_question_costs_tokens_and_rules_alone_cost_none() -> None:
    asked = Run(landscape("chain", 0), ARMS["greedy"], 0).to(50)
    assert asked.tokens > 0
    assert asked.tokens % RATES.tokens == 0
    alone = Run(landscape("chain", 0), ARMS["rules-greedy"], 0).to(50)
    assert alone.tokens == 0
    assert {node.proposal.proposer for node in nodes(alone)} == {"rules"}


def test_a_model_without_edits_is_asked_no_more() -> None:
    """A run without a candidate asked for ever."""
    run = Run(landscape("few", 0), replace(ARMS["greedy"], rates=replace(RATES, unusable=1.0, hidden=1.0)), 0).to(50)
    assert run.done == 0
    assert run.tokens <= 22 * RATES.tokens  # two were awaited


def test_all_settings_are_summed_up_against_the_first_arm() -> None:
    found = simulated_model.measured(("few",), 2, ("greedy", "rules-greedy"))
    assert set(found) == {f"{n} candidates" for n in CANDIDATES} | {f"{n} tokens" for n in TOKENS}
    rows = simulated_model.summary(found)
    assert rows["100 candidates"]["greedy"]["over_first"] == 1.0
    assert set(rows["50000 tokens"]) == {"greedy"}
    assert "| 400 candidates |" in simulated_model.table(rows, ("greedy", "rules-greedy"))


def test_a_judge_costs_its_tokens_until_its_own_record_switches_it_off() -> None:
    weights = {}
    for quality, how in JUDGES.items():
        run = Run(landscape("chain", 2), ARMS[f"judge-{quality}"], 2).to(100)
        questions, rest = divmod(run.tokens, RATES.tokens)
        assert run.judge is not None
        calibration = run.judge.calibration
        judged = [n for n in nodes(run) if "judge_gain_percent" in n.proposal.parameters]
        assert len(judged) >= calibration.measured > 8
        assert run.tokens % how.tokens or rest  # some of it is the judge's
        assert questions
        weights[quality] = calibration.weight, calibration.off
    assert weights["good"][0] > 0.4
    assert not weights["good"][1]
    assert weights["inverted"] == (0.0, True)
    assert weights["useless"][0] < weights["good"][0]


def test_a_part_that_is_left_out_saves_its_tokens_alone() -> None:
    whole, without = (Run(landscape("mixed", 1), ARMS[arm], 1).to(60) for arm in ("greedy", "no-retrieval"))
    assert [best for _, _, best in whole.curve] == [best for _, _, best in without.curve]
    assert whole.tokens / RATES.tokens == without.tokens / (RATES.tokens - PARTS["retrieval"])


def test_a_template_costs_a_candidate_for_each_size_and_gives_the_best_of_them() -> None:
    where = landscape("sizes", 3)
    run = Run(where, TEMPLATES["template"], 3, 1).to(100)
    opened = [n for n in nodes(run) if n.proposal.tries > 1]
    assert opened
    for node in opened:
        rule = int(node.proposal.parameters["rule"])
        assert node.proposal.tries == len(where.gains[rule])
        (edit,) = run._states[node.program.digest].made - run._states[node.parent.program.digest].made
        others = [run._states[node.parent.program.digest].made | {(rule, v)} for v in range(node.proposal.tries)]
        assert where.worth(run._states[node.parent.program.digest].made | {edit}) == max(
            w for o in others if (w := where.worth(o)) is not None
        )
    assert run.done == sum(n.proposal.tries for n in nodes(run))
    assert run.best_after(3) <= run.best_after(100)


def test_a_spread_is_over_repetitions_of_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_model, "CANDIDATES", (25, 50))
    rows = simulated_model.spread(("sizes",), 2)["50 candidates"]
    assert rows["spread"]["direct"] > 0
    assert rows["low"] <= rows["template_over_direct"] <= rows["high"]
