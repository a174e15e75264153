"""How far one search over several devices scales, simulated in virtual time: the real search loop, tree and journal, no GPU.

    python benchmarks/scaling.py [--workers 1,2,4,8,16,64,256] [--seconds 10] [--seeds 1] [--record FILE]

What is real: `Search` with its tree, edits of a text of 8 kB, the journal in SQLite, the booking; their processor time (of this thread)
advances the virtual clock, the journal's included. What is simulated: an evaluation takes 20 to 400 ms (uniform, by program), a build
takes 235 ms on one of the compile cores (64 NVRTC builds on 16 threads of an H200's host took 0.94 s), a message to a device and
back takes 4 ms, and reading proposals costs nothing, because worker processes do it. Efficiency is the share of their time that W devices
evaluate, from the start of the search on, over that share of one device. Arms:

    `node`    16 compile cores for each device, as on a node with a GPU each: what the parent itself allows
    `parent`  16 compile cores in all, on the parent's machine
    `short`   as `node`, with evaluations of 20 ms: what is built ahead limits it; up to 16 devices

Quality: the best gain (doublings) of searches of `benchmarks/landscapes.py` with 100 candidates and W of them in flight, against one.
The figures depend on this machine's core: the record names it.
"""

from __future__ import annotations

import argparse
import datetime
import heapq
import itertools
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from engine.search.participants import Builds

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import landscapes  # noqa: E402 - the path above makes it importable as a script
from benchmarks.examples import commit  # noqa: E402
from engine.compile.built import Built  # noqa: E402
from engine.cuda.kernel import Edit, Span  # noqa: E402
from engine.evaluate import devices as devices_module  # noqa: E402
from engine.evaluate.devices import Answer, Job  # noqa: E402
from engine.evaluate.evaluator import Signals  # noqa: E402
from engine.model import Binary, Evaluation, LaunchConfig, Measurement, Outcome, Program, Resources  # noqa: E402
from engine.rewrite.proposal import Proposal  # noqa: E402
from engine.search import loop, progress  # noqa: E402
from engine.search.journal import Entry, Journal  # noqa: E402
from engine.search.loop import Search  # noqa: E402
from engine.search.progress import Budget, in_flight  # noqa: E402
from engine.search.tree import Tree  # noqa: E402

WORKERS = (1, 2, 4, 8, 16, 64, 256)
EVALUATION_S = (0.020, 0.400)
SHORT_S = (0.020, 0.020)
BUILD_S, CORES = 0.235, 16
MESSAGE_S = 0.004
TEXT = b"// " + b"x" * 77 + b"\n"
_LINES = 100
_SHORT_MOST = 16


class Clock:
    """Virtual time: this thread's processor time, and what is waited for between."""

    def __init__(self) -> None:
        self._ahead, self._events = -time.thread_time(), list[tuple[float, int, Callable[[], None]]]()
        self._number = itertools.count()

    def monotonic(self) -> float:
        return self._ahead + time.thread_time()

    @contextmanager
    def free(self) -> Iterator[None]:
        """Work within takes no virtual time: others do it."""
        begin = time.thread_time()
        try:
            yield
        finally:
            self._ahead -= time.thread_time() - begin

    def until(self, when: float) -> None:
        """Wait until then."""
        self._ahead += max(0.0, when - self.monotonic())

    def at(self, when: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._number), event))

    def wait(self, futures: Sequence[Future[Any]], timeout: float | None = None, return_when: str = "") -> Any:
        """As `concurrent.futures.wait` for the first of them, in virtual time."""
        end = None if timeout is None else self.monotonic() + timeout
        while True:
            with self.free():
                while self._events and self._events[0][0] <= self.monotonic():
                    heapq.heappop(self._events)[2]()
            done, rest = wait(futures, timeout=0, return_when=FIRST_COMPLETED)  # takes its processor time
            if done or not self._events or (end is not None and self.monotonic() >= end):
                return done, rest
            until = self._events[0][0] if end is None else min(self._events[0][0], end)
            self.until(until)


class Compilers(Executor):
    """Compile cores: what is submitted runs when one of them is done with it."""

    def __init__(self, clock: Clock, cores: int) -> None:
        self._clock, self._free_at = clock, [0.0] * cores

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        end = max(heapq.heappop(self._free_at), self._clock.monotonic()) + BUILD_S
        heapq.heappush(self._free_at, end)
        self._clock.at(end, lambda: answer.set_result(fn(*args, **kwargs)))
        return answer


