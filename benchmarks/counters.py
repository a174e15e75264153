"""Counters that the profiler once took, in a file: asked for again, they come from there.

This stands between the service that batches requests and Nsight Compute (`engine.profile.service.Source`), so that all else is as in
any search. Counters belong to machine code, launches, inputs and device; a file is for one original on one device.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.model import LaunchConfig
from engine.profile.counters import Counter, MetricSet, Profile, ProfileRequest, StepProfile
from engine.profile.service import Answer, Source


@dataclass
class _Pending:
    known: list[Answer | None]
    asked: list[ProfileRequest]
    metrics: MetricSet
    inner: Any


class StoredCounters:
    """A `Source` before another one; the service's thread uses it, others ask `idle_s`."""

    def __init__(self, inner: Source, path: Path) -> None:
        self._inner = inner
        path.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._db.execute("CREATE TABLE IF NOT EXISTS profiles (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT")
        self._lock = threading.Lock()
        self._at_work, self._last = 0, time.monotonic()
        self.asked = self.answered = 0  # requests that went on to the profiler, and that did not

    @property
    def unusable(self) -> str:
        return self._inner.unusable

    def warm_up(self, metrics: MetricSet) -> None:
        self._begin()
        try:
            self._inner.warm_up(metrics)
        finally:
            self._end()

    def begin(
        self, batch: Sequence[ProfileRequest], metrics: MetricSet, gpu: AbstractContextManager[object] | None = None
    ) -> Any:
        self._begin()
        try:
            known = [self._get(request, metrics) for request in batch]
            asked = [request for request, found in zip(batch, known, strict=True) if found is None]
            self.asked += len(asked)
            self.answered += len(batch) - len(asked)
            return _Pending(list(known), asked, metrics, self._inner.begin(asked, metrics, gpu) if asked else None)
        except BaseException:
            self._end()
            raise

    def finish(self, pending: Any) -> list[Answer]:
        try:
            came = iter(self._inner.finish(pending.inner) if pending.asked else ())
            answers: list[Answer] = [found if found is not None else next(came) for found in pending.known]
            fresh = [answer for found, answer in zip(pending.known, answers, strict=True) if found is None]
            for request, answer in zip(pending.asked, fresh, strict=True):
                if isinstance(answer, Profile):
                    self._put(request, pending.metrics, answer)
            return answers
        finally:
            self._end()

    def idle_s(self) -> float:
        """For how long nothing was asked, in seconds; 0 while a batch is under way."""
        with self._lock:
            return 0.0 if self._at_work else time.monotonic() - self._last

    def interrupt(self) -> None:
        self._inner.interrupt()

    def close(self) -> None:
        self._inner.close()
        self._db.close()

    def _begin(self) -> None:
        with self._lock:
            self._at_work += 1

    def _end(self) -> None:
        with self._lock:
            self._at_work, self._last = self._at_work - 1, time.monotonic()

    def _get(self, request: ProfileRequest, metrics: MetricSet) -> Profile | None:
        row = self._db.execute("SELECT value FROM profiles WHERE key = ?", (_key(request, metrics),)).fetchone()
        return None if row is None else dataclasses.replace(profile_from_json(json.loads(row[0])), key=request.key)

    def _put(self, request: ProfileRequest, metrics: MetricSet, profile: Profile) -> None:
        value = json.dumps(dataclasses.asdict(profile))
        self._db.execute("INSERT OR REPLACE INTO profiles VALUES (?, ?)", (_key(request, metrics), value))


def _key(request: ProfileRequest, metrics: MetricSet) -> str:
    what = (
        request.binary.code_hash,
        request.binary.entries,
        request.launches,
        request.case,
        metrics.name,
        metrics.metrics,
    )
    return hashlib.sha256(repr(what).encode()).hexdigest()


def profile_from_json(data: dict[str, Any]) -> Profile:
    """A Profile from its `dataclasses.asdict` form."""
    steps = []
    for step in data["steps"]:
        launch = step["launch"]
        counters = {
            name: Counter(c["value"], c["unit"], {int(address): share for address, share in c["instances"].items()})
            for name, c in step["counters"].items()
        }
        launched = LaunchConfig(tuple(launch["grid"]), tuple(launch["block"]), launch["shared_bytes"])
        steps.append(StepProfile(step["kernel"], launched, counters, tuple(step["missing"]), step["passes"]))
    return Profile(data["key"], data["metrics"], data["case"], tuple(steps), data["version"], tuple(data["notes"]))
