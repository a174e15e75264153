"""A worker's side of a campaign or a review: functions that Dask calls by name, given and giving frames of plain data.

Where the repository lies on a shared folder the search writes there. Elsewhere its files come with the order, the journal is asked
for row by row while it grows, and the rest of it goes back with the answer.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from engine.campaign.kernel_search import KernelEnd, KernelTask, read_goal, search_kernel
from engine.errors import MachineError, OptimlError, UsageError
from engine.process.decode import decode
from engine.process.wire import MAX_FRAME, pack, unpack
from engine.run.machine import Machine, make_machine
from engine.search.journal import IN_USE
from engine.search.journal_copy import CopyPosition, rows_after
from engine.search.progress import Progress
from engine.settings.folders import trust
from engine.settings.scratch import scratch_folder
from engine.spec.kernel_spec import KernelSpec

JOURNAL = "journal.sqlite"
RESULTS = ("result.json", "best.patch")  # what goes back beside the journal
# A search that nobody asks about for so long has lost its campaign: it ends, with its journal as it is. Ours.
_LEASE_S, _AGAIN_S = 60.0, 1.0


@dataclass(frozen=True)
class MachineWish:
    """What a worker's machine is made of, as `make_machine` takes it, and the trust domain of its caches."""

    device: Literal["auto", "gpu", "cpu"] = "auto"
    arch: str | None = None
    jobs: int | None = None
    unsafe: bool = False
    trust: str = "trusted"


@dataclass(frozen=True)
class Order:
    """What a worker is sent for one turn. `root` is the repository on a shared folder.

    Where it is "", `files` name the blobs that come along, of the repository and of an earlier run in the kernel's folder, and `spec`
    is the kernel's (`KernelSpec`), read from `spec_path`. What is more than a search has plain data (`asked`) and further
    blobs (`extra`).
    """

    attempt: str
    task: KernelTask
    machine: MachineWish
    cores: tuple[int, ...]
    root: str = ""
    files: tuple[str, ...] = ()
    spec: Mapping[str, Any] | None = None
    spec_path: str | None = None
    asked: Mapping[str, Any] = field(default_factory=dict)
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Served:
    """A turn as it stands on the worker: its order, the repository's root and the machine there, the further blobs by name."""

    order: Order
    root: Path
    machine: Machine
    spec: tuple[KernelSpec, str | None] | None
    extra: Mapping[str, bytes]
    on_progress: Callable[[Progress], None]


@dataclass
class _Live:
    """The search under way in this process. `place` is how far the other side's copy of the journal is."""

    attempt: str
    out: Path | None = None
    progress: Progress = field(default_factory=Progress)
    asked_at: float = field(default_factory=time.monotonic)
    place: CopyPosition = field(default_factory=CopyPosition)

    def saw(self, progress: Progress) -> None:
        """Note the search's progress; ends it where nobody asks any more."""
        self.progress = progress
        if time.monotonic() - self.asked_at > _LEASE_S:
            raise KeyboardInterrupt


class _Worker:
    """What a worker process keeps between orders: one search at a time, and the machine with its warm compilers."""

    def __init__(self) -> None:
        self.live: _Live | None = None
        self._machine: tuple[MachineWish, tuple[int, ...], Machine] | None = None

    def machine(self, wish: MachineWish, cores: tuple[int, ...]) -> Machine:
        """The machine of these wishes on these cores, which what it starts inherits."""
        if self._machine is not None and self._machine[:2] == (wish, cores):
            return self._machine[2]
        if self._machine is not None:
            self._machine[2].close()
            self._machine = None
        machine = make_machine(device=wish.device, arch=wish.arch, jobs=wish.jobs, unsafe=wish.unsafe)
        self._machine = wish, cores, machine
        return machine


_worker = _Worker()


