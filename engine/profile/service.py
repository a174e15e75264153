"""Profiles beside a search: a thread that owns the profiler, batches requests by priority, and keeps to its share of the GPU."""

from __future__ import annotations

import itertools
import threading
import time
from bisect import insort
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from engine.profile.counters import MetricSet, Profile, ProfileFailure, ProfileRequest

BATCH = 16
# Of a search's time that the GPU may spend under the profiler, and what of it goes to each set: below a tenth, and most of it for the
# counters of candidates. A search on an H200 verifies ten a second and more, so the share counts the best of them.
SHARE = 0.07
_PARTS = {"cheap": 0.7, "full": 0.2, "lines": 0.1}
# How long a batch waits to fill up, in seconds; a search makes some 5 to 20 candidates a second.
_LINGER_S = 0.3
_LINGER_BACKGROUND_S = 1.5
_TICK_S = 0.05
_CLOSE_S = 5.0  # for a report that is being written; nobody reads it any more
_KILLED_S = 60.0
_LEAST = 4  # kernels of a batch that nobody waits for: each batch costs a process of some two seconds beside the search
_LATE = "the search ended before this candidate's turn"
# What one kernel holds the GPU for, until it was measured here: one pass, and some thirty.
_FIRST_GUESS_S = {"cheap": 0.03, "full": 0.2, "lines": 0.2}

Answer = Profile | ProfileFailure


class Priority(IntEnum):
    """What goes first."""

    # The trajectory, after the search, and what a model is asked about: neither held to the share of the time nor waiting for company.
    REQUIRED = 0
    EXPANSION = 1  # a node about to be built upon
    BACKGROUND = 2  # a verified candidate


class Source(Protocol):
    """What the service drives: `engine.profile.ncu.Profiler`."""

    unusable: str

    def warm_up(self, metrics: MetricSet) -> None: ...

    def begin(
        self, batch: Sequence[ProfileRequest], metrics: MetricSet, gpu: AbstractContextManager[object] | None = None
    ) -> Any: ...

    def finish(self, pending: Any) -> list[Answer]: ...

    def interrupt(self) -> None: ...  # from another thread

    def close(self) -> None: ...


@dataclass(frozen=True, eq=False)
class _OpenRequest:
    turn: tuple[int, float, int]  # by priority, then what is worth most, then what was asked first: the least is next
    request: ProfileRequest
    metrics: MetricSet
    future: Future[Answer]
    since: float

    @property
    def required(self) -> bool:
        return self.turn[0] == Priority.REQUIRED

    @property
    def in_background(self) -> bool:
        return self.turn[0] == Priority.BACKGROUND


