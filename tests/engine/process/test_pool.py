"""Processes that many threads share: how many are started, and what is told where none starts."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.errors import MachineError, OptimlError
from engine.process.pool import Crew
from engine.process.worker_process import Worker

_ECHO = f"""
import sys, time
sys.path[:0] = {sys.path!r}
from engine.process import wire
while True:
    try:
        header, blobs = wire.receive(sys.stdin.buffer)
    except wire.WireError:
        break
    time.sleep(header.get("sleep", 0))
    wire.send(sys.stdout.buffer, header, blobs)
"""


def start() -> Worker:
    return Worker([sys.executable, "-c", _ECHO])


class Room:
    """Starts workers, as long as there is room for them."""

    def __init__(self, *, refused: bool = False) -> None:
        self.refused = refused

    def start(self) -> Worker:
        if self.refused:
            raise OptimlError("there is no room")
        return start()


def ready(worker: Worker) -> None:
    worker.call({}, timeout_s=60)


@pytest.fixture
def crew() -> Iterator[Crew]:
    made = Crew(start, ready, 3, at_once=3, ended="it is over")
    yield made
    made.close()


def ask(crew: Crew, number: int, sleep: float = 0.0) -> int:
    with crew.worker() as worker:
        return int(worker.call({"number": number, "sleep": sleep}, timeout_s=60)[0]["number"])


def test_every_thread_gets_its_own_answer_from_as_few_as_there_may_be(crew: Crew) -> None:
    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(lambda n: ask(crew, n, 0.01), range(60))) == list(range(60))
    assert len(crew._workers) <= 3
    assert len(crew._idle) == len(crew._workers)


def test_one_thread_needs_one_process(crew: Crew) -> None:
    assert [ask(crew, n) for n in range(5)] == list(range(5))
    assert len(crew._workers) == 1


@pytest.mark.parametrize(("at_once", "most"), [(1, 1), (3, 3)])
def test_so_many_start_at_once(at_once: int, most: int) -> None:
    """Whoever waits takes the first that is there: where starting is dear, and calls are short, more would come too late."""
    coming, seen, go = threading.Semaphore(0), [], threading.Event()

    def slow(worker: Worker) -> None:
        seen.append(worker)
        coming.release()
        go.wait(60)

    crew = Crew(start, slow, 3, at_once=at_once, ended="it is over")
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(ask, crew, n) for n in range(4)]
        for _ in range(most):
            assert coming.acquire(timeout=60)
        time.sleep(0.2)
        assert len(seen) == most
        go.set()
        assert [one.result() for one in asked] == list(range(4))
    crew.close()


def test_one_that_died_is_replaced(crew: Crew) -> None:
    ask(crew, 1)
    crew._idle[-1].kill()
    assert ask(crew, 2) == 2
    with crew.worker() as worker:
        worker.kill()
    assert ask(crew, 3) == 3
    assert len(crew._workers) == 1


def test_who_asks_is_told_why_none_starts_and_may_ask_again() -> None:
    room = Room(refused=True)
    crew = Crew(room.start, ready, 2, at_once=2, ended="it is over")
    for _ in range(2):
        with pytest.raises(OptimlError, match="no room"):
            ask(crew, 1)
    room.refused = False
    assert ask(crew, 1) == 1
    crew.close()


def test_while_one_works_a_second_that_does_not_start_is_nobodys_problem() -> None:
    turns = iter((True,))

    def first_alone() -> Worker:
        if not next(turns, False):
            raise OptimlError("there is no room")
        return start()

    crew = Crew(first_alone, ready, 2, at_once=2, ended="it is over")
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda n: ask(crew, n, 0.05), range(8))) == list(range(8))
    crew.close()


def test_who_asks_is_not_told_of_what_did_not_start_long_ago() -> None:
    """A second one did not start; when the first had ended, who asked next was told of the second instead of given a third."""
    room = Room()
    crew = Crew(room.start, ready, 2, at_once=2, ended="it is over")
    ask(crew, 1)
    room.refused = True
    crew.warm(2)
    with crew._changed:
        assert crew._changed.wait_for(lambda: not crew._starting, timeout=60)
    room.refused = False
    crew._idle[-1].kill()
    assert ask(crew, 2) == 2
    crew.close()


def test_the_end_reaches_those_that_work_wait_and_start(crew: Crew) -> None:
    ask(crew, 0)
    with ThreadPoolExecutor(5) as threads:
        busy = [threads.submit(ask, crew, n, 60.0) for n in range(5)]
        deadline = time.monotonic() + 60
        while len(crew._workers) < 3 or crew._idle:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        workers = set(crew._workers)
        begin = time.monotonic()
        crew.close()
        errors = [one.exception() for one in busy]
    assert time.monotonic() - begin < 20
    assert all(isinstance(error, MachineError) for error in errors)
    assert sum("it is over" in str(error) for error in errors) == 2
    assert not any(worker.alive for worker in workers)
    with pytest.raises(MachineError, match="it is over"):
        ask(crew, 1)


def test_one_that_still_sets_itself_up_ends_too() -> None:
    coming: list[Worker] = []

    def hang(worker: Worker) -> None:
        coming.append(worker)
        worker.call({"sleep": 60}, timeout_s=60)

    crew = Crew(start, hang, 1, at_once=1, ended="it is over")
    crew.warm(1)
    deadline = time.monotonic() + 60
    while not coming:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    begin = time.monotonic()
    crew.close()
    while coming[0].alive or crew._starting:
        assert time.monotonic() - begin < 20
        time.sleep(0.01)
