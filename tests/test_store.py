"""Searches on one store of measurements: each program measured once, kept over processes, compared by what was measured."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.store import SharedEvaluator, SharedInsight
from engine.search.journal import Journal
from engine.search.loop import Budget, Observation, Search
from engine.search.reward import Proxies
from engine.search.tree import Tree
from tests.engine.search.fakes import Factors, FakeEvaluator, edit, program, speed


def _search(shared: SharedEvaluator, tmp_path: Path, seed: int, inner: Any = None, propose: Any = None) -> Search:
    original = program()
    journal = Journal(tmp_path / f"{seed}.sqlite", original, {}, resume=False)
    tree = Tree(original, propose or Factors(("1.5", "2.0", "0.9", "wrong")), seed, "random")
    with ThreadPoolExecutor(2) as executor:
        search = Search(tree, shared, journal, executor, in_flight=3, inner=inner)
        search.start(*shared.open(original))
        search.run(Budget(candidates=40))
    journal.close()
    return search


def test_searches_share_every_measurement_and_find_the_same_when_they_end(tmp_path: Path) -> None:
    fake = FakeEvaluator()
    shared = SharedEvaluator(fake, tmp_path / "store")
    runs = [_search(shared, tmp_path, seed) for seed in range(3)]
    assert len(fake.evaluated) == len(set(fake.evaluated)) == shared.store.measured  # type: ignore[union-attr]
    assert len({run.progress.best_ratio for run in runs}) == 1
    assert runs[0].incumbent is not None
    assert speed(runs[0].incumbent.program.data.decode()) == pytest.approx(3.0)
    shared.end()
    # Another process takes the same measurements up.
    later = FakeEvaluator()
    again = SharedEvaluator(later, tmp_path / "store")
    assert _search(again, tmp_path, 9).progress.best_ratio == runs[0].progress.best_ratio
    assert later.evaluated == []
    again.end()


def test_another_machine_or_original_has_a_store_of_its_own(tmp_path: Path) -> None:
    shared = SharedEvaluator(FakeEvaluator(), tmp_path)
    built, _ = shared.open(program())
    shared.evaluate(built, None)
    other = SharedEvaluator(FakeEvaluator(), tmp_path)
    other.open(program("another kernel\n"))
    assert other.store is not None
    assert other.store.peek(built) is None
    for one in (shared, other):
        one.end()


def test_the_speedup_over_the_incumbent_is_that_of_the_stored_measurements(tmp_path: Path) -> None:
    shared = SharedEvaluator(FakeEvaluator(), tmp_path)
    original = program()
    shared.open(original)
    slow, fast = (shared.build(program(f"kernel\n// speed {f} #0\n")) for f in ("1.5", "3.0"))
    assert shared.evaluate(slow, None)[1] is None
    assert shared.evaluate(fast, slow)[1] == pytest.approx(2.0)
    shared.end()


class Counters:
    """Stands for a profiler's side: counts programs once each, and answers later."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._ready: list[Observation] = []
        self._known: set[str] = set()

    def passed(self, node: Any, built: Any) -> None:
        self.asked.append(built.text)
        self._ready.append(Observation(node.id, "cheap", [], Proxies(speed(built.text), 1.0)))

    def arrivals(self) -> list[Observation]:
        came, self._ready = self._ready, []
        return came

    def look(self, built: Any, evaluation: Any) -> None:
        threading.Timer(0.05, self._known.add, (built.program.digest,)).start()

    def known(self, digest: str) -> Any:
        return object() if digest in self._known else None


def test_counters_of_one_run_reach_the_nodes_of_the_next_under_their_own_numbers(tmp_path: Path) -> None:
    inner = Counters()
    insight = SharedInsight(inner)  # type: ignore[arg-type]
    shared = SharedEvaluator(FakeEvaluator(), tmp_path)
    built = [shared.build(program(f"kernel\n// speed {f} #0\n")) for f in ("1.5", "2.0", "4.0")]

    def booked(*ids: int) -> dict[int, float | None]:
        insight.begin()
        for id, one in zip(ids, built, strict=True):
            insight.passed(SimpleNamespace(id=id, evaluation=object()), one)
        return {seen.node: seen.proxies.bytes_moved for seen in insight.arrivals()}

    assert booked(0, 1, 2) == {0: 1.5, 1: 2.0, 2: 4.0}
    assert booked(0, 7, 3) == {0: 1.5, 7: 2.0, 3: 4.0}
    assert len(inner.asked) == 3
    assert insight.drain(0.0) == 0


def test_a_diagnosis_is_waited_for(tmp_path: Path) -> None:
    inner = Counters()
    insight = SharedInsight(inner)  # type: ignore[arg-type]
    built = FakeEvaluator().build(program())
    insight.look(built, object())  # type: ignore[arg-type]
    assert insight.known(built.program.digest) is not None


def test_the_time_of_all_points_of_a_template_is_booked_with_the_search(tmp_path: Path) -> None:
    """It was counted as nobody's time, so as overhead."""
    fake = FakeEvaluator()
    shared = SharedEvaluator(fake, tmp_path / "store")

    class Inner:
        def search(self, of: Any, proposal: Any, champion: Any, left: Any, executor: Any, known: Any) -> Any:
            text = program("kernel\n// speed 2.0 #0\n")
            built = fake.build(text)
            evaluation, _ = fake.evaluate(built, champion)
            return SimpleNamespace(
                proposal=proposal, program=text, built=built, evaluation=evaluation, against=None, points=5,
                stage_s={"verify": 1.5, "time": 2.5},
            )  # fmt: skip

        def points_of(self, notes: Any) -> int:
            return 5

    def propose(of: Any) -> list[Any]:
        found = edit(of, "// speed 2.0 #0")
        return [] if "#0" in of.data.decode() else [SimpleNamespace(**{**found.__dict__, "proposer": "tuner"})]

    search = _search(shared, tmp_path, 0, Inner(), propose)
    assert search.progress.stage_s["verify"] == pytest.approx(1.5)
    assert search.progress.stage_s["time"] == pytest.approx(2.5)
    assert search.progress.evaluated == 5
    shared.end()
