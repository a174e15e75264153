"""Worker processes of one kind that any thread may use: taken for one call, then given back."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine.errors import MachineError, OptimlError
from engine.process.worker_process import Worker


class Crew:
    """At most `most` processes, started when all are busy: so many at once as are asked for, `at_once` at most. Thread-safe.

    `start` gives a process and `ready` has it set itself up. Where either raises OptimlError who asks is told so, unless others work.
    One that dies is replaced. `ended` is what who asks is told once this was closed.
    """

    def __init__(
        self, start: Callable[[], Worker], ready: Callable[[Worker], object], most: int, *, at_once: int, ended: str
    ) -> None:
        self._start, self._ready, self._most, self._at_once, self._ended = start, ready, most, at_once, ended
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []  # the one that worked last at the end
        self._coming: set[Worker] = set()  # that set themselves up
        self._starting = self._asking = 0
        self._problem: OptimlError | None = None  # why the last one did not start
        self._changed = threading.Condition()
        self._closed = False

    def warm(self, count: int) -> None:
        """Have so many there soon, those counted that are there or about to be."""
        with self._changed:
            while len(self._workers) + self._starting < min(count, self._most) and not self._closed:
                self._grow()

    @contextmanager
    def worker(self) -> Iterator[Worker]:
        """One for the caller alone. Raises OptimlError where none starts, MachineError once this was closed."""
        worker = self._take()
        try:
            yield worker
        finally:
            with self._changed:
                if worker.ended:
                    self._workers.discard(worker)
                elif worker in self._workers:
                    self._idle.append(worker)
                self._changed.notify()

    def close(self) -> None:
        """End them all. Who is at one of them loses it."""
        with self._changed:
            self._closed = True
            workers, self._workers, self._idle = self._workers | self._coming, set(), []
            self._changed.notify_all()
        for worker in workers:
            worker.kill()

    def _take(self) -> Worker:
        with self._changed:
            self._asking += 1
            try:
                while not self._closed:
                    while self._idle:
                        worker = self._idle.pop()
                        if worker.alive:
                            return worker
                        self._workers.discard(worker)
                    if self._problem is not None and not self._workers and not self._starting:
                        problem, self._problem = self._problem, None
                        raise problem
                    if (
                        self._starting < min(self._asking, self._at_once)
                        and len(self._workers) + self._starting < self._most
                    ):
                        self._grow()
                    self._changed.wait()
            finally:
                self._asking -= 1
        raise MachineError(self._ended)

    def _grow(self) -> None:
        """Have one more started, with the lock held."""
        threading.Thread(target=self._add, daemon=True).start()
        self._starting += 1  # now that there is a thread for it

    def _add(self) -> None:
        worker: Worker | None = None
        problem: OptimlError | None = None
        try:
            worker = self._start()
            with self._changed:
                self._coming.add(worker)
            if not self._closed:  # else nobody ends it, if it hangs
                self._ready(worker)
        except OptimlError as error:
            problem = error
        except Exception as error:  # the system refuses, the interpreter ends: whoever waits must not wait on
            problem = MachineError(f"{type(error).__name__}: {error}")
        with self._changed:
            self._starting -= 1
            if worker is not None:
                self._coming.discard(worker)
            kept = worker is not None and problem is None and not self._closed
            if worker is not None and kept:
                self._workers.add(worker)
                self._idle.append(worker)
            if problem is not None:
                self._most = len(self._workers) or self._most
            # Of one that did not start while others were there nobody is told: they may all end much later, for reasons of their own.
            self._problem = None if self._workers else problem
            self._changed.notify_all()
        if worker is not None and not kept:
            worker.kill()
