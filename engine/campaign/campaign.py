"""Searches the kernels of a repository in order of what there is to win, until the budget or the gain runs out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from engine.campaign.combined_patch import combine
from engine.campaign.kernel_search import KernelEnd, KernelTask, search_kernel
from engine.campaign.queue import Queue, Queued, folder_prefixes, open_queue
from engine.campaign.search_cost import expected_s
from engine.campaign.survey import READY, Survey
from engine.process.interrupt import NEVER, Interrupt
from engine.run.machine import Machine
from engine.search.progress import Budget, Progress
from engine.settings.folders import ignore_folder, write_files

FOLDER, QUEUE, PATCH = "all", "queue.sqlite", "all.patch"
# A kernel whose roofline would save less than this part of the recorded time, or without a recording of its own, is not searched.
LEAST_RECORDED, LEAST_ALONE = 0.01, 0.1
_LEAST_S = 15.0  # a search in less finds little
_UNKNOWN = 1 / 3  # weight of a kernel without a prediction: as of a headroom of 1.5


@dataclass(frozen=True)
class CampaignRequest:
    """What a campaign is asked for. `least` is the weight below which nothing is searched (None: the default)."""

    root: Path
    budget_s: float
    least: float | None = None
    seed: int = 0
    proposers: tuple[str, ...] = ("rules",)
    command: tuple[str, ...] = ()
    interrupt: Interrupt = NEVER
    each: Budget | None = None  # of every kernel, in place of its part of the whole budget
    device: str = ""  # of a campaign for each kind of device


class Executor(Protocol):
    """Where kernels are searched: so many at a time."""

    @property
    def slots(self) -> int:
        """How many kernels can be under way."""

    def begin(self, task: KernelTask) -> None:
        """Begin a turn. Raises MachineError."""

    def ended(self) -> Sequence[tuple[int, KernelEnd]]:
        """Wait until turns end: their ranks with what came of them. Raises MachineError, KeyboardInterrupt."""


@dataclass(frozen=True)
class CampaignEnd:
    """Every kernel of the queue with what came of it, the combined patch (None: nothing to suggest), and what it leaves out."""

    kernels: tuple[Queued, ...]
    patch: Path | None
    notes: tuple[str, ...]
    device: str = ""  # of a campaign for each kind of device


def run_campaign(
    request: CampaignRequest, executor: Executor, survey: Survey | None,
    on_turn: Callable[[Queued, Budget], None] = lambda turn, budget: None,
) -> CampaignEnd:  # fmt: skip
    """Search the kernels of a survey, or go on with the campaign that is there (None), as many at a time as the executor takes.

    An interrupt ends it with what was found. This process alone writes the queue.
    Raises UsageError, MachineError. What is wrong with one kernel is said in the queue.
    """
    folder = request.root / ".optiml" / (f"{FOLDER}@{request.device}" if request.device else FOLDER)
    ignore_folder(folder)
    wanted = None
    if survey is not None:
        # A kernel that was not run yet may be ready when its turn comes.
        wanted = [kernel for kernel in survey.kernels if kernel.state in READY or kernel.state == "unknown"]
    with open_queue(folder / QUEUE, wanted, request.budget_s) as queue:
        least = request.least
        if least is None:
            recorded = any(kernel.share is not None for kernel in queue.all())
            least = LEAST_RECORDED if recorded else LEAST_ALONE
        # Where every kernel is searched the longest come first, so that none of them runs alone at the end (Graham 1969).
        takes_s = expected_s(request.root, queue.all(), request.device) if request.each is not None else {}
        running = _Running(queue)
        spent_s = sum(kernel.spent_s for kernel in queue.all())
        deadline = time.monotonic() + queue.budget_s() - spent_s / max(1, executor.slots)
        try:
            while True:
                while (
                    len(running.began) < executor.slots and (turn := _next(queue, least, running, takes_s)) is not None
                ):
                    seconds = _seconds(queue, turn, deadline, executor.slots, running)
                    if request.interrupt.asked or (request.each is None and seconds < _LEAST_S):
                        break
                    budget = replace(request.each or Budget(seconds=seconds), interrupt=request.interrupt)
                    on_turn(turn, budget)
                    running.begin(turn.rank, seconds)
                    executor.begin(_task(request, turn, budget, queue))
                if not running.began:
                    break
                for rank, end in executor.ended():
                    running.end(rank)
                    queue.end(rank, end.state, end.said, end.speedup, end.folder)
        except KeyboardInterrupt:  # while a kernel was set up or searched elsewhere, or the second one
            if not request.interrupt.asked:
                raise
        finally:
            for rank in list(running.began):
                running.end(rank)
        return _end(request, folder, queue)


def _task(request: CampaignRequest, turn: Queued, budget: Budget, queue: Queue) -> KernelTask:
    return KernelTask(
        turn.rank, turn.file, turn.kernel, budget.seconds, budget.candidates, request.seed, request.proposers, request.command,
        queue.name(), request.device, queue.budget_s() if request.each is None else None,
        folder_prefixes(queue.all())[turn.rank],
    )  # fmt: skip


def _next(queue: Queue, least: float, running: _Running, takes_s: Mapping[int, float]) -> Queued | None:
    """The next kernel, those whose turn a kill ended first, then those that take longest where that is known; those that promise
    less than `least` are skipped."""
    there = queue.all()
    for kernel in there:
        if kernel.state == "waiting" and kernel.weight is not None and kernel.weight < least:
            queue.end(
                kernel.rank,
                "skipped",
                f"at the roofline, the kernel would save {kernel.weight:.1%}, less than {least:.1%}",
            )
    left = [k for k in queue.all() if k.state in ("running", "waiting") and k.rank not in running.began]
    return min(left, key=lambda k: (k.state != "running", -takes_s.get(k.rank, 0.0), -_weight(k), k.rank), default=None)


def _weight(kernel: Queued) -> float:
    if kernel.weight is None:
        return _UNKNOWN * (1.0 if kernel.share is None else kernel.share)
    return kernel.weight


def _seconds(queue: Queue, turn: Queued, deadline: float, slots: int, running: _Running) -> float:
    """What a kernel gets of the time that is left on all workers: its part by weight, and no less than a search needs."""
    now = time.monotonic()
    free = [now] * (slots - len(running.until)) + [min(until, deadline) for until in running.until.values()]
    left = sum(max(0.0, deadline - since) for since in free)
    waiting = [k for k in queue.all() if k.state in ("running", "waiting") and k.rank not in running.began]
    weights = sum(_weight(kernel) for kernel in waiting)
    part = left * _weight(turn) / weights if weights else left
    return min(deadline - now, max(part, _LEAST_S))


class InThisProcess:
    """One kernel at a time, in this process."""

    slots = 1

    def __init__(
        self, root: Path, machine: Machine, interrupt: Interrupt = NEVER,
        on_progress: Callable[[Progress], None] = lambda progress: None,
    ) -> None:  # fmt: skip
        self._root, self._machine, self._interrupt, self._on_progress = root, machine, interrupt, on_progress
        self._task: KernelTask | None = None

    def begin(self, task: KernelTask) -> None:
        """Take a kernel; it is searched when its end is waited for."""
        self._task = task

    def ended(self) -> list[tuple[int, KernelEnd]]:
        """The ranks that ended, with what came of them. Raises MachineError, KeyboardInterrupt."""
        task, self._task = self._task, None
        assert task is not None
        end = search_kernel(task, self._root, self._machine, self._on_progress, interrupt=self._interrupt)
        return [(task.rank, end)]


@dataclass
class _Running:
    """Turns under way: when each began, and when its time is over."""

    queue: Queue
    began: dict[int, float] = field(default_factory=dict)
    until: dict[int, float] = field(default_factory=dict)

    def begin(self, rank: int, seconds: float) -> None:
        self.began[rank] = now = time.monotonic()
        self.until[rank] = now + seconds
        self.queue.begin(rank)

    def end(self, rank: int) -> None:
        """Count a turn's time, however it ended."""
        self.queue.spend(rank, time.monotonic() - self.began.pop(rank))
        del self.until[rank]


def _end(request: CampaignRequest, folder: Path, queue: Queue) -> CampaignEnd:
    kernels = tuple(queue.all())
    found = sorted((k for k in kernels if k.speedup is not None), key=lambda k: k.rank)
    patches = [(k.kernel, Path(k.folder) / "best.patch", _paths(Path(k.folder))) for k in found]
    data, notes = combine(request.root, patches) if found else (b"", ())
    write_files(folder, {PATCH: data or None})
    return CampaignEnd(kernels, folder / PATCH if data else None, notes, request.device)


def _paths(folder: Path) -> Sequence[str]:
    """The files that a kernel's patch changes."""
    data: Mapping[str, object] = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    best = data.get("best")
    files = best.get("files") if isinstance(best, dict) else None
    return [path for path in files if isinstance(path, str)] if isinstance(files, list) else []
