"""What is built while the device opens the original, and that the search takes it from there."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pytest

from engine.compile.built import NotBuilt
from engine.run.first_builds import FirstBuilds
from engine.run.optimization import _Parts
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds
from engine.search.progress import Budget
from engine.search.tree import Tree
from tests.engine.search.fakes import Factors, FakeEvaluator, program


class Noting(FakeEvaluator):
    """Counts what it builds; `all_begun` is set with the build of that number."""

    def __init__(self, number):
        super().__init__()
        self.texts, self.number, self.all_begun, self.lock = [], number, threading.Event(), threading.Lock()

    def build(self, program, *, by_rules=False):
        with self.lock:
            self.texts.append((program.data.decode(), by_rules))
            if len(self.texts) == self.number:
                self.all_begun.set()
        return super().build(program, by_rules=by_rules)


PRIORS = {"1.5": 0.9, "1.2": 0.8, "0.7": 0.1}


def test_the_most_promising_are_built_before_the_search_and_by_it_not_again(tmp_path):
    original, evaluator, source = program(), Noting(2), Factors(tuple(PRIORS), PRIORS)
    with ThreadPoolExecutor(2) as executor:
        first = FirstBuilds(source, partial(evaluator.build, by_rules=True), executor, 2)
        first.begin(original)
        assert evaluator.all_begun.wait(10)  # while the device opens the original
        ahead = sorted(evaluator.texts)
        assert ahead == [("kernel\n// speed 1.2 #1\n", True), ("kernel\n// speed 1.5 #0\n", True)]
        journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
        builds = Builds(executor, in_flight=3, begun=first.take)
        search = Search(Tree(original, source, 0), evaluator, journal, builds)
        search.start(*evaluator.open(original))
        search.run(Budget(candidates=3))
    assert len(search.tree.nodes) == 4
    for text, _ in ahead:
        assert [seen for seen, _ in evaluator.texts].count(text) == 1


def test_a_build_is_taken_once_and_brings_its_failure():
    original, evaluator = program("broken\n"), FakeEvaluator()
    with ThreadPoolExecutor(1) as executor:
        first = FirstBuilds(Factors(("1.5",)), partial(evaluator.build, by_rules=True), executor, 4)
        first._begin(original)
        made = program("broken\n// speed 1.5 #0\n")
        building = first.take(made)
        with pytest.raises(NotBuilt):
            building.result(10)
        assert first.take(made) is None


def test_proposals_that_cannot_be_read_begin_nothing():
    def fails(of):
        raise RecursionError

    with ThreadPoolExecutor(1) as executor:
        first = FirstBuilds(fails, FakeEvaluator().build, executor, 4)
        first._begin(program())
    assert first.take(program()) is None


def test_candidates_are_read_ahead_only_where_other_processes_read_them():
    """Most are never built upon: with two cores a third of the parent's time went to what nobody asked for."""
    read = []
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as readers:
        for other in (executor, readers):
            given = dict.fromkeys(field.name for field in dataclasses.fields(_Parts))
            given |= {"executor": executor, "readers": other, "foresight": SimpleNamespace(read=read.append)}
            _Parts(**given).ahead(other)
    assert read == [readers]