def run_order(frame: bytes) -> bytes:
    """Search the kernel of an order: a frame with its end, or with the error that the campaign ends with."""

    def search(turn: Served) -> KernelEnd:
        return search_kernel(turn.order.task, turn.root, turn.machine, turn.on_progress, turn.spec)

    return serve(frame, search)


def serve(frame: bytes, work: Callable[[Served], KernelEnd]) -> bytes:
    """Do some work on the kernel of an order, as `run_order`."""
    header, blobs = unpack(frame, MAX_FRAME)
    order = decode(Order, header)
    extra = dict(zip(order.extra, blobs[len(order.files) :], strict=True))
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(order.cores) & allowed or allowed)  # of this thread, and of what it starts
    live = _worker.live = _Live(order.attempt)
    try:
        with trust(order.machine.trust), _repository(order, blobs) as root:
            machine = _worker.machine(order.machine, order.cores)
            spec = None if order.spec is None else (decode(KernelSpec, order.spec), order.spec_path)
            turn = Served(order, root, machine, spec, extra, live.saw)
            if order.root or spec is None:
                return pack({"end": dataclasses.asdict(_unlocked(lambda: work(turn)))})
            live.out = order.task.folder(root, spec[0].kernel)
            end = work(turn)
            files = {name: path.read_bytes() for name in RESULTS if (path := live.out / name).is_file()}
            rows, packed = rows_after(live.out / JOURNAL, live.place, whole=True)
            return pack(
                {"end": dataclasses.asdict(end), "files": list(files), "rows": rows}, [*files.values(), *packed]
            )
    except KeyboardInterrupt:
        return pack({"unasked": True})  # the journal has what it found
    except OptimlError as error:
        return pack({"error": [error.what, error.where, error.do]})
    finally:
        os.sched_setaffinity(0, allowed)
        _worker.live = None


def report(frame: bytes) -> bytes:
    """What came of the search under way since the last time; nothing where it is none of those that the frame asks for."""
    header, _ = unpack(frame)
    live = _worker.live
    wanted = header.get("attempts", {})
    if live is not None and live.attempt in header.get("given_up", ()):
        live.asked_at = -math.inf  # its task was given up: the next one waits for its end
    if live is None or live.attempt not in wanted:
        return pack({})
    live.asked_at, live.place = time.monotonic(), decode(CopyPosition, wanted[live.attempt])
    progress = live.progress
    found = {
        "attempt": live.attempt, "candidates": progress.recorded, "best": float(progress.best_ratio),
        "elapsed_s": float(progress.elapsed_s), "phase": progress.phase,
    }  # fmt: skip
    rows, blobs = ({}, []) if live.out is None else rows_after(live.out / JOURNAL, live.place)
    return pack({"seen": found, "rows": rows, "goal": _goal(live.out)}, blobs)


def _goal(out: Path | None) -> Mapping[str, object] | None:
    goal = None if out is None else read_goal(out)
    return None if goal is None else dataclasses.asdict(goal)


def _unlocked(search: Callable[[], KernelEnd]) -> KernelEnd:
    """What a search comes to once nobody else is in its folder: one that was abandoned notices that after `_LEASE_S`."""
    until = time.monotonic() + 1.5 * _LEASE_S
    while True:
        try:
            return search()
        except MachineError as error:
            if not error.what.startswith(IN_USE):
                raise
            if time.monotonic() > until:  # by a worker that hangs
                return KernelEnd("failed", str(error))
            time.sleep(_AGAIN_S)


@contextmanager
def _repository(order: Order, blobs: Sequence[bytes]) -> Iterator[Path]:
    """The repository's root here: the shared one, or a folder of its own with the files that came along."""
    if order.root:
        yield Path(order.root)
        return
    with scratch_folder() as scratch:
        root = scratch / "repository"
        (root / ".git").mkdir(parents=True)  # what marks a root
        for name, data in zip(order.files, blobs, strict=False):  # others are behind them
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or ".git" in path.parts:
                raise UsageError("leads out of the repository", name[:200])
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
        yield root