class ProfileService:
    """Answers requests with futures that never raise: a profile, or a declared failure.

    `source` is used on the service's own thread. `gpu` is the lock that timing holds too (`engine.process.fair_lock.Turns`, or
    one as fair): it is held while kernels run under the profiler, and not while `ncu` starts or writes. `share` bounds the part of the time
    since the service was made that the GPU is held for requests that are not required (math.inf: no bound). `prepare` names the
    sets to warm up for at once. While one batch's profiler writes its report the next one sets up, unless the report is of what is
    required and the next batch is not.
    """

    def __init__(
        self, source: Source, gpu: AbstractContextManager[object], *, share: float = SHARE, batch: int = BATCH,
        prepare: Sequence[MetricSet] = (),
    ) -> None:  # fmt: skip
        self._source, self._gpu, self._share, self._batch, self._prepare = source, gpu, share, batch, tuple(prepare)
        self._jobs: defaultdict[str, list[_OpenRequest]] = defaultdict(list)  # by set of counters, the next one first
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closing = self._concluding = False
        self._begin = time.monotonic()
        self._each_s = dict(_FIRST_GUESS_S)
        self.held_s = 0.0
        self._held_by: defaultdict[str, float] = defaultdict(float)  # set of counters
        self.profiled = 0
        self._beginning = False  # a batch is on its way to the GPU, or on it
        self.unusable = source.unusable  # why no profile can be had, once that is known
        self._thread = threading.Thread(target=self._serve, name="profiler", daemon=True)
        self._thread.start()

    def submit(
        self, request: ProfileRequest, metrics: MetricSet, priority: Priority = Priority.BACKGROUND, worth: float = 0.0
    ) -> Future[Answer]:
        """Ask for one profile; of equal priority what is worth most goes first. A future that is cancelled before its turn costs
        nothing."""
        future: Future[Answer] = Future()
        with self._changed:
            refused = self._closing or (self._concluding and priority != Priority.REQUIRED)
            if refused or self.unusable:
                closed = ProfileFailure(request.key, "closed", _LATE)
                future.set_result(closed if refused else ProfileFailure(request.key, "no profiler", self.unusable))
                return future
            turn = int(priority), -worth, next(self._numbers)
            insort(self._jobs[metrics.name], _OpenRequest(turn, request, metrics, future, time.monotonic()), key=_turn)
            self._changed.notify()
        return future

    def together(self) -> AbstractContextManager[object]:
        """Requests made within go into one batch for each set of counters, as far as one holds them."""
        return self._changed

    def conclude(self) -> None:
        """The search is about to end: from now on only what is required is begun; what waits besides is answered with a failure."""
        with self._changed:
            self._concluding = True
            waiting = self._take_all()
            for job in waiting:
                if job.required:
                    self._jobs[job.metrics.name].append(job)
        for job in waiting:
            if not job.required:
                _answer(job, ProfileFailure(job.request.key, "closed", _LATE))

    def settle(self, patience_s: float = 3.0) -> None:
        """The search has ended: `conclude`, and let what runs have the GPU first."""
        self.conclude()
        with self._changed:
            self._changed.wait_for(lambda: not self._beginning, timeout=patience_s)

    def close(self) -> None:
        """Answer what waits with a failure, end the profiler and its thread, by force where it does not end in some seconds."""
        with self._changed:
            self._closing = True
            waiting = self._take_all()
            self._changed.notify()
        for job in waiting:
            _answer(job, ProfileFailure(job.request.key, "closed", _LATE))
        self._thread.join(timeout=_CLOSE_S)
        if self._thread.is_alive():
            self._source.interrupt()
            self._thread.join(timeout=_KILLED_S)

    def _take_all(self) -> list[_OpenRequest]:
        """All that waits, with the lock held."""
        waiting = [job for jobs in self._jobs.values() for job in jobs]
        self._jobs.clear()
        return waiting

    # ---- the thread

    def _serve(self) -> None:
        source = self._source
        try:
            if source.unusable:
                self._give_up(source.unusable)
                return
            for metrics in self._prepare:
                source.warm_up(metrics)
            running: _Batch | None = None
            while (jobs := self._next(wait=running is None)) is not None:
                if jobs and running is not None and running.required and not jobs[0].required:
                    self._finish(source, running)  # somebody waits for it: it waits for nobody
                    running = None
                begun = self._begin_batch(source, jobs) if jobs else None
                if running is not None:
                    self._finish(source, running)
                running = begun
                if source.unusable:
                    if running is not None:
                        self._finish(source, running)
                    self._give_up(source.unusable)
                    return
            if running is not None:
                self._finish(source, running)
        except Exception as error:  # a defect of the profiler costs the search a signal, never its life
            self._give_up(f"the profiler failed: {error}")
        finally:
            source.close()

    def _give_up(self, why: str) -> None:
        with self._changed:
            self.unusable = why
            waiting = self._take_all()
        for job in waiting:
            _answer(job, ProfileFailure(job.request.key, "no profiler", why))

    def _next(self, *, wait: bool) -> list[_OpenRequest] | None:
        """The next batch, all of one set of counters; [] where none is due yet, None at the end."""
        with self._changed:
            while not (batches := self._batches()) and not self._closing:
                if not wait:
                    return []
                self._changed.wait()
            if self._closing:
                return None
            alike: list[_OpenRequest] = []
            pauses: list[float] = []
            for jobs in batches:  # each set of counters has time of its own
                alike, pause_s = self._due(jobs)
                if alike:
                    break
                pauses.append(pause_s)
                if self._affordable(jobs[0].metrics):
                    break  # it only waits for company, and goes first
            if not alike:
                if wait:
                    self._changed.wait(min(pauses))
                return []
            for job in alike:
                self._jobs[job.metrics.name].remove(job)
            started = [job for job in alike if job.future.set_running_or_notify_cancel()]
            self._beginning = bool(started)
        return started

    def _batches(self) -> list[list[_OpenRequest]]:
        """What would be next of each set of counters, the most urgent first. With the lock held.

        No more is looked at: hundreds wait of which the share has no time for most.
        """
        found = []
        for jobs in self._jobs.values():
            ready: list[_OpenRequest] = []
            while len(ready) < min(self._batch, len(jobs)):
                if jobs[len(ready)].future.cancelled():
                    del jobs[len(ready)]
                else:
                    ready.append(jobs[len(ready)])
            if ready:
                found.append(ready)
        return sorted(found, key=lambda ready: ready[0].turn)

    def _due(self, alike: list[_OpenRequest]) -> tuple[list[_OpenRequest], float]:
        """What of a batch may run now; where nothing may, for how long to wait in seconds."""
        first = alike[0]
        if first.required:  # alone: what comes along would not count against the share
            return [job for job in alike if job.required], 0.0
        linger_s = _LINGER_BACKGROUND_S if first.in_background else _LINGER_S
        waited = time.monotonic() - min(job.since for job in alike)
        if len(alike) < self._batch and waited < linger_s:
            return [], linger_s - waited
        affordable = self._affordable(first.metrics)
        least = _LEAST if first.in_background else 1
        return ([], _TICK_S) if affordable < min(len(alike), least) else (alike[:affordable], 0.0)

    def _affordable(self, metrics: MetricSet) -> int:
        """How many kernels the share still has time for."""
        part = self._share * _PARTS.get(metrics.name, _PARTS["full"])
        left = part * (time.monotonic() - self._begin) - self._held_by[metrics.name]
        return int(min(self._batch, max(0.0, left / self._each_s.get(metrics.name, _FIRST_GUESS_S["full"]))))

    def _begin_batch(self, source: Source, jobs: list[_OpenRequest]) -> _Batch:
        batch = _Batch(jobs, _HeldLock(self._gpu))
        try:
            batch.pending = source.begin([job.request for job in jobs], jobs[0].metrics, batch.watch)
        except Exception as error:  # a defect of the profiler costs the search a signal, never its life
            batch.problem = f"the profiler failed: {error}"
        self._count(batch)
        with self._changed:
            self._beginning = False
            self._changed.notify_all()
        return batch

    def _finish(self, source: Source, batch: _Batch) -> None:
        jobs = batch.jobs
        answers: list[Answer]
        try:
            answers = [] if batch.problem else source.finish(batch.pending)
        except Exception as error:  # as above
            batch.problem = f"the profiler failed: {error}"
        if batch.problem:
            answers = [ProfileFailure(job.request.key, "lost", batch.problem) for job in jobs]
        self._count(batch)
        self.profiled += sum(isinstance(a, Profile) for a in answers)
        if batch.watch.held_s:
            self._each_s[jobs[0].metrics.name] = batch.watch.held_s / len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            job.future.set_result(answer)

    def _count(self, batch: _Batch) -> None:
        held_s, batch.counted_s = batch.watch.held_s - batch.counted_s, batch.watch.held_s
        self.held_s += held_s
        if not batch.required:
            self._held_by[batch.jobs[0].metrics.name] += held_s


@dataclass
class _Batch:
    jobs: list[_OpenRequest]
    watch: _HeldLock
    pending: Any = None
    problem: str = ""
    counted_s: float = 0.0

    @property
    def required(self) -> bool:
        return self.jobs[0].required


class _HeldLock:
    """The lock, and for how long it was held in seconds; may be entered several times in a row."""

    def __init__(self, inner: AbstractContextManager[object]) -> None:
        self._inner = inner
        self.held_s = 0.0
        self._since = 0.0

    def __enter__(self) -> None:
        self._inner.__enter__()
        self._since = time.monotonic()

    def __exit__(self, *error: object) -> None:
        self.held_s += time.monotonic() - self._since
        self._inner.__exit__(None, None, None)


def _turn(job: _OpenRequest) -> tuple[int, float, int]:
    return job.turn


def _answer(job: _OpenRequest, answer: Answer) -> None:
    if job.future.set_running_or_notify_cancel():
        job.future.set_result(answer)
