"""The threads that build candidates, and which of the builds that wait comes next."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from enum import IntEnum
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Rank(IntEnum):
    """Who is served first: the search within a template, which holds the device; candidates of the tree; templates that wait."""

    WITHIN = 0
    CANDIDATE = 1
    WAITING = 2


class Lane(Executor):
    """Builds of one rank in the order of their submission. Changing `rank` moves those that wait."""

    def __init__(self, queue: BuildQueue, rank: Rank) -> None:
        self._queue, self.rank = queue, rank
        self.waiting: deque[tuple[Future[object], Callable[[], object]]] = deque()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `Executor.submit`. Raises RuntimeError once the queue was shut down."""
        future: Future[T] = Future()
        self._queue.add(self, future, partial(fn, *args, **kwargs))
        return future


class BuildQueue(Executor):
    """An executor of so many threads with lanes; what is submitted to it alone is of the rank of candidates."""

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="build")
        self._lock = threading.Lock()
        self._lanes: list[Lane] = []  # those in which something waits
        self._candidates = Lane(self, Rank.CANDIDATE)
        self._closed = False

    def lane(self, rank: Rank) -> Lane:
        """A lane of its own for builds that change their rank together."""
        return Lane(self, rank)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._candidates.submit(fn, *args, **kwargs)

    def add(self, lane: Lane, future: Future[T], work: Callable[[], T]) -> None:
        """Put a build at the end of a lane. Raises RuntimeError once this was shut down."""
        with self._lock:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            if not lane.waiting:
                self._lanes.append(lane)
            lane.waiting.append((future, work))  # type: ignore[arg-type]  # what a future holds is its submitter's affair
        self._threads.submit(self._next)

    def _next(self) -> None:
        """Do what comes next; nothing where the build that this turn was for was cancelled."""
        while True:
            with self._lock:
                if not self._lanes:
                    return
                lane = min(self._lanes, key=lambda lane: lane.rank)
                future, work = lane.waiting.popleft()
                if not lane.waiting:
                    self._lanes.remove(lane)
            if future.set_running_or_notify_cancel():
                break
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """As `Executor.shutdown`."""
        with self._lock:
            self._closed = True
            waiting = [future for lane in self._lanes for future, _ in lane.waiting] if cancel_futures else []
            if cancel_futures:
                for lane in self._lanes:
                    lane.waiting.clear()
                self._lanes.clear()
        for future in waiting:
            future.cancel()
        self._threads.shutdown(wait=wait)


def lane_of(executor: Executor, rank: Rank) -> Executor:
    """A lane of that rank where the executor has lanes, else the executor."""
    return executor.lane(rank) if isinstance(executor, BuildQueue) else executor


def first(executor: Executor) -> None:
    """Serve a lane before all others from now on."""
    if isinstance(executor, Lane):
        executor.rank = Rank.WITHIN
