"""Searches on one store of measurements: each program measured once, kept over processes, compared by what was measured."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks import store
from benchmarks.counters import StoredCounters
from benchmarks.store import SharedEvaluator, SharedFront, SharedInsight, SharedMachine
from engine.builders.builders import BuildWorkers
from engine.evaluate.evaluator import Evaluator
from engine.model import Binary, LaunchConfig, Resources
from engine.profile.counters import (
    CHEAP,
    FULL,
    Counter,
    MetricSet,
    Profile,
    ProfileFailure,
    ProfileRequest,
    StepProfile,
)
from engine.profile.service import BATCH, Answer, Priority, ProfileService
from engine.search.journal import Journal
from engine.search.loop import Search
from engine.search.participants import Builds, Observation, Participants
from engine.search.profiling import Insight
from engine.search.progress import Budget
from engine.search.reward import Proxies
from engine.search.tree import Tree
from tests.engine.search.fakes import Factors, FakeEvaluator, edit, program, speed


def _search(shared: SharedEvaluator, tmp_path: Path, seed: int, inner: Any = None, propose: Any = None) -> Search:
    original = program()
    journal = Journal(tmp_path / f"{seed}.sqlite", original, {}, resume=False)
    tree = Tree(original, propose or Factors(("1.5", "2.0", "0.9", "wrong")), seed, "random")
    with ThreadPoolExecutor(2) as executor:
        search = Search(tree, shared, journal, Builds(executor, in_flight=3), Participants(inner=inner))
        search.start(*shared.open(original))
        search.run(Budget(candidates=40))
    journal.close()
    return search


def test_a_shared_evaluator_is_asked_like_any_other() -> None:
    """A search by the tuner asked it for a brief look, and it did not know the word."""
    for name in ("evaluate", "retime", "confirm", "build", "open"):
        wanted, ours = (inspect.signature(getattr(one, name)).parameters for one in (Evaluator, SharedEvaluator))
        assert list(wanted) == list(ours)
    for name in (
        "look",
        "passed",
        "arrivals",
        "weigh",
        "want",
        "known",
        "require",
        "prepare",
        "trajectory",
        "stages",
        "close",
    ):
        wanted, ours = (inspect.signature(getattr(one, name)).parameters for one in (Insight, SharedInsight))
        assert len(wanted) == len(ours), name


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
    spent_s = shared.measuring_s
    assert shared.evaluate(fast, slow)[1] == pytest.approx(2.0)
    assert shared.measuring_s > spent_s > 0.0
    spent_s = shared.measuring_s
    shared.evaluate(fast, slow)
    assert shared.measuring_s == spent_s  # from the store
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
    assert insight.drain(0.0) == (0, 0)


def test_a_diagnosis_is_waited_for(tmp_path: Path) -> None:
    inner = Counters()
    insight = SharedInsight(inner)  # type: ignore[arg-type]
    built = FakeEvaluator().build(program())
    insight.look(built, object())  # type: ignore[arg-type]
    assert insight.known(built.program.digest) is not None


def test_a_run_that_learns_puts_off_what_it_would_ask(tmp_path: Path) -> None:
    """Each diagnosis that a run waited for was a start of the profiler, of seconds; its candidates' counters came in small batches."""
    inner = Counters()
    looked: list[str] = []
    wait = inner.look
    inner.look = lambda built, evaluation: (looked.append(built.text), wait(built, evaluation))  # type: ignore[method-assign,func-returns-value,assignment]
    insight = SharedInsight(inner)  # type: ignore[arg-type]
    shared = SharedEvaluator(FakeEvaluator(), tmp_path)
    root, other, third = (shared.build(program(f"kernel\n// speed {f} #0\n")) for f in ("1.0", "1.5", "2.0"))
    insight.begin(learns=True)
    insight.passed(SimpleNamespace(id=0, evaluation=object()), root)
    insight.look(root, object())  # type: ignore[arg-type]
    assert looked == [root.text]  # a run does nothing without it
    for number, built in enumerate((other, third), 1):
        insight.passed(SimpleNamespace(id=number, evaluation=object()), built)
    insight.look(other, object())  # type: ignore[arg-type]
    assert insight.weigh(third.program.digest, []) is None
    assert (looked, inner.asked) == ([root.text], [root.text])
    assert insight.drain(5.0) == (4, 0)
    assert looked == [root.text, other.text, third.text]
    assert inner.asked == [root.text, other.text, third.text]
    assert all(insight.known(one.program.digest) is not None for one in (other, third))
    # The next run meets what it knows, and puts nothing off.
    insight.begin(learns=True)
    for number, built in enumerate((root, third, other)):
        insight.passed(SimpleNamespace(id=number, evaluation=object()), built)
    assert sorted(seen.node for seen in insight.arrivals()) == [0, 1, 2]
    insight.look(other, object())  # type: ignore[arg-type]
    assert insight.drain(5.0) == (0, 0)


