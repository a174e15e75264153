"""A search beside a profiler that cannot do its part: the search's work is kept, and the result says what was missing."""

from __future__ import annotations

import dataclasses
import math
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.model import Outcome
from engine.process.fair_lock import Turns
from engine.process.sandbox import NoSandbox
from engine.profile import ncu, service
from engine.profile.counters import FULL
from engine.profile.ncu import Profiler, ProfilerSettings, find_ncu
from engine.profile.service import ProfileService
from engine.search.best import best_nodes
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds, Participants
from engine.search.profiling import ProfilerInsight, Waiting
from engine.search.progress import Budget
from engine.search.tree import Tree
from tests.engine.profile.fake_ncu import install, spec
from tests.engine.profile.test_diagnosis import TARGET

from .fakes import Factors, FakeEvaluator, program


class Evaluator(FakeEvaluator):
    """Launches for a check case and a timing case."""

    def build(self, program, *, by_rules=False):
        made = super().build(program, by_rules=by_rules)
        return dataclasses.replace(made, launches=made.launches * 2)


def searched(folder, mode="", unknown=(), every=False):
    """A whole search with this stand-in for ncu on the PATH: the search, the evidence of its best, the notes."""
    path = install(folder, mode, unknown)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        patch.setattr(ncu, "_PARAMETERS", folder / "params")
        patch.setattr(ncu, "_PAUSE_S", 0.01)
        patch.setattr(service, "_LINGER_S", 0.01)
        patch.setattr(service, "_LINGER_BACKGROUND_S", 0.01)
        assert find_ncu() == path
        turns = Turns()
        profiler = Profiler(NoSandbox(), find_ncu(), b"tools", folder / "scratch", spec(), ProfilerSettings(spares=1))
        insight = ProfilerInsight(
            ProfileService(profiler, turns.guest(), share=math.inf if every else 10.0, prepare=(FULL,)),
            spec(), TARGET, 4e12, Waiting(every=every),
        )  # fmt: skip
        original, evaluator = program(), Evaluator()
        tree = Tree(original, Factors(("1.5", "0.9")), 0, "mcts", insight.weigh)
        journal = Journal(folder / "journal.sqlite", original, {}, resume=False)
        with ThreadPoolExecutor(1) as executor:
            search = Search(
                tree,
                evaluator,
                journal,
                Builds(executor, in_flight=1),
                Participants(watch=insight, on_incumbent=insight.look),
            )
            built, evaluation = evaluator.open(original)
            search.start(built, evaluation)
            insight.look(built, evaluation)
            search.run(Budget(candidates=10))
        best = best_nodes(search.tree, search.incumbent, 1)[0]
        path = [(evaluator.build(n.program), n.evaluation) for n in best.path()]
        evidence = insight.trajectory(path)
        search.observe()
        notes = insight.close()
        assert (
            len(list(journal.entries())) == len(tree.nodes) == 5
        )  # the original, both edits, both of them in either order
        assert search.incumbent is not None
        return search, evidence, notes


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("permission", "NVreg_RestrictProfilingToAdminUsers"),
        ("busy", "another tool uses the performance counters"),
        ("another kernel", "the profiler's report does not contain this kernel"),
        ("cannot start", "libcuda.so.1 is missing"),
        ("dies before its report", "the profiler ended without a report"),
        ("unknown layout", "the profiler ended without a report"),
    ],
)
def test_without_counters_the_search_goes_on_and_says_why(tmp_path, mode, says):
    search, evidence, notes = searched(tmp_path, mode)
    assert any(says in note for note in notes), notes
    assert len(evidence) == 2
    assert all("based on times, occupancy and resource usage" in " ".join(e.diagnosis) for e in evidence)
    assert search.journal.proxies() == {}
    assert all(n.gained == search.tree.reward(n.evaluation) for n in search.tree.walk() if n.id)


@pytest.mark.parametrize(
    ("mode", "unknown"), [("unknown version", ()), ("not on this chip", ()), ("", ("dram__bytes.sum",))]
)
def test_with_some_counters_they_count_and_the_others_are_named(tmp_path, mode, unknown):
    search, evidence, notes = searched(tmp_path, mode, unknown)
    assert 0 in search.journal.proxies()
    missing = "dram__bytes.sum" if mode != "unknown version" else ""
    assert all((missing in " ".join(e.diagnosis)) for e in evidence)
    assert not any("no counters" in note for note in notes)


def test_a_search_that_waits_has_counted_all_it_tried_and_in_full_what_it_built_upon(tmp_path):
    search, _, notes = searched(tmp_path, every=True)
    tried = {
        n.id for n in search.tree.walk() if n.evaluation.outcome is not Outcome.DUPLICATE
    }  # of the same machine code
    assert {n.id for n in search.tree.walk() if n.proxies is not None} == tried == {0, 1, 2, 3}
    assert all(n.weighed for n in search.tree.walk() if n.children)
    assert notes == ()


def test_a_search_that_waits_does_not_wait_for_a_profiler_that_cannot(tmp_path):
    search, _, notes = searched(tmp_path, "permission", every=True)
    assert any("NVreg_RestrictProfilingToAdminUsers" in note for note in notes), notes
    assert len(search.tree.nodes) == 5
