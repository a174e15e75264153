"""What a search does at the same time: evaluating, building, reading, writing up."""

import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from engine.evaluate.evaluator import Signals
from engine.model import PASSED
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds
from engine.search.progress import ON_DEVICE, Budget
from engine.search.read_ahead import ReadAhead
from engine.search.tree import Tree

from .fakes import Factors, FakeEvaluator, edit, program
from .test_loop import start


def test_the_interpreter_changes_threads_often_while_a_search_runs_and_no_longer(tmp_path, monkeypatch):
    seen = []
    before = sys.getswitchinterval()
    search = start(tmp_path, Factors(("1.5",)))
    monkeypatch.setattr(search, "_on_progress", lambda progress: seen.append(sys.getswitchinterval()))
    search.run(Budget(candidates=1))
    assert seen[0] == pytest.approx(0.0005)
    assert sys.getswitchinterval() == before


def test_a_candidate_is_evaluated_while_its_proposals_are_still_looked_for(tmp_path):
    """They were waited for with the compiler, and passed for its time."""
    evaluator, known = FakeEvaluator(), threading.Event()
    original = program()
    tree = Tree(original, Factors(("1.5",)), 0)
    journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
    with ThreadPoolExecutor(1) as executor:
        search = Search(tree, evaluator, journal, Builds(executor, in_flight=1, prefetch=lambda of: known.wait(60)))
        search.start(*evaluator.open(original))
        search.run(Budget(candidates=1))
        assert len(evaluator.evaluated) == 1
        known.set()


def test_the_best_programs_are_read_before_they_are_asked_for_and_no_others(tmp_path):
    """Every candidate was read while it was built: ten times what a search asks for, most of it twins and failures."""
    read: list[str] = []
    search = start(
        tmp_path, Factors(("0.5", "0.6", "wrong", "broken", "0.7", "0.6", "1.5")), in_flight=1, strategy="best-of"
    )
    search._ahead = ReadAhead(lambda of: read.append(of.data.decode()), search._executor)
    search.run(Budget(candidates=7))
    search._executor.shutdown()
    best, allowed = [], set()  # what is among the two best at its time
    for node in list(search.tree.walk())[1:]:
        if node.evaluation.outcome in PASSED:
            best = sorted([*best, node], key=lambda node: -node.gained)[:2]
            allowed |= {node.program.data.decode() for node in best}
    assert sorted(read) == sorted(allowed)
    assert any("1.5" in text for text in read)


def test_a_candidate_is_written_up_while_the_next_one_is_evaluated(tmp_path):
    """The device stood idle while the journal was written and the next edit chosen."""
    told, met = threading.Event(), []

    class Noting(FakeEvaluator):
        def evaluate(self, built, incumbent):
            if self.evaluated:
                met.append(told.wait(10))
            else:
                time.sleep(0.2)  # the second candidate is built meanwhile
            return super().evaluate(built, incumbent)

    search = start(tmp_path, Factors(("1.5", "0.7")), evaluator=Noting())
    search._on_progress = lambda progress: told.set()
    search.run(Budget(candidates=2))
    assert met == [True]
    assert [e.id for e in search.journal.entries()] == [0, 1, 2]


def test_what_was_evaluated_is_in_the_journal_before_anybody_is_told_of_it(tmp_path):
    search = start(tmp_path, Factors(("1.5", "0.7", "wrong", "broken", "1.1")))
    short = []

    def told(progress):
        short.append(progress.recorded - (len(list(search.journal.entries())) - 1))

    search._on_progress = told
    search.run(Budget(candidates=30))
    assert max(short) <= 0
    assert short[-1] == 0
    assert len(short) == search.progress.evaluated  # each candidate is reported


def test_waiting_for_proposals_is_told_apart_from_choosing(tmp_path):
    original, coming = program(), Future()
    tree = Tree(original, Factors(("1.5",)), 0, coming=lambda of: None if coming.done() else coming)
    journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
    evaluator = FakeEvaluator()
    search = Search(tree, evaluator, journal, Builds(ThreadPoolExecutor(1), in_flight=1))
    search.start(*evaluator.open(original))
    threading.Timer(0.2, coming.set_result, (None,)).start()
    search.run(Budget(candidates=1))
    assert search.progress.stage_s["read"] >= 0.1 > search.progress.stage_s["select"]