def test_a_diagnosis_that_never_comes_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that the profiler fails on held each run for twenty seconds."""
    monkeypatch.setattr(store, "_IDLE_S", 0.1)
    inner = Counters()
    inner.look = lambda built, evaluation: None  # type: ignore[method-assign]
    insight = SharedInsight(inner, lambda: 1.0)  # type: ignore[arg-type]
    built = FakeEvaluator().build(program())
    insight.look(built, object())  # type: ignore[arg-type]
    waited = insight.waited_s
    insight.look(built, object())  # type: ignore[arg-type]
    assert 0.1 <= waited < 5.0
    assert insight.waited_s - waited < 0.1
    insight.passed(SimpleNamespace(id=1, evaluation=object()), built)
    inner.arrivals()  # lost
    begin = time.monotonic()
    assert insight.drain(60.0) == (0, 1)
    assert time.monotonic() - begin < 5.0


class Profiler:
    """Stands for Nsight Compute: fails on the launches of "bad"."""

    unusable = ""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.closed = False

    def warm_up(self, metrics: MetricSet) -> None: ...

    def begin(self, batch: Sequence[ProfileRequest], metrics: MetricSet, gpu: Any = None) -> Any:
        self.batches.append([request.key for request in batch])
        return batch, metrics

    def finish(self, pending: Any) -> list[Answer]:
        return [_profile(request, pending[1]) for request in pending[0]]

    def close(self) -> None:
        self.closed = True


def _profile(request: ProfileRequest, metrics: MetricSet) -> Answer:
    if request.key == "bad":
        return ProfileFailure(request.key, "launch", "it does not launch")
    counters = {"dram__bytes.sum": Counter(float(len(request.key)), "byte", {16: 0.5, 32: 1.5})}
    step = StepProfile("k", request.launches[0], counters, ("gpu__time",), 3)
    return Profile(request.key, metrics.name, request.case, (step,), "2025.3", ("a note",))


def _request(key: str, code: str = "") -> ProfileRequest:
    binary = Binary(b"cubin", "sm_90", ("k",), (Resources(32, 0, 0, 0, 0),), code or key)
    return ProfileRequest(key, binary, (LaunchConfig((7, 1, 1), (256, 1, 1), 48),), 3)


def test_counters_that_were_taken_once_come_from_the_file(tmp_path: Path) -> None:
    path = tmp_path / "counters.sqlite"
    inner = Profiler()
    stored = StoredCounters(inner, path)
    first = stored.finish(stored.begin([_request("a"), _request("bad"), _request("b")], CHEAP))
    stored.close()
    assert inner.closed
    later = Profiler()
    again = StoredCounters(later, path)
    pending = again.begin([_request("a"), _request("bad"), _request("c"), _request("x", code="b")], CHEAP)
    assert again.idle_s() == 0.0
    second = again.finish(pending)
    assert later.batches == [["bad", "c"]]
    assert second[0] == first[0]  # with units, shares of instructions, launches and notes
    assert (second[1], second[2]) == (first[1], _profile(_request("c"), CHEAP))
    assert isinstance(second[3], Profile)
    assert second[3] == replace(first[2], key="x")  # type: ignore[type-var]  # the same machine code by another name
    assert (again.asked, again.answered) == (2, 2)
    assert 0.0 < again.idle_s() < 5.0
    assert again.finish(again.begin([_request("a")], FULL)) == [_profile(_request("a"), FULL)]
    assert later.batches[1:] == [["a"]]  # other counters
    again.close()


def test_a_service_answers_from_the_file(tmp_path: Path) -> None:
    for taken in (1, 0):
        inner = Profiler()
        stored = StoredCounters(inner, tmp_path / "counters.sqlite")
        service = ProfileService(stored, nullcontext(), share=100.0)
        answer = service.submit(_request("a"), FULL, Priority.EXPANSION).result(timeout=10.0)
        service.close()
        assert answer == _profile(_request("a"), FULL)
        assert len(inner.batches) == taken


def test_the_insight_of_all_runs_has_the_file_before_its_profiler(tmp_path: Path) -> None:
    """And is not held to the profiler's share of the time."""
    given: dict[str, Any] = {}

    class Machine:
        def insight(self, spec: Any, evaluator: Any, every: bool, share: float, before: Any, batch: int) -> Any:
            given.update(evaluator=evaluator, share=share, batch=batch, source=before(Profiler()))
            return Counters()

    fake = FakeEvaluator()
    shared = SharedEvaluator(fake, tmp_path / "store")
    shared.open(program())
    machine = SharedMachine(Machine(), tmp_path / "store")  # type: ignore[arg-type]
    insight = machine.insight(None, shared)  # type: ignore[arg-type]
    assert insight is machine.insight(None, shared) is machine.insights  # type: ignore[arg-type]
    assert given["evaluator"] is fake
    assert given["share"] > 1.0
    assert given["batch"] > BATCH
    assert given["source"] is machine.counters
    given["source"].finish(given["source"].begin([_request("a")], CHEAP))
    assert (machine.counters.asked, len(list((tmp_path / "store").glob("*.counters.sqlite")))) == (1, 1)
    given["source"].close()
    shared.end()


