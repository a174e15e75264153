"""Profiles beside a search: a thread that owns the profiler, batches requests by priority, and keeps to its share of the GPU."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from engine.profile.model import MetricSet, Profile, ProfileFailure, ProfileRequest

BATCH = 16
SHARE = 0.1  # of a search's time that the GPU may spend under the profiler
_LINGER_S = 0.3  # how long a batch waits to fill up; a search makes some 5 to 20 candidates a second
_TICK_S = 0.05
_LEAST = 4  # kernels of a batch that nobody waits for: each batch costs a process of some two seconds beside the search
# What one kernel holds the GPU for, until it was measured here: one pass, and some thirty.
_FIRST_GUESS_S = {"cheap": 0.03, "full": 0.3}

Answer = Profile | ProfileFailure


class Priority(IntEnum):
    """What goes first."""

    REQUIRED = 0  # the trajectory, after the search: neither held to the share of the time nor waiting for company
    EXPANSION = 1  # a node about to be built upon
    BACKGROUND = 2  # a verified candidate


class Source(Protocol):
    """What the service drives: `engine.profile.ncu.Profiler`."""

    unusable: str

    def warm_up(self, metrics: MetricSet) -> None: ...

    def profile(
        self, batch: Sequence[ProfileRequest], metrics: MetricSet, gpu: AbstractContextManager[object] | None = None
    ) -> list[Answer]: ...

    def close(self) -> None: ...


@dataclass(order=True)
class _Job:
    priority: int
    number: int
    request: ProfileRequest = field(compare=False)
    metrics: MetricSet = field(compare=False)
    future: Future[Answer] = field(compare=False)
    since: float = field(compare=False)


class ProfileService:
    """Answers requests with futures that never raise: a profile, or a declared failure.

    `source` is used on the service's own thread, and must have started nothing before (the sandbox's processes end with
    the thread that started them). `gpu` is the lock that timing holds too (`engine.profile.turns.Turns`, or one as fair): it
    is held while kernels run under the profiler, and not while `ncu` starts or writes. `share` bounds the part of the time
    since the service was made that the GPU is held for requests that are not required. `prepare` names the sets to warm up
    for at once.
    """

    def __init__(
        self, source: Source, gpu: AbstractContextManager[object], *, share: float = SHARE, batch: int = BATCH,
        prepare: Sequence[MetricSet] = (),
    ) -> None:  # fmt: skip
        self._source, self._gpu, self._share, self._batch, self._prepare = source, gpu, share, batch, tuple(prepare)
        self._jobs: list[_Job] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closing = False
        self._begin = time.monotonic()
        self._each_s = dict(_FIRST_GUESS_S)
        self.held_s = 0.0
        self.profiled = 0
        self.unusable = ""  # why no profile can be had, once that is known
        self._thread = threading.Thread(target=self._serve, name="profiler", daemon=True)
        self._thread.start()

    def submit(
        self, request: ProfileRequest, metrics: MetricSet, priority: Priority = Priority.BACKGROUND
    ) -> Future[Answer]:
        """Ask for one profile. A future that is cancelled before its turn costs nothing."""
        future: Future[Answer] = Future()
        with self._changed:
            if self._closing or self.unusable:
                closed = ProfileFailure(request.key, "closed", "the search has ended")
                future.set_result(
                    closed if self._closing else ProfileFailure(request.key, "no profiler", self.unusable)
                )
                return future
            job = _Job(int(priority), next(self._numbers), request, metrics, future, time.monotonic())
            heapq.heappush(self._jobs, job)
            self._changed.notify()
        return future

    def close(self) -> None:
        """Answer what waits with a failure, end the profiler and its thread."""
        with self._changed:
            self._closing = True
            waiting, self._jobs = self._jobs, []
            self._changed.notify()
        for job in waiting:
            _answer(job, ProfileFailure(job.request.key, "closed", "the search ended before this candidate's turn"))
        self._thread.join(timeout=120)

    # ---- the thread

    def _serve(self) -> None:
        source = self._source
        try:
            if source.unusable:
                self._give_up(source.unusable)
                return
            for metrics in self._prepare:
                source.warm_up(metrics)
            while (jobs := self._next()) is not None:
                if jobs:
                    self._run(source, jobs)
                if source.unusable:
                    self._give_up(source.unusable)
                    return
        except Exception as error:  # a defect of the profiler costs the search a signal, never its life
            self._give_up(f"the profiler failed: {error}")
        finally:
            source.close()

    def _give_up(self, why: str) -> None:
        with self._changed:
            self.unusable = why
            waiting, self._jobs = self._jobs, []
        for job in waiting:
            _answer(job, ProfileFailure(job.request.key, "no profiler", why))

    def _next(self) -> list[_Job] | None:
        """The next batch, all of one set of counters; [] where none is due yet, None at the end."""
        with self._changed:
            while not self._jobs and not self._closing:
                self._changed.wait()
            if self._closing:
                return None
            self._jobs = [job for job in self._jobs if not job.future.cancelled()]
            heapq.heapify(self._jobs)
            if not self._jobs:
                return []
            first = self._jobs[0]
            alike = sorted(job for job in self._jobs if job.metrics.name == first.metrics.name)[: self._batch]
            waited = time.monotonic() - first.since
            if first.priority != Priority.REQUIRED:
                if len(alike) < self._batch and waited < _LINGER_S:
                    self._changed.wait(_LINGER_S - waited)
                    return []
                affordable = self._affordable(first.metrics)
                least = _LEAST if first.priority == Priority.BACKGROUND else 1
                if affordable < min(len(alike), least):
                    self._changed.wait(_TICK_S)
                    return []
                alike = alike[:affordable]
            chosen = {job.number for job in alike}
            self._jobs = [job for job in self._jobs if job.number not in chosen]
            heapq.heapify(self._jobs)
        return [job for job in alike if job.future.set_running_or_notify_cancel()]

    def _affordable(self, metrics: MetricSet) -> int:
        """How many kernels the share still has time for."""
        left = self._share * (time.monotonic() - self._begin) - self.held_s
        return max(0, int(left / self._each_s.get(metrics.name, _FIRST_GUESS_S["full"])))

    def _run(self, source: Source, jobs: list[_Job]) -> None:
        watch = _Watch(self._gpu)
        metrics = jobs[0].metrics
        try:
            answers = source.profile([job.request for job in jobs], metrics, watch)
        except Exception as error:  # as above
            answers = [ProfileFailure(job.request.key, "lost", f"the profiler failed: {error}") for job in jobs]
        self.held_s += watch.held_s
        self.profiled += sum(isinstance(a, Profile) for a in answers)
        if watch.held_s:
            self._each_s[metrics.name] = watch.held_s / len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            job.future.set_result(answer)


class _Watch:
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


def _answer(job: _Job, answer: Answer) -> None:
    if job.future.set_running_or_notify_cancel():
        job.future.set_result(answer)
