"""The simulated model: the same for the same seed, at its declared rates, asked where a policy selects a question."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from benchmarks import simulated_model
from benchmarks.landscapes import landscape
from benchmarks.simulated_model import ARMS, CANDIDATES, RATES, TOKENS, Run
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
        for node in nodes(Run(landscape("mixed", seed), ARMS["best-of"], seed, replace(RATES, hidden=1.0)).to(60)):
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
    run = Run(landscape("few", 0), ARMS["greedy"], 0, replace(RATES, unusable=1.0, hidden=1.0)).to(50)
    assert run.done == 0
    assert run.tokens <= 22 * RATES.tokens  # two were awaited


def test_all_settings_are_summed_up_against_the_first_arm() -> None:
    found = simulated_model.measured(("few",), 2, ("greedy", "rules-greedy"))
    assert set(found) == {f"{n} candidates" for n in CANDIDATES} | {f"{n} tokens" for n in TOKENS}
    rows = simulated_model.summary(found)
    assert rows["100 candidates"]["greedy"]["over_first"] == 1.0
    assert set(rows["50000 tokens"]) == {"greedy"}
    assert "| 400 candidates |" in simulated_model.table(rows, ("greedy", "rules-greedy"))
