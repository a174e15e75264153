"""One search over several devices: the same loop, tree and journal."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from engine.compile.built import NotBuilt
from engine.evaluate.devices import evaluate
from engine.model import Evaluation, Failure, Outcome
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds
from engine.search.progress import Budget, in_flight, on_devices
from engine.search.tree import Tree

from .fakes import Factors, FakeEvaluator, edit, program

FACTORS = ("1.5", "0.7", "1.1", "0.9", "1.2", "0.8")


class Threads:
    """Devices that are threads of this process."""

    def __init__(self, evaluator, count):
        self.evaluator, self.count = evaluator, count
        self._pool = ThreadPoolExecutor(count)

    def submit(self, job):
        return self._pool.submit(partial(evaluate, self.evaluator, job))

    def stop(self):
        self._pool.shutdown(wait=False, cancel_futures=True)


def searched(folder, evaluator, count, budget, source=None):
    original = program()
    journal = Journal(folder / "journal.sqlite", original, {}, resume=False)
    with ThreadPoolExecutor(4) as executor:
        search = Search(
            Tree(original, source or Factors(FACTORS), 0),
            evaluator,
            journal,
            Builds(executor, in_flight=in_flight(4, budget, count), devices=Threads(evaluator, count)),
        )
        search.start(*evaluator.open(original))
        search.run(budget)
    return search


@pytest.mark.parametrize("budget", [Budget(candidates=12), Budget(seconds=60)])
def test_each_device_evaluates_a_candidate_at_the_same_time(tmp_path, budget):
    together, calls = threading.Barrier(3), itertools.count()

    class Meeting(FakeEvaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            if next(calls) < 3:
                together.wait(30)  # raises where fewer than three are under way
            return super().evaluate(built, incumbent)

    assert searched(tmp_path, Meeting(), 3, budget).progress.evaluated >= 12


def test_a_slow_candidate_holds_up_no_other_device(tmp_path):
    last, slow = threading.Event(), []

    class OneSlow(FakeEvaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            if not slow:
                slow.append(built.text)
                assert last.wait(30)
            found = super().evaluate(built, incumbent)
            if len(self.evaluated) == 5:
                last.set()
            return found

    search = searched(tmp_path, OneSlow(), 2, Budget(candidates=10))
    assert search.progress.evaluated == 10
    assert [entry.id for entry in search.journal.entries()] == list(range(11))


def test_several_devices_leave_the_same_kind_of_tree(tmp_path):
    evaluator = FakeEvaluator()
    search = searched(tmp_path, evaluator, 4, Budget(candidates=40))
    nodes = list(search.tree.walk())
    entries = list(search.journal.entries())
    assert [entry.id for entry in entries] == sorted(search.tree.nodes) == list(range(len(nodes)))
    assert all(entry.parent is None or entry.parent < entry.id for entry in entries)
    assert len({node.program.digest for node in nodes}) == len(nodes)
    assert all(node.pending == 0 for node in nodes)
    assert len(set(evaluator.evaluated)) == len(evaluator.evaluated)
    assert search.tree.root.visits == len(nodes)
    assert search.incumbent.evaluation.measurement.ratio == max(
        node.evaluation.measurement.ratio for node in nodes if node.evaluation.measurement
    )


def test_a_twin_of_what_is_evaluated_waits_for_it_and_another_candidate_does_not(tmp_path):
    """The text differs, the machine code does not: a second device would only measure it again."""
    others, seen = threading.Event(), []

    class Twins(FakeEvaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            seen.append(built.binary.code_hash)
            if built.binary.code_hash == "speed 1.5":
                assert others.wait(30)
            elif len(seen) > 2:
                others.set()
            return super().evaluate(built, incumbent)

    def source(of):
        if of.data != program().data:
            return []
        lines = ["// speed 1.5 a", "// speed 1.5 b", "// speed 1.1", "// speed 1.2", "// speed 1.3"]
        return [edit(of, line, 0.9 - 0.1 * place) for place, line in enumerate(lines)]

    search = searched(tmp_path, Twins(), 2, Budget(seconds=60), source)
    assert seen.count("speed 1.5") == 1
    assert search.progress.outcomes[Outcome.DUPLICATE] == 1


def test_what_a_device_could_not_build_is_recorded_as_not_built(tmp_path):
    class Refusing(FakeEvaluator):
        def evaluate(self, built, incumbent, *, brief=False):
            failure = Evaluation(Outcome.COMPILE_ERROR, failure=Failure("no such header"))
            raise NotBuilt("no such header", evaluation=failure)

    search = searched(tmp_path, Refusing(), 2, Budget(candidates=4))
    assert search.progress.outcomes == {Outcome.COMPILE_ERROR: 4}


def test_limits_grow_with_the_devices_and_are_as_before_for_one():
    assert [on_devices("measured", n, counted=False) for n in (1, 4)] == [3, 12]
    assert [on_devices("predicted", n, counted=False) for n in (1, 4)] == [1, 4]
    assert [on_devices("measured", n, counted=True) for n in (1, 4)] == [1, 4]
    assert in_flight(16, Budget(seconds=60)) == in_flight(16, Budget(seconds=60), 1) == 18
    assert in_flight(16, Budget(candidates=100)) == 5
    assert in_flight(16, Budget(candidates=100), 4) == 11
    assert in_flight(16, Budget(seconds=60), 4) == 30
