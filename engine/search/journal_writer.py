"""Writes the journal beside the search: the search does not wait for a row, and tells nobody of a candidate that is not in it."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from engine.search.journal import Credit, Journal
from engine.search.participants import Observation
from engine.search.pending import Booked
from engine.search.question import Asked


class Scribe:
    """Writes what it is given in order, between `open` and `close` on a thread of its own, else at once.

    After a row that could not be written none is: a journal has no gaps.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._thread: ThreadPoolExecutor | None = None
        self._given: deque[tuple[Booked | None, Future[float]]] = deque()
        self._failed: Exception | None = None

    def open(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="journal")

    def close(self) -> None:
        """Wait until all is written. Raises as `Journal.book`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.shutdown()
        for _ in self.written(all=True):
            pass

    def book(self, booked: Booked) -> None:
        """Have a candidate written."""
        self._write(booked, partial(self._journal.book, booked.entry))

    def book_profile(self, seen: Observation) -> None:
        """Have written what was counted of a candidate."""
        self._write(None, partial(self._journal.book_profile, seen.node, seen.metrics, seen.counters, seen.proxies))

    def book_question(self, asked: Asked) -> None:
        """Have written that a question was asked, or answered."""
        self._write(None, partial(self._journal.book_question, asked))

    def book_credit(self, credit: Credit) -> None:
        """Have written who else proposed a candidate."""
        self._write(None, partial(self._journal.book_credit, credit))

    def written(self, *, all: bool = False) -> Iterator[tuple[Booked, float]]:
        """The candidates that are in the journal by now, each once, with the seconds it took; `all`: wait for them.

        Raises as `Journal.book`.
        """
        while self._given and (all or self._given[0][1].done()):
            booked, answer = self._given.popleft()
            seconds = answer.result()
            if booked is not None:
                yield booked, seconds

    @property
    def last(self) -> Sequence[Future[float]]:
        """What ends when all is written, if there is anything that was not asked for yet."""
        return [self._given[-1][1]] if self._given else []

    @property
    def done(self) -> bool:
        """Whether all that was given is written and was asked for."""
        return not self._given

    def _write(self, booked: Booked | None, write: Callable[[], None]) -> None:
        if self._thread is not None:
            self._given.append((booked, self._thread.submit(self._timed, write)))
        else:
            self._timed(write)

    def _timed(self, write: Callable[[], None]) -> float:
        if self._failed is not None:
            raise self._failed
        begin = time.monotonic()
        try:
            write()
        except Exception as error:
            self._failed = error
            raise
        return time.monotonic() - begin
