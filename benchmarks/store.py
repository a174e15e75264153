"""One store of evaluations that many searches of a kernel share: each program is built, verified and measured once.

Searches are then compared on the same measurements, paired exactly, as in Kernel Tuner's simulation mode (van Werkhoven 2019):
what differs between two of them is which candidates they asked for, never how a candidate happened to be timed. Everything else of a
search runs as always: proposals, tree, journal, confirmation. A candidate is measured against the original alone, with the same
effort whatever the incumbent is; counters of the profiler are shared as well, and a diagnosis is waited for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from engine.evaluate.model import Built, Evaluator, NotBuilt, Signals
from engine.machine import Machine
from engine.model import Evaluation, Program
from engine.search.insight import Evidence, Insight
from engine.search.journal import evaluation_from_json
from engine.search.loop import Observation
from engine.spec.model import KernelSpec

_DIAGNOSED_S = 20.0  # starting Nsight Compute takes some four seconds, a kernel half a second


class Store:
    """Evaluations by machine code and launches, in one file for each original and machine."""

    def __init__(self, folder: Path, original: Program, machine: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = hashlib.sha256(f"{original.digest}|{machine}".encode()).hexdigest()[:16]
        self._db = sqlite3.connect(folder / f"{name}.sqlite", isolation_level=None)
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

    @property
    def signals(self) -> Signals:
        return self.inner.signals

    def open(self, original: Program) -> tuple[Built, Evaluation]:
        if self._opened is None:
            self._opened = self.inner.open(original)
            device = self.signals.device
            self.store = Store(
                self._folder, original, f"{device.get('uuid') or device.get('arch')}|{self.signals.mode}"
            )
        return self._opened

    def build(self, program: Program) -> Built:
        found = self._built.get(program.digest)
        if found is None:
            try:
                found = self.inner.build(program)
            except NotBuilt as error:
                found = error
            self._built[program.digest] = found
        if isinstance(found, NotBuilt):
            raise found
        return found

    def evaluate(self, built: Built, incumbent: Built | None) -> tuple[Evaluation, float | None]:
        assert self.store is not None
        found = self.store.get(built)
        if found is None:
            found, _ = self.inner.evaluate(built, None)
            self.store.put(built, found)
        return found, self._against(found, incumbent)

    def _against(self, evaluation: Evaluation, incumbent: Built | None) -> float | None:
        """The speedup over the incumbent, from what both gained over the original."""
        held = self.store.peek(incumbent) if self.store is not None and incumbent is not None else None
        if held is None or held.measurement is None or evaluation.measurement is None:
            return None
        return evaluation.measurement.ratio / held.measurement.ratio

    def retime(self, built: Built, incumbent: Built | None, effort: int) -> tuple[Evaluation, float | None]:
        return self.evaluate(built, incumbent)

    def confirm(self, built: Built) -> Evaluation:
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
    """An `Insight` before another one, for the runs of one kernel one after the other: `begin` starts each."""

    def __init__(self, inner: Insight) -> None:
        self._inner = inner
        self._seen: dict[str, Observation] = {}  # by digest
        self._asked: dict[str, int] = {}  # digests, and the numbers that the inner one knows programs by
        self._digests: dict[int, str] = {}
        self._nodes: dict[str, int] = {}
        self._arrived: list[Observation] = []
        self.waited_s = 0.0

    def begin(self) -> None:
        """A new run begins: its nodes have other numbers."""
        self._nodes, self._arrived = {}, []

    def look(self, built: Built, evaluation: Evaluation) -> None:
        """Have it diagnosed, and wait: what a search knows must not depend on how soon it asks."""
        self._inner.look(built, evaluation)
        begin = time.monotonic()
        while self._inner.known(built.program.digest) is None and time.monotonic() - begin < _DIAGNOSED_S:
            time.sleep(0.02)
        self.waited_s += time.monotonic() - begin

    def passed(self, node: Any, built: Built) -> None:
        digest = built.program.digest
        self._nodes[digest] = node.id
        if digest in self._seen:
            self._arrived.append(dataclasses.replace(self._seen[digest], node=node.id))
        elif digest not in self._asked:
            # The original keeps its number: it is looked at in full.
            number = self._asked[digest] = 0 if node.id == 0 else len(self._asked) + 1
            self._digests[number] = digest
            self._inner.passed(SimpleNamespace(id=number, evaluation=node.evaluation), built)  # type: ignore[arg-type]

    def arrivals(self) -> Sequence[Observation]:
        for seen in self._inner.arrivals():
            digest = self._digests[seen.node]
            self._seen[digest] = seen
            if digest in self._nodes:
                self._arrived.append(dataclasses.replace(seen, node=self._nodes[digest]))
        came, self._arrived = self._arrived, []
        return came

    def drain(self, limit_s: float) -> int:
        """Wait for counters that were asked for, at most so long; how many are still missing."""
        begin = time.monotonic()
        while True:
            self._arrived += self.arrivals()
            missing = len(self._asked) - len(self._seen)
            if not missing or time.monotonic() - begin > limit_s:
                return missing
            time.sleep(0.1)

    def weigh(self, digest: str, proposals: Any) -> Any:
        return self._inner.weigh(digest, proposals)

    def want(self, digest: str) -> None:
        self._inner.want(digest)

    def known(self, digest: str) -> Any:
        return self._inner.known(digest)

    def prepare(self, path: Any) -> None:
        """Nothing: no trajectory is asked for."""

    def trajectory(self, path: Any) -> list[Evidence]:
        """None: nobody reads it."""
        return []

    def stages(self) -> Mapping[str, float]:
        return {}

    def close(self) -> tuple[str, ...]:
        return ()

    def end(self) -> tuple[str, ...]:
        """End it for good."""
        return self._inner.close()


class SharedMachine:
    """A `Machine` whose runs of one kernel share evaluations and counters."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine, self._folder = machine, folder
        self.evaluators: SharedEvaluator | None = None
        self.insights: SharedInsight | None = None
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def evaluator(self, spec: KernelSpec, root: Path, spec_path: str | None, **more: Any) -> SharedEvaluator:
        # A front ends with its run, so the shared evaluator does without one.
        more.pop("front", None)
        if self.evaluators is None:
            self.evaluators = SharedEvaluator(self._machine.evaluator(spec, root, spec_path, **more), self._folder)
        return self.evaluators

    def insight(self, spec: KernelSpec, evaluator: SharedEvaluator) -> SharedInsight | None:
        if self.insights is None:
            inner = self._machine.insight(spec, evaluator.inner)
            self.insights = SharedInsight(inner) if inner is not None else None
        if self.insights is not None:
            self.insights.begin()
        return self.insights

    def watch(self, spec: KernelSpec, evaluator: SharedEvaluator) -> Any:
        return self._machine.watch(spec, evaluator.inner)

    def close(self) -> None:
        """End what the runs shared; the machine itself stays."""
        if self.insights is not None:
            self.insights.end()
        if self.evaluators is not None:
            self.evaluators.end()