@pytest.mark.parametrize(("builds", "stage"), [(4, "wait"), (3, "wait"), (2, "read")])
def test_where_every_compiler_works_they_are_what_is_waited_for(tmp_path, builds, stage):
    """Proposals are waited for as well, but nothing would be compiled sooner with more of them: of five in flight two stand by."""
    original, evaluator = program(), FakeEvaluator()
    journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
    search = Search(
        Tree(original, Factors(("1.5",)), 0), evaluator, journal, Builds(ThreadPoolExecutor(1), in_flight=5)
    )
    search.start(*evaluator.open(original))
    search._pending = {Future(): None for _ in range(builds)}
    search._coming = [Future()]
    search._await(Budget(seconds=0.1))
    assert list(search.progress.stage_s) == [stage]


def test_what_is_built_is_evaluated_while_the_tree_waits_for_proposals(tmp_path):
    """The device stood idle while the proposals of the best so far were looked for."""
    evaluator, original = FakeEvaluator(), program()
    coming, asked = {}, []

    def read(of):
        """Proposals of the first candidate come once all others that were chosen with it have been evaluated."""
        if of.digest == original.digest:
            return None
        asked.append(len(evaluator.evaluated))
        found = coming.setdefault(of.digest, Future())
        if len(evaluator.evaluated) >= 3 and not found.done():
            found.set_result(None)
        return None if found.done() else found

    tree = Tree(original, Factors(("1.5", "1.2", "1.1")), 0, coming=read)
    journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
    search = Search(tree, evaluator, journal, Builds(ThreadPoolExecutor(1), in_flight=3))
    search.start(*evaluator.open(original))
    search.run(Budget(seconds=60))
    assert asked[0] < 3
    assert search.progress.best_ratio == pytest.approx(1.5 * 1.2 * 1.1)
    assert search.progress.stopped == "nothing is left to try"
    assert {n.pending for n in tree.walk()} == {0}


def test_what_is_waited_for_is_not_asked_again_before_anything_has_changed(tmp_path):
    """Each time a compiler was done the tree went down to the program that it waits for."""
    original, coming, asks = program(), Future(), []
    tree = Tree(original, Factors(("1.5", "1.2")), 0, coming=lambda of: asks.append(of) or coming)
    journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
    evaluator = FakeEvaluator()
    search = Search(tree, evaluator, journal, Builds(ThreadPoolExecutor(1), in_flight=3))
    search.start(*evaluator.open(original))
    for _ in range(5):
        assert search._fill(Budget(seconds=1.0)) is False
        assert search._coming == [coming]
    assert len(asks) == 1
    tree.add(1, tree.root, edit(original, "// speed 1.1 #9"), program("new\n"), evaluator.open(original)[1])
    search._fill(Budget(seconds=1.0))
    assert len(asks) == 2
    coming.set_result(None)
    search._fill(Budget(seconds=1.0))
    assert len(asks) == 3


@pytest.mark.parametrize(("budget", "chosen"), [(Budget(seconds=60), {1, 2}), (Budget(candidates=6), {6})])
def test_more_is_chosen_beside_what_is_there_for_the_device(tmp_path, monkeypatch, budget, chosen):
    """The device had nothing to do until as many were chosen as can be built at once. A number of candidates is not chosen by chance."""
    original, selected, first = program(), [], []

    class Noting(FakeEvaluator):
        def evaluate(self, built, incumbent):
            first.append(len(selected))
            return super().evaluate(built, incumbent)

    evaluator = Noting()
    tree = Tree(original, Factors(("1.5", "0.7", "1.1", "0.9", "1.2", "0.8")), 0)
    journal = Journal(tmp_path / "journal.sqlite", original, {}, resume=False)
    with ThreadPoolExecutor(2) as executor:
        search = Search(tree, evaluator, journal, Builds(executor, in_flight=6))
        search.start(*evaluator.open(original))
        select = tree.select

        def slow(**how):
            selected.append(time.sleep(0.05))  # the one before is built meanwhile
            return select(**how)

        monkeypatch.setattr(tree, "select", slow)
        search.run(budget)
    assert first[0] in chosen


@pytest.mark.parametrize(("mode", "budget", "most"), [
    ("measured", Budget(seconds=60), ON_DEVICE["measured"]), ("measured", Budget(candidates=6), 1),
    ("predicted", Budget(seconds=60), 1),
])  # fmt: skip
def test_so_many_candidates_are_at_the_device_at_once(tmp_path, mode, budget, most):
    """Where one takes a second, those that waited there were evaluated when the time was over."""
    search, there = None, []

    class Noting(FakeEvaluator):
        signals = Signals(mode, {"name": "fake"})

        def evaluate(self, built, incumbent):
            time.sleep(0.05)
            there.append(search._devices._thread._work_queue.qsize() + 1)
            return super().evaluate(built, incumbent)

    search = start(tmp_path, Factors(("1.5", "0.7", "1.1", "0.9", "1.2", "0.8")), evaluator=Noting(), in_flight=6)
    search.run(budget)
    assert max(there) == most
