"""A budget of candidates: the same candidates in the same order, however long anything takes and however many compilers there are."""

import random
import time
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Timer

import pytest

from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds
from engine.search.progress import Budget, in_flight
from engine.search.tree import Tree

from .fakes import Factors, FakeEvaluator, edit, program

FACTORS = ("1.5", "0.7", "1.1", "0.9", "1.2", "0.8")


class Slow(FakeEvaluator):
    """One whose builds and evaluations take anything."""

    def __init__(self, seed):
        super().__init__()
        self.random = random.Random(seed)

    def pause(self):
        time.sleep(self.random.choice((0.0, 0.0, 0.001, 0.004)))

    def build(self, program, *, by_rules=False):
        self.pause()
        return super().build(program, by_rules=by_rules)

    def evaluate(self, built, incumbent, *, brief=False):
        self.pause()
        return super().evaluate(built, incumbent)


def propose(of):
    """Edits that gain, lose, do not compile, fail their checks, or give the same code by another way."""
    text = of.data.decode()
    bad = [] if text.count("\n") > 2 else [edit(of, "// broken", 0.6), edit(of, "// wrong", 0.55)]
    return bad + Factors(FACTORS, {"1.5": 0.7, "0.9": 0.65})(of)


def rows(folder, seed, *, jobs=2, late=False):
    """The journal of a search, but for times."""
    original, evaluator, asked = program(), Slow(seed), {}

    def coming(of):  # proposals are read elsewhere, and ready some time
        if not late:
            return None
        if of.digest not in asked:
            asked[of.digest] = Future()
            Timer(evaluator.random.choice((0.0, 0.003)), asked[of.digest].set_result, [None]).start()
        return None if asked[of.digest].done() else asked[of.digest]

    budget = Budget(candidates=40)
    journal = Journal(folder / f"{seed}-{jobs}.sqlite", original, {}, resume=False)
    with ThreadPoolExecutor(jobs) as executor:
        search = Search(
            Tree(original, propose, 0, coming=coming),
            evaluator,
            journal,
            Builds(executor, in_flight=in_flight(jobs, budget)),
        )
        search.start(*evaluator.open(original))
        search.run(budget)
    journal.close()
    journal = Journal(folder / f"{seed}-{jobs}.sqlite", original, {}, resume=True)
    found = [(e.id, e.parent, e.parameters.get("line"), e.evaluation.outcome, e.against) for e in journal.entries()]
    journal.close()
    return found


@pytest.mark.parametrize("late", [False, True])
def test_the_clock_does_not_decide_what_is_tried(tmp_path, late):
    first = rows(tmp_path, 1, late=late)
    assert len(first) == 41
    assert {str(outcome) for _, _, _, outcome, _ in first} >= {
        "accepted",
        "slower",
        "compile_error",
        "wrong_result",
        "duplicate",
    }
    for seed in range(2, 6):
        assert rows(tmp_path, seed, jobs=seed, late=late) == first