class Readers(Executor):
    """Worker processes that read ahead."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_result(None)
        return answer


@dataclass
class Devices:
    """So many devices in virtual time."""

    clock: Clock
    evaluator: Evaluator
    count: int
    takes_s: tuple[float, float]
    ends: float = 0.0  # what is evaluated later does not count
    done: int = 0
    done_s: float = 0.0
    _free_at: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._free_at = [0.0] * self.count

    def submit(self, job: Job) -> Future[Answer]:
        answer: Future[Answer] = Future()
        takes = random.Random(job.built.program.digest).uniform(*self.takes_s)
        end = max(heapq.heappop(self._free_at), self.clock.monotonic() + MESSAGE_S / 2) + takes
        heapq.heappush(self._free_at, end)
        if end <= self.ends:
            self.done, self.done_s = self.done + 1, self.done_s + takes
        self.clock.at(end + MESSAGE_S / 2, lambda: answer.set_result(self.evaluator.evaluate(job.built, job.incumbent)))
        return answer

    def stop(self) -> None:
        pass


class Evaluator:
    """Answers from a landscape."""

    signals = Signals("measured", {"name": "simulated"})

    def __init__(self, where: landscapes.Landscape, seed: int) -> None:
        self._where, self._noise = where, random.Random(seed)
        self.made: dict[str, frozenset[landscapes.Edit]] = {}

    def original(self) -> Program:
        program = Program({"k.cu": TEXT * _LINES}, "k.cu")
        self.made[program.digest] = frozenset()
        return program

    def propose(self, of: Program) -> list[Proposal]:
        made, at = self.made[of.digest], len(of.data)
        return [
            Proposal(
                "rules", f"rule {r}", f"variant {v}", {"k.cu": (Edit(Span(at, at), f"// {r} {v}\n"),)},
                self._where.parameters(r, v), self._where.priors[r][v],
            )
            for r, v in self._where.edits(made)
        ]  # fmt: skip

    def build(self, program: Program, *, by_rules: bool = False) -> Built:
        edits = frozenset(
            (int(rule), int(variant))
            for rule, variant in (line[3:].split() for line in program.data[len(TEXT) * _LINES :].decode().splitlines())
        )
        self.made[program.digest] = edits
        code = repr(sorted(self._where.code(edits)))
        launch = ((LaunchConfig((1, 1, 1), (256, 1, 1)),),)
        return Built(program, "", ("k",), Binary(b"", "sm_90", ("k",), (Resources(32, 0, 0, 0, 0),), code), launch)

    def evaluate(self, built: Built, incumbent: Built | None, *, brief: bool = False) -> Answer:
        worth = self._where.worth(self.made[built.program.digest])
        found = landscapes._evaluated(worth, self._noise)
        found = Evaluation(found.outcome, found.measurement, found.failure, (), built.binary.code_hash, {"time": 0.1})
        if incumbent is None or worth is None:
            return found, None
        return found, 2.0 ** (worth - (self._where.worth(self.made[incumbent.program.digest]) or 0.0))


@dataclass(frozen=True)
class Run:
    """What one simulated search came to; the parent's processor time is in milliseconds for each evaluation."""

    workers: int
    evaluations: int
    busy: float  # share of the devices' time, in evaluations that ended in time
    parent_ms: float
    journal_ms: float
    select_ms: float
    nodes: int


@contextmanager
def virtual(clock: Clock) -> Iterator[None]:
    """Have the search wait and read the time on this clock."""
    held = progress.wait, devices_module.wait, loop.time
    progress.wait = devices_module.wait = clock.wait  # type: ignore[assignment]
    progress.time = loop.time = clock  # type: ignore[assignment]
    try:
        yield
    finally:
        progress.wait, devices_module.wait, loop.time = held
        progress.time = held[2]  # type: ignore[assignment]


def search(workers: int, seconds: float, seed: int, cores: int, takes_s: tuple[float, float]) -> Run:
    """One search over so many simulated devices for so many virtual seconds."""
    clock = Clock()
    evaluator = Evaluator(landscapes.landscape("mixed", seed), seed)
    original = evaluator.original()

    def propose(of: Program) -> list[Proposal]:
        with clock.free():
            return evaluator.propose(of)

    journal_s = 0.0
    with tempfile.TemporaryDirectory() as folder, virtual(clock):
        journal = Journal(Path(folder) / "journal.sqlite", original, {}, resume=False)
        book = journal.book

        def booked(entry: Entry) -> None:
            nonlocal journal_s
            begin = time.thread_time()
            book(entry)
            journal_s += time.thread_time() - begin

        journal.book = booked  # type: ignore[method-assign]
        over = Devices(clock, evaluator, workers, takes_s)
        budget = Budget(seconds=seconds)
        tree = Tree(original, propose, seed)
        searched = Search(
            tree,
            evaluator,
            journal,
            Builds(
                Compilers(clock, cores),  # type: ignore[arg-type]
                in_flight=in_flight(CORES, budget, workers),
                readers=Readers(),
                devices=over,
            ),
        )
        searched._scribe.open = lambda: None  # type: ignore[method-assign]  # rows are written at once, by this thread
        searched.start(
            evaluator.build(original), Evaluation(Outcome.ACCEPTED, Measurement((), 1.0, 1.0, 1.0), code_hash="[]")
        )
        begin, over.ends = time.thread_time(), clock.monotonic() + seconds
        searched.run(budget)
        spent = time.thread_time() - begin
        select_s = searched.progress.stage_s.get(loop.SELECT, 0.0)
        journal.close()
    every = max(1, searched.progress.evaluated)
    return Run(
        workers, over.done, over.done_s / (workers * seconds), 1e3 * spent / every, 1e3 * journal_s / every,
        1e3 * select_s / every, len(tree.nodes),
    )  # fmt: skip


