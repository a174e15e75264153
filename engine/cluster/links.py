"""Links from a search to the devices of a cluster's workers: frames there and back, and a loss noticed while somebody waits."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from engine.cluster.connection import Cluster, ClusterWorker, read_nonce
from engine.cluster.worker_call import call, forget
from engine.errors import MachineError

_UNANSWERED = 3  # times that the scheduler does not answer before it counts as gone. Ours
_SILENT_S = (
    120.0  # that a worker may answer nothing while it owes an answer, before it counts as lost: as of a campaign
)
_LOOK_S = 1.0  # how often the scheduler is asked which workers are there, while answers are awaited. Ours


class WorkerLink:
    """One worker; see `engine.evaluate.remote.Link`. `lost` is the exception that its answers raise once the worker is gone."""

    def __init__(
        self, cluster: Cluster, worker: ClusterWorker, function: Callable[[bytes], bytes], lost: type[Exception]
    ) -> None:
        self._cluster, self._worker, self._function, self._lost = cluster, worker, function, lost
        self._caller = secrets.token_hex(8)
        self._open = set[Future[bytes]]()
        self._lock = threading.Lock()
        self._gone = False

    @property
    def name(self) -> str:
        return f"{self._worker.name} on {self._worker.identity.host}"

    @property
    def address(self) -> str:
        return self._worker.address

    @property
    def cores(self) -> tuple[int, ...]:
        return self._worker.cores

    @property
    def identity(self) -> Mapping[str, Any]:
        return {k: v for k, v in dataclasses.asdict(self._worker.identity).items() if k not in ("versions", "problem")}

    def call(self, frame: bytes) -> Future[bytes]:
        answer: Future[bytes] = Future()
        try:
            if self._gone:
                raise OSError
            with self._lock:
                coming = self._cluster.question(call, self._function, frame, self._caller, worker=self.address)
                self._open.add(answer)
        except (OSError, RuntimeError, MachineError):
            answer.set_exception(self._lost())
            return answer
        coming.add_done_callback(partial(self._done, answer))
        return answer

    def _done(self, answer: Future[bytes], coming: Future[Any]) -> None:
        with self._lock:
            if answer not in self._open:
                return  # given up
            self._open.remove(answer)
        found: Any
        try:
            found = coming.result()
        except BaseException:  # whatever Dask says of a task that it could not run
            found = self._lost()
        with suppress(Exception):  # nobody waits any more
            if isinstance(found, bytes):
                answer.set_result(found)
            else:
                answer.set_exception(found if isinstance(found, Exception) else self._lost())

    def drop(self) -> None:
        with self._lock:
            given_up, self._open = self._open, set()
        if given_up and not self._gone:
            with suppress(OSError, RuntimeError, MachineError):
                self._cluster.question(forget, self._caller, worker=self.address)
        for answer in given_up:
            answer.cancel()

    def lose(self) -> None:
        """The worker is gone: nothing answers any more."""
        self._gone = True
        with self._lock:
            given_up, self._open = self._open, set()
        for answer in given_up:
            with suppress(Exception):
                answer.set_exception(self._lost())

    @property
    def waits(self) -> bool:
        return bool(self._open)


class Links(list[WorkerLink]):
    """The links to the workers that are there now. `joined` is told of a worker that came, or came back, by the watching thread."""

    joined: Callable[[WorkerLink], None] = staticmethod(lambda link: None)


@contextmanager
def links(cluster: Cluster, function: Callable[[bytes], bytes], lost: type[Exception]) -> Iterator[Links]:
    """A link to each worker of a cluster, watched while one of them waits; workers that join get one if they are of the same kind."""

    def link(worker: ClusterWorker) -> WorkerLink:
        return WorkerLink(cluster, worker, function, lost)

    found = Links(map(link, cluster.workers))
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(cluster, found, link, ended), name="devices", daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join(_LOOK_S * 5)


def _watch(
    cluster: Cluster, found: Links, link: Callable[[ClusterWorker], WorkerLink], ended: threading.Event
) -> None:  # fmt: skip
    unanswered, kinds = 0, {worker.identity.model for worker in cluster.workers}
    asked: dict[str, tuple[float, Future[str]]] = {}  # whether they are alive, by address
    silent: set[str] = set()
    while not ended.wait(_LOOK_S):
        if found and not any(each.waits for each in found):
            continue
        try:
            there = cluster.listed()
            unanswered = 0
        except MachineError:
            unanswered += 1
            if unanswered < _UNANSWERED:
                continue
            there = {}  # the scheduler is gone, and every worker with it
        silent |= _silent(cluster, [each.address for each in found if each.waits and each.address in there], asked)
        there = {address: seen for address, seen in there.items() if address not in silent}
        for each in [each for each in found if each.address not in there]:
            found.remove(each)
            each.lose()
        if not set(there) <= {each.address for each in found}:
            _take_in(cluster, found, link, kinds, silent)


def _silent(cluster: Cluster, addresses: Sequence[str], asked: dict[str, tuple[float, Future[str]]]) -> set[str]:
    """Those of the workers that hang: one that is busy answers beside its work."""
    with suppress(MachineError):  # the scheduler is gone: the next look tells
        for address in addresses:
            if address not in asked or asked[address][1].done():
                asked[address] = time.monotonic(), cluster.question(read_nonce, "", worker=address)
    return {a for a, (since, answer) in asked.items() if not answer.done() and time.monotonic() - since > _SILENT_S}


def _take_in(
    cluster: Cluster, found: Links, link: Callable[[ClusterWorker], WorkerLink], kinds: set[tuple[str, ...]], silent: set[str]
) -> None:  # fmt: skip
    """Link workers that joined, of the kinds that the search has, but for those that hang."""
    with suppress(MachineError):  # the scheduler is gone: the next look tells
        cluster.refresh()
    linked = {each.address for each in found} | silent
    for worker in cluster.workers:
        if worker.address not in linked and worker.identity.model in kinds:
            found.append(link(worker))
            found.joined(found[-1])