def test_a_shared_front_is_asked_like_any_other() -> None:
    """A search by the tuner asked it for templates, and it had none to give."""
    public = {name for name, value in vars(BuildWorkers).items() if callable(value) and not name.startswith("_")}
    assert {"build", "propose", "offers", "close"} <= public
    for name in public:
        wanted, ours = (inspect.signature(getattr(one, name)).parameters for one in (BuildWorkers, SharedFront))
        assert list(wanted) == list(ours), name


def test_what_rules_propose_is_asked_once_for_all_runs() -> None:
    asked: list[str] = []

    class Asked:
        original_program: Any = None

        def propose(self, of: Any) -> Any:
            asked.append("proposed")
            return [edit(of, "// faster")], []

        def offers(self, of: Any) -> Any:
            asked.append("offered")
            return ["one"]

        def build(self, of: Any) -> Any:
            return of.data.decode()

        def close(self) -> None:
            asked.append("closed")

    front = SharedFront(cast(BuildWorkers, Asked()))
    front.original_program = program()
    found = [front.propose(program())[0] for _ in range(3)]
    assert [front.offers(program()) for _ in range(2)] == [["one"], ["one"]]
    front.close()  # a run ends
    assert front.build(program("other\n")) == "other\n"
    found[0].clear()  # what one run does with its list is its own affair
    assert [len(one) for one in found] == [0, 1, 1]
    assert asked == ["proposed", "offered"]
    front.end()
    assert asked[-1] == "closed"


def test_the_time_of_all_points_of_a_template_is_booked_with_the_search(tmp_path: Path) -> None:
    """It was counted as nobody's time, so as overhead."""
    fake = FakeEvaluator()
    shared = SharedEvaluator(fake, tmp_path / "store")

    class Inner:
        def search(self, of: Any, proposal: Any, champion: Any, left: Any, builds: Any, known: Any) -> Any:
            text = program("kernel\n// speed 2.0 #0\n")
            built = fake.build(text)
            evaluation, _ = fake.evaluate(built, champion)
            yield []
            return SimpleNamespace(
                proposal=proposal, program=text, built=built, evaluation=evaluation, against=None, points=5,
                stage_s={"verify": 1.5, "time": 2.5},
            )  # fmt: skip

        def ready(self, of: Any, proposal: Any, executor: Any) -> None:
            pass

        def points_of(self, notes: Any) -> int:
            return 5

    def propose(of: Any) -> list[Any]:
        found = edit(of, "// speed 2.0 #0")
        return [] if "#0" in of.data.decode() else [replace(found, proposer="tuner")]

    search = _search(shared, tmp_path, 0, Inner(), propose)
    assert search.progress.stage_s["verify"] == pytest.approx(1.5)
    assert search.progress.stage_s["time"] == pytest.approx(2.5)
    assert search.progress.evaluated == 5
    shared.end()