ARMS: dict[str, tuple[Callable[[int], int], tuple[float, float]]] = {
    "node": (lambda workers: CORES * workers, EVALUATION_S),
    "parent": (lambda workers: CORES, EVALUATION_S),
    "short": (lambda workers: CORES * workers, SHORT_S),
}


def scaling(arm: str, workers: Sequence[int], seconds: float, seeds: int) -> list[dict[str, float]]:
    """A row for each number of workers: medians over the seeds."""
    cores, takes_s = ARMS[arm]
    rows: list[dict[str, float]] = []
    for count in workers:
        runs = [search(count, seconds, seed, cores(count), takes_s) for seed in range(seeds)]
        middle: Callable[[str], float] = partial(_middle, runs)
        rate = middle("evaluations") / seconds
        alone = rows[0]["busy"] if rows else middle("busy")
        rows.append(
            {
                "workers": count, "rate": rate, "efficiency": middle("busy") / alone, "busy": middle("busy"),
                "parent_ms": middle("parent_ms"), "select_ms": middle("select_ms"), "journal_ms": middle("journal_ms"),
                "nodes": middle("nodes"),
            }
        )  # fmt: skip
    return rows


def _middle(runs: Sequence[Run], name: str) -> float:
    return float(statistics.median(getattr(run, name) for run in runs))


def quality(ahead: Sequence[int], candidates: int, seeds: int) -> dict[str, list[float]]:
    """Mean best gain by kind of landscape, one for each number of candidates in flight."""
    return {
        kind: [
            statistics.mean(
                landscapes.search(landscapes.landscape(kind, seed), "mcts", seed, candidates, count)
                for seed in range(seeds)
            )
            for count in ahead
        ]
        for kind in landscapes.KINDS
    }


def render(record: dict[str, Any]) -> str:
    """The tables of a record."""
    lines = []
    for arm, rows in record["search"].items():
        lines += [
            f"| {arm}: devices | evaluations/s | efficiency | devices busy | parent ms each | of it select | of it journal |",
            "|---:|---:|---:|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {row['workers']:.0f} | {row['rate']:.1f} | {100 * row['efficiency']:.0f} % | {100 * row['busy']:.0f} % | "
            f"{row['parent_ms']:.2f} | {row['select_ms']:.2f} | {row['journal_ms']:.2f} |"
            for row in rows
        ] + [""]
    found = record["quality"]
    lines += [
        "| best gain, in doublings; in flight: | " + " | ".join(map(str, found["in_flight"])) + " |",
        "|---|" + "---:|" * len(found["in_flight"]),
    ]
    lines += [f"| {kind} | " + " | ".join(f"{x:.2f}" for x in row) + " |" for kind, row in found["gains"].items()]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> int:
    """Run; see the module's docstring."""
    parser = argparse.ArgumentParser(description="Simulate one search over several devices.")
    parser.add_argument("--workers", default=",".join(map(str, WORKERS)), metavar="LIST")
    parser.add_argument("--seconds", type=float, default=10.0, help="virtual seconds of each search (default: 10)")
    parser.add_argument("--seeds", type=int, default=1, help="searches for each number of devices (default: 1)")
    parser.add_argument("--in-flight", default="1,2,4,8,16,64", metavar="LIST", help="of the comparison of quality")
    parser.add_argument("--landscapes", type=int, default=4, help="of each kind, for that (default: 4)")
    parser.add_argument("--arms", default=",".join(ARMS), metavar="LIST")
    parser.add_argument("--record", type=Path, help="a JSON record to write")
    options = parser.parse_args(given)
    workers = [int(count) for count in options.workers.split(",")]
    ahead = [int(count) for count in options.in_flight.split(",")]
    record = {
        "schema": "optiml.scaling/1",
        "command": ["python", "benchmarks/scaling.py", *(sys.argv[1:] if given is None else given)],
        "commit": commit(), "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(), "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "settings": {
            "seconds": options.seconds, "seeds": options.seeds, "evaluation_s": EVALUATION_S, "build_s": BUILD_S, "cores": CORES,
            "message_s": MESSAGE_S, "candidates": 100, "landscapes": options.landscapes,
        },
        "search": {
            arm: scaling(arm, [w for w in workers if w <= _SHORT_MOST or arm != "short"], options.seconds, options.seeds)
            for arm in options.arms.split(",")
        },
        "quality": {
            "in_flight": ahead, "gains": quality(ahead, 100, options.landscapes) if options.landscapes else {},
        },
    }  # fmt: skip
    print(render(record))
    if options.record:
        options.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
