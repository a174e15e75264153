import random

import pytest

from engine.model import Evaluation, Measurement, Outcome
from engine.rewrite.proposal import Proposal
from engine.search.mixture import Mixture
from engine.search.question import Question, question
from engine.search.tree import Tree

from .fakes import Factors, FakeEvaluator, program


def proposal(proposer, prior=0.5, tries=1):
    return Proposal(proposer, "r", "s", {}, {}, prior, tries)


class Booked:
    def __init__(self, proposer, ratio=1.0, seconds=1.0, outcome=Outcome.ACCEPTED):
        self.proposal = proposal(proposer)
        self.evaluation = Evaluation(outcome, Measurement((), ratio, ratio, ratio), stage_s={"time": seconds})


def test_one_proposer_alone_is_asked_by_its_priors():
    assert Mixture().pick([proposal("rules", 0.1), proposal("rules", 0.9)]) == 1


def test_who_was_never_tried_goes_first_and_the_prior_decides_between_two_of_them():
    mixture = Mixture()
    untried = [proposal("llm", 0.1), proposal("tuner", 0.2), proposal("rules", 0.9)]
    assert mixture.pick(untried) == 2
    mixture.booked(Booked("rules", 2.0))
    assert mixture.pick(untried) == 1
    mixture.booked(Booked("tuner"))
    assert mixture.pick(untried) == 0


def played(gains, *, seconds=None, usd=None, rounds=300, seed=0):
    """How often each of some proposers was picked, when each candidate of theirs gains with a chance of its own."""
    mixture, chance = Mixture(), random.Random(seed)
    untried = [proposal(name) for name in gains]
    best, picked = 1.0, dict.fromkeys(gains, 0)
    for _ in range(rounds):
        name = untried[mixture.pick(untried)].proposer
        picked[name] += 1
        ratio = best * 1.1 if chance.random() < gains[name] else 1.0
        best = max(best, ratio)
        mixture.booked(Booked(name, ratio, (seconds or {}).get(name, 1.0)))
        mixture.charge(name, (usd or {}).get(name, 0.0))
    return picked


def test_who_brings_more_is_asked_more_but_nobody_is_forgotten():
    picked = played({"rules": 0.02, "tuner": 0.5, "anyone": 0.02})
    assert picked["tuner"] > 2 * picked["rules"]
    assert min(picked.values()) >= 10


def test_a_template_waits_until_single_edits_bring_less():
    """At 100 candidates rules alone found 1.12 times as much as rules and tuner: each template took 16, and every second turn."""
    mixture, untried = Mixture(), [proposal("tuner", 0.9, tries=16), proposal("rules", 0.1)]
    order = []
    for turn in range(150):
        order.append(untried[mixture.pick(untried)].proposer)
        gained = {0: 4.0, 1: 8.0}.get(turn, 1.0)
        mixture.booked(Booked(order[-1], gained))
    assert 8 < order.index("tuner") < 40
    assert 2 <= order.count("tuner") <= 8
    many = Mixture()
    many.booked(Booked("rules"))
    assert many.pick([proposal("rules", 0.9), proposal("llm", 0.1)]) == 1  # one as cheap is tried at once


def test_what_costs_more_time_or_money_for_the_same_gain_is_asked_less():
    alike = {"rules": 0.2, "llm": 0.2}
    slow = played(alike, seconds={"rules": 1.0, "llm": 4.0})
    assert slow["rules"] > 1.5 * slow["llm"]
    dear = played(alike, usd={"llm": 0.01})
    assert dear["rules"] > 1.5 * dear["llm"]


def test_shares_say_who_found_what():
    mixture = Mixture()
    mixture.booked(Booked("rules", 2.0))
    mixture.booked(Booked("llm", 8.0, 3.0))
    mixture.booked(Booked("rules", 4.0))
    mixture.booked(Booked("llm", 99.0, outcome=Outcome.GUARDRAIL))
    mixture.charge("llm", 0.5)
    shares = mixture.shares
    assert (shares["rules"].best, shares["rules"].gain) == (1, pytest.approx(1.0))
    assert (shares["llm"].best, shares["llm"].gain, shares["llm"].usd) == (1, pytest.approx(2.0), 0.5)
    assert (shares["llm"].candidates, shares["llm"].passed) == (2, 1)


def late_tree(strategy="mcts"):
    tree = Tree(program(), Factors(tuple(f"1.{i}" for i in range(1, 9))), 0, strategy)
    tree.root.visits = 50
    return tree


def test_edits_to_begin_with_are_tried_before_all_others():
    tree = late_tree()
    first = [proposal("llm", 0.01), proposal("llm", 0.02)]
    tree.first(first)
    assert [tree.select()[1] for _ in range(2)] == [first[1], first[0]]
    assert tree.select()[1].proposer == "rules"
    assert tree.root.pending == 3


def test_a_question_without_an_answer_counts_as_a_try():
    mixture = Mixture()
    mixture.awaited["llm"] = 1
    assert mixture.pick([proposal("llm", 0.9), proposal("rules", 0.1)]) == 1
    mixture.awaited["llm"] = 0
    assert mixture.pick([proposal("rules", 0.1), proposal("llm", 0.9)]) == 1


def test_a_proposal_that_comes_back_takes_its_own_place():
    tree = late_tree()
    first = tree.proposals(tree.root)[0]
    again = Proposal(first.proposer, first.rule, first.summary, first.edits, {"judge_percent": 90}, 0.99)
    tree.offer(tree.root, [again])
    assert len(tree.root.untried) == 8
    assert tree.root.untried[-1] is again


def test_where_candidates_are_counted_the_clock_does_not_decide_whose_turn_it_is():
    picks = []
    for seconds in (0.01, 100.0):
        mixture = Mixture(counted=True)
        mixture.booked(Booked("llm", 1.5, seconds=seconds))
        mixture.booked(Booked("rules", 1.4, seconds=1.0))
        picks.append(mixture.pick([proposal("llm"), proposal("rules")]))
    assert picks == [0, 0]


@pytest.mark.parametrize("strategy", ["greedy", "mcts"])
def test_the_original_is_asked_about_before_the_first_edit_is_tried(strategy):
    """With a rule of a higher prior than a question's it was asked about only if no first edit gained: greedy was elsewhere by then."""
    tree = Tree(program(), Factors(("2.0", "1.5"), {"2.0": 0.9}), 0, strategy)
    tree.root.evaluation = FakeEvaluator().open(program())[1]
    tree.pose(tree.root, question())
    chosen = [tree.select(asking=True) for _ in range(2)]
    assert [(node, isinstance(action, Question)) for node, action in chosen] == [(tree.root, True), (tree.root, False)]
    assert chosen[1][1].prior == 0.9
    assert not isinstance(Tree(program(), Factors(("2.0",)), 0, strategy).select()[1], Question)
