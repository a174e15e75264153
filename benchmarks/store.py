"""One store of evaluations that many searches of a kernel share: each program is built, verified and measured once.

Searches are then compared on the same measurements, paired exactly, as in Kernel Tuner's simulation mode (van Werkhoven 2019):
what differs between two of them is which candidates they asked for, never how a candidate happened to be timed. Everything else of a
search runs as always: proposals, tree, journal, confirmation. A candidate is measured against the original alone, with the same
effort whatever the incumbent is; counters of the profiler are shared as well, and a diagnosis is waited for. As nobody compares the
time that such a search takes, the profiler is not held to its share of the GPU's, and what it counted is kept in a file too.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from benchmarks.counters import StoredCounters
from engine.builders.builders import BuildWorkers
from engine.compile.built import Built, NotBuilt
from engine.evaluate.evaluator import Evaluator, Signals, nothing
from engine.model import Evaluation, Program
from engine.rewrite.proposal import Proposal
from engine.rules import RuleFailure
from engine.run.machine import Machine
from engine.search.journal import evaluation_from_json
from engine.search.participants import Observation
from engine.search.profiling import Insight, StepEvidence
from engine.spec.kernel_spec import KernelSpec
from engine.tune.offers import Offer

T = TypeVar("T")

_DIAGNOSED_S = 20.0  # starting Nsight Compute takes some four seconds, a kernel half a second
_SHARE = 100.0  # of the time, for the profiler: as soon as it can
_BATCH = 64  # programs for one start of the profiler: nobody waits for a single one, and a start takes seconds
_IDLE_S = 5.0  # a profiler that does nothing for so long has answered all it can: a batch waits 1.5 s for company


class Store:
    """Evaluations by machine code and launches, in one file for each original and machine."""

    def __init__(self, folder: Path, original: Program, machine: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(f"{original.digest}|{machine}".encode()).hexdigest()[:16]
        self.counters = folder / f"{name}.counters.sqlite"
        self._db = sqlite3.connect(folder / f"{name}.sqlite", isolation_level=None, check_same_thread=False)
        self._db.execute("CREATE TABLE IF NOT EXISTS evaluations (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT")
        rows = self._db.execute("SELECT key, value FROM evaluations")
        self._known = {key: evaluation_from_json(json.loads(value)) for key, value in rows}
        self.measured = self.answered = 0

    def get(self, built: Built) -> Evaluation | None:
        """What is known of it."""
        found = self.peek(built)
        self.answered += found is not None
        return found

    def peek(self, built: Built) -> Evaluation | None:
        """As `get`, not counted."""
        return self._known.get(_key(built))

    def put(self, built: Built, evaluation: Evaluation) -> None:
        """Keep it."""
        key = _key(built)
        self._known[key] = evaluation
        value = json.dumps(dataclasses.asdict(evaluation))
        self._db.execute("INSERT OR REPLACE INTO evaluations VALUES (?, ?)", (key, value))
        self.measured += 1

    def close(self) -> None:
        """Close the file."""
        self._db.close()


def _key(built: Built) -> str:
    return hashlib.sha256(repr(built.identity).encode()).hexdigest()


class SharedEvaluator:
    """An `Evaluator` before another one. It outlives runs: their `close` does nothing, `end` does."""

    def __init__(self, inner: Evaluator, folder: Path) -> None:
        self.inner, self._folder = inner, folder
        self._opened: tuple[Built, Evaluation] | None = None
        self._built: dict[str, Built | NotBuilt] = {}
        self.store: Store | None = None
        self.measuring_s = 0.0  # opening and evaluating what was not in the store

    @property
    def signals(self) -> Signals:
        return self.inner.signals

    def open(self, original: Program, ready: Callable[[], None] = nothing) -> tuple[Built, Evaluation]:
        if self._opened is not None:
            ready()
        else:
            begin = time.monotonic()
            self._opened = self.inner.open(original, ready)
            self.measuring_s += time.monotonic() - begin
            device = self.signals.device
            self.store = Store(
                self._folder, original, f"{device.get('uuid') or device.get('arch')}|{self.signals.mode}"
            )
        return self._opened

    def build(self, program: Program, *, by_rules: bool = False) -> Built:
        found = self._built.get(program.digest)
        if found is None:
            try:
                found = self.inner.build(program, by_rules=by_rules)
            except NotBuilt as error:
                found = error
            self._built[program.digest] = found
        if isinstance(found, NotBuilt):
            raise found
        return found

    def evaluate(
        self, built: Built, incumbent: Built | None, *, brief: bool = False
    ) -> tuple[Evaluation, float | None]:
        """As `Evaluator.evaluate`, always in full: what is stored is for every run."""
        assert self.store is not None
        found = self.store.get(built)
        if found is None:
            begin = time.monotonic()
            found, _ = self.inner.evaluate(built, None)
            self.measuring_s += time.monotonic() - begin
            self.store.put(built, found)
        return found, self._against(found, incumbent)

    def _against(self, evaluation: Evaluation, incumbent: Built | None) -> float | None:
        """The speedup over the incumbent, from what both gained over the original."""
        held = self.store.peek(incumbent) if self.store is not None and incumbent is not None else None
        if held is None or held.measurement is None or evaluation.measurement is None:
            return None
        return evaluation.measurement.ratio / held.measurement.ratio

    def retime(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        return self.evaluate(built, incumbent)

    def begin_confirming(self, build: Callable[[], Built]) -> None:
        """Nothing is begun ahead."""

    def confirm(self, built: Built, *, any_speed: bool = False) -> Evaluation:
        """What the search measured: a comparison of searches needs no second look at what they found."""
        return self.evaluate(built, None)[0]

    def close(self) -> None:
        """Nothing: the next run uses it again."""

    def end(self) -> None:
        """End it for good."""
        self.inner.close()
        if self.store is not None:
            self.store.close()


class SharedInsight:
    """An `Insight` before another one, for the runs of one kernel one after the other: `begin` starts each.

    A run that learns puts off what it would ask of the profiler until `drain`, so that a few large batches hold it all; the other runs
    wait for each diagnosis, because what a search knows must not depend on how soon it asks.
    """

    def __init__(self, inner: Insight, idle_s: Callable[[], float] = lambda: 0.0) -> None:
        self._inner, self._idle_s = inner, idle_s
        self._seen: dict[str, Observation] = {}  # by digest
        self._asked: dict[str, int] = {}  # digests, and the numbers that the inner one knows programs by
        self._digests: dict[int, str] = {}
        self._nodes: dict[str, int] = {}
        self._passed: dict[str, tuple[Built, Evaluation]] = {}
        self._arrived: list[Observation] = []
        self._learns, self._root = False, ""
        self._to_count: dict[str, None] = {}  # digests, put off
        self._to_look: dict[str, tuple[Built, Evaluation]] = {}
        self._looked: set[str] = set()
        self._unanswered: set[str] = set()  # digests that no diagnosis came for: waited for once
        self.waited_s = 0.0

    def begin(self, learns: bool = False) -> None:
        """A new run begins: its nodes have other numbers."""
        self._nodes, self._arrived, self._learns = {}, [], learns

    def look(self, built: Built, evaluation: Evaluation) -> None:
        """Have it diagnosed, and wait; a run that learns waits for the original alone."""
        digest = built.program.digest
        if self._learns and digest != self._root:
            if digest not in self._looked:
                self._to_look[digest] = built, evaluation
            return
        self._looked.add(digest)
        self._inner.look(built, evaluation)
        begin = time.monotonic()
        while self._inner.known(digest) is None and digest not in self._unanswered:
            waited = time.monotonic() - begin
            if waited > _DIAGNOSED_S or min(waited, self._idle_s()) > _IDLE_S:
                self._unanswered.add(digest)
            time.sleep(0.02)
        self.waited_s += time.monotonic() - begin

    def passed(self, node: Any, built: Built) -> None:
        digest = built.program.digest
        self._nodes[digest] = node.id
        self._passed[digest] = built, node.evaluation
        if node.id == 0:
            self._root = digest
        if digest in self._seen:
            self._arrived.append(dataclasses.replace(self._seen[digest], node=node.id))
        elif self._learns and node.id != 0 and digest not in self._asked:
            self._to_count[digest] = None
        elif digest not in self._asked:
            # The original keeps its number: it is looked at in full.
            self._count(digest, 0 if node.id == 0 else len(self._asked) + 1)

    def _count(self, digest: str, number: int) -> None:
        built, evaluation = self._passed[digest]
        self._asked[digest] = number
        self._digests[number] = digest
        self._inner.passed(SimpleNamespace(id=number, evaluation=evaluation), built)  # type: ignore[arg-type]

    def arrivals(self) -> Sequence[Observation]:
        for seen in self._inner.arrivals():
            digest = self._digests[seen.node]
            self._seen[digest] = seen
            if digest in self._nodes:
                self._arrived.append(dataclasses.replace(seen, node=self._nodes[digest]))
        came, self._arrived = self._arrived, []
        return came

    def drain(self, limit_s: float) -> tuple[int, int]:
        """Ask for what was put off and wait for what was asked for, at most so long: how much was put off, and how many counters
        are still missing (or cannot be had)."""
        counted, looked = self._to_count, self._to_look
        self._to_count, self._to_look = {}, {}
        for digest in counted:
            self._count(digest, len(self._asked) + 1)
        for digest, (built, evaluation) in looked.items():
            self._looked.add(digest)
            self._inner.look(built, evaluation)
        begin = time.monotonic()
        while True:
            self._arrived += self.arrivals()
            missing = len(self._asked) - len(self._seen)
            unknown = any(self._inner.known(digest) is None for digest in looked)
            waited = time.monotonic() - begin
            if not (missing or unknown) or waited > limit_s or min(waited, self._idle_s()) > _IDLE_S:
                return len(counted) + len(looked), missing
            time.sleep(0.1)

    @property
    def unusable(self) -> str:
        return self._inner.unusable

    def weigh(self, digest: str, proposals: Any) -> Any:
        self.want(digest)
        return None if self._inner.known(digest) is None else self._inner.weigh(digest, proposals)

    def want(self, digest: str) -> None:
        if digest in self._passed and digest not in self._unanswered and self._inner.known(digest) is None:
            self.look(*self._passed[digest])

    def known(self, digest: str) -> Any:
        return self._inner.known(digest)

    def require(self, node: Any, build: Any) -> Future[Any]:
        return self._inner.require(node, build)

    def foresee(self, path: Any) -> None:
        """Nothing: no trajectory is asked for."""

    def prepare(self, path: Any) -> None:
        """Nothing, as `foresee`."""

    def trajectory(self, path: Any, patience_s: float = 0.0) -> list[StepEvidence]:
        """None: nobody reads it."""
        return []

    def stages(self) -> Mapping[str, float]:
        return {}

    def close(self) -> tuple[str, ...]:
        return ()

    def end(self) -> tuple[str, ...]:
        """End it for good."""
        return self._inner.close()


class SharedFront:
    """the workers that read and build candidates, for all runs of one kernel: what rules and templates offer is asked once."""

    def __init__(self, inner: BuildWorkers) -> None:
        self._inner = inner
        self._proposed: dict[str, Future[tuple[list[Proposal], list[RuleFailure]]]] = {}
        self._offered: dict[str, Future[list[Offer]]] = {}
        self._lock = threading.Lock()

    @property
    def original_program(self) -> Program | None:
        return self._inner.original_program

    @original_program.setter
    def original_program(self, program: Program | None) -> None:
        self._inner.original_program = program

    def warm(self, original: Program, at_once: int) -> None:
        self._inner.warm(original, at_once)

    def build(self, program: Program) -> Built:
        return self._inner.build(program)

    def propose(self, program: Program) -> tuple[list[Proposal], list[RuleFailure]]:
        found, failures = self._once(self._proposed, self._inner.propose, program)
        return list(found), list(failures)

    def offers(self, program: Program) -> list[Offer]:
        return list(self._once(self._offered, self._inner.offers, program))

    def _once(self, known: dict[str, Future[T]], ask: Callable[[Program], T], program: Program) -> T:
        with self._lock:
            there = known.get(program.digest)
            future = known.setdefault(program.digest, Future())
        if there is None:
            try:
                future.set_result(ask(program))
            except BaseException as error:  # an interrupt, say: others must not wait for what never comes
                future.set_exception(error)
        return future.result()

    def close(self) -> None:
        """Nothing: the next run uses it again."""

    def end(self) -> None:
        """End it for good."""
        self._inner.close()


class SharedMachine:
    """A `Machine` whose runs of one kernel share evaluations, counters and the workers that read and build candidates."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine, self._folder = machine, folder
        self.fronts: SharedFront | None = None
        self.counters: StoredCounters | None = None
        self.evaluators: SharedEvaluator | None = None
        self.insights: SharedInsight | None = None
        self.learns = False  # the runs to come put off what they would ask of the profiler
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def front(self, spec: KernelSpec, root: Path, spec_path: str | None) -> SharedFront | None:
        if self.fronts is None:
            inner = self._machine.front(spec, root, spec_path)
            self.fronts = SharedFront(inner) if inner is not None else None
        return self.fronts

    def evaluator(self, spec: KernelSpec, root: Path, spec_path: str | None, **more: Any) -> SharedEvaluator:
        if self.evaluators is None:
            self.evaluators = SharedEvaluator(self._machine.evaluator(spec, root, spec_path, **more), self._folder)
        return self.evaluators

    def insight(self, spec: KernelSpec, evaluator: SharedEvaluator, every: bool = False) -> SharedInsight | None:
        if self.insights is None:
            assert evaluator.store is not None
            path = evaluator.store.counters

            def before(source: Any) -> Any:
                self.counters = StoredCounters(source, path)
                return self.counters

            inner = self._machine.insight(spec, evaluator.inner, every, _SHARE, before, _BATCH)
            if inner is not None and self.counters is not None:
                self.insights = SharedInsight(inner, self.counters.idle_s)
        if self.insights is not None:
            self.insights.begin(self.learns)
        return self.insights

    def watch(self, spec: KernelSpec, evaluator: SharedEvaluator) -> Any:
        return self._machine.watch(spec, evaluator.inner)

    def close(self) -> None:
        """End what the runs shared; the machine itself stays."""
        if self.insights is not None:
            self.insights.end()
        if self.evaluators is not None:
            self.evaluators.end()
        if self.fronts is not None:
            self.fronts.end()
