"""Rows of tables over the workers of a cluster: one row at a time on each, each in a process of its own (engine/commands/bench_row.py).

Rows are independent, and a ratio stands within one row and so within one GPU. This process alone writes records. Rows that need
another's result wait for it; rows of a group go to the worker where the group began, while there are any, because what such a row leaves
(benchmarks/store.py) is for that GPU alone.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from benchmarks.bench import Ledger, Place, Progress, Row
from engine.cluster.connection import (
    Cluster,
    ClusterWorker,
    check_alike,
    check_shared,
    connect,
    parse_address,
)
from engine.cluster.identity import visible_gpus
from engine.cluster.scheduler import ClusterRequest
from engine.commands.bench_row import run_row, stop_row
from engine.errors import MachineError, UsageError
from engine.process.wire import MAX_ANSWER, WireError, pack, unpack

_POLL_S = 1.0  # how often the scheduler is asked which workers are there
Item = tuple[Ledger, str]
Measure = Callable[[Sequence[Ledger], float | None, Callable[[str], None]], list[Progress]]


@dataclass
class _Running:
    item: Item
    worker: ClusterWorker
    future: Any
    begin: float
    date: str


def request(address: str | None, gpus: str | None, device: Any, workers: int | None) -> ClusterRequest:
    """The workers that `--cluster` or `--gpus` name: of the latter a number says how many of those visible here, a list which.

    Raises UsageError for what is no such list.
    """
    if gpus is None:
        assert address is not None
        return ClusterRequest(address, device, workers)
    if address is not None or workers is not None:
        raise UsageError("--gpus means a local cluster", "--gpus", "leave it out, or --cluster and --workers")
    listed = [word.strip() for word in gpus.split(",") if word.strip()]
    if not listed or not all(word.isdecimal() for word in listed) or len(set(listed)) < len(listed):
        raise UsageError(f"'{gpus[:60]}' names no GPUs", "--gpus", "write how many, as in 4, or which, as in 0,1,2,3")
    count = len(listed) if "," in gpus else int(gpus)
    if count < 1:
        raise UsageError("must be above 0", "--gpus")
    if device == "cpu":
        return ClusterRequest("local", "cpu", count)
    there = visible_gpus()
    wanted = [int(word) for word in listed] if "," in gpus else list(range(count))
    if there and max(wanted) >= len(there):
        raise UsageError(f"{max(wanted) + 1} GPUs cannot be had ({len(there)} are visible)", "--gpus")
    return ClusterRequest("local", "gpu", None, tuple(there[n] for n in wanted) if there else None)


def over(arguments: argparse.Namespace, place: Place) -> Measure:
    """What measures rows on the workers that the command line names. Raises UsageError."""
    if arguments.cluster is not None:
        parse_address(arguments.cluster)
    wanted = request(arguments.cluster, arguments.gpus, arguments.device, arguments.workers)

    def measure(ledgers: Sequence[Ledger], limit_s: float | None, say: Callable[[str], None]) -> list[Progress]:
        with connect(wanted) as cluster:
            check_alike(cluster.workers, "leave some out: a record is of one kind of device")
            for folder in (place.root / ".optiml", place.results):  # where rows leave what others need
                folder.mkdir(parents=True, exist_ok=True)
                check_shared(cluster, folder)
            return run(ledgers, cluster, limit_s=limit_s, say=say)

    return measure


def row_arguments(ledger: Ledger, key: str) -> list[str]:
    """What `optiml` is given to measure one row of a table."""
    place, settings = ledger.place, ledger.settings
    arguments = ["bench", ledger.table.name, "--only", key, "--device", settings.device]
    arguments += ["--out", str(place.results), "--checkout", str(place.root)]
    if place.checkouts is not None:
        arguments += ["--checkouts", str(place.checkouts)]
    for option in ("seconds", "candidates", "seeds"):
        value = getattr(settings, option)
        if value is not None:
            arguments += [f"--{option}", str(value)]
    return arguments


def run(
    ledgers: Sequence[Ledger], cluster: Cluster, *, limit_s: float | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> list[Progress]:  # fmt: skip
    """Measure what is missing of some tables, all rows in one queue: tables in their order, in each the longest rows first.

    `limit_s`: no row is begun that would not end within so many seconds from now. An interruption ends all rows that run. Raises
    MachineError where the scheduler is gone.
    """
    queue, running, some = Queue(ledgers, limit_s, say), dict[str, _Running](), threading.Event()
    try:
        while True:
            for worker in cluster.workers:
                item = queue.take(worker.name) if worker.name not in running else None
                if item is not None:
                    say(f"{item[0].table.name}: {item[1]} on worker {worker.name} …")
                    running[worker.name] = _begin(cluster, item, worker, some)
            if not running:
                break
            some.wait(_POLL_S)
            some.clear()
            there = {worker.address for worker in cluster.refresh()}
            for name, one in list(running.items()):
                if one.future.done() or one.worker.address not in there:
                    del running[name]
                    _end(one, len(running) + 1, queue, say)
    finally:
        if running:
            with suppress(MachineError):
                cluster.ask(stop_row, "", workers=[one.worker.address for one in running.values()])
    return [ledger.progress() for ledger in ledgers]


def _begin(cluster: Cluster, item: Item, worker: ClusterWorker, some: threading.Event) -> _Running:
    frame = pack({"arguments": row_arguments(*item), "cores": list(worker.cores)})
    future = cluster.submit(run_row, frame, worker)
    future.add_done_callback(lambda future: some.set())
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return _Running(item, worker, future, time.monotonic(), date)


def _end(one: _Running, at_once: int, queue: Queue, say: Callable[[str], None]) -> None:
    """Keep what came of a row."""
    ledger, key = one.item
    gpu = one.worker.identity.gpu
    made = {
        "index": one.worker.name,
        "name": gpu.name if gpu else "",
        "uuid": gpu.uuid if gpu else "",
        "at_once": at_once,
    }
    row = {**_row(one), "gpu": made}
    ledger.record["gpus_at_once"] = max(at_once, ledger.record.get("gpus_at_once", 0))
    ledger.book(key, row)
    queue.done(one.item)
    say(f"{ledger.table.name}: {key} {'failed' if row['error'] is not None else 'done'}, {row['wall_s']:.0f} s")


def _row(one: _Running) -> Row:
    """The row that a worker answered, or why there is none."""
    try:
        if one.future.done() and one.future.status == "finished":
            row = unpack(one.future.result(timeout=60.0), MAX_ANSWER)[0].get("row")
            if isinstance(row, dict) and "error" in row and isinstance(row.get("wall_s"), int | float):
                return row
        error = "its worker was lost, or answered no row"
    except (OSError, TimeoutError, WireError) as failed:
        error = f"its worker went with its answer: {failed}"
    return {"error": error, "date": one.date, "commit": "", "wall_s": round(time.monotonic() - one.begin, 2)}


class Queue:
    """Which row is next on a worker."""

    def __init__(self, ledgers: Sequence[Ledger], limit_s: float | None, say: Callable[[str], None]) -> None:
        self._begin, self._limit_s, self._say = time.monotonic(), limit_s, say
        self._waiting: list[Item] = []
        for ledger in ledgers:
            if not ledger.todo:
                say(ledger.all_there)
            self._waiting += [(ledger, key) for key in sorted(ledger.todo, key=ledger.row_s, reverse=True)]
        self._needs = {_name(item): item[0].table.needs(item[0].place, item[1]) for item in self._waiting}
        self._open = set(self._needs)  # waiting or running
        self._home: dict[str, str] = {}  # groups, and the worker where each began

    def take(self, worker: str) -> Item | None:
        """The next row for a worker; None while there is none."""
        self._drop()
        ready = [item for item in self._waiting if not self._open.intersection(self._needs[_name(item)])]
        own = [item for item in ready if self._home.get(_group(item), worker) == worker]
        item = next(iter(own or ready), None)
        if item is not None:
            self._waiting.remove(item)
            self._home.setdefault(_group(item), worker)
        return item

    def done(self, item: Item) -> None:
        """A row ended, in whatever way."""
        self._open.discard(_name(item))

    def _drop(self) -> None:
        """Leave for the next call what would not end within the limit, and what needs such a row."""
        left_s = None if self._limit_s is None else self._limit_s - (time.monotonic() - self._begin)
        for ledger, key in list(self._waiting):
            if left_s is not None and left_s < ledger.row_s(key):
                self._leave((ledger, key), f"takes about {ledger.row_s(key):.0f} s, {left_s:.0f} s are left")

    def _leave(self, item: Item, why: str) -> None:
        if item not in self._waiting:
            return
        self._say(f"{item[0].table.name}: {item[1]} is left for the next call: {why}")
        self._waiting.remove(item)
        self._open.discard(_name(item))
        for other in list(self._waiting):
            if _name(item) in self._needs[_name(other)]:
                self._leave(other, f"needs {' '.join(_name(item))}")


def _name(item: Item) -> tuple[str, str]:
    return item[0].table.name, item[1]


def _group(item: Item) -> str:
    return item[0].table.group(item[1]) or " ".join(_name(item))
