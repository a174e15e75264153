"""Has kernels searched or reviewed on the workers of a cluster, one at a time on each; one whose worker is lost goes on on another.

What a worker answers is data: frames are bounded, rows of journals carry their checksums, and files go into the kernel's folder alone.
"""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from engine.campaign.cluster_task import JOURNAL, RESULTS, MachineWish, Order, report, run_order
from engine.campaign.kernel_search import GOAL, Goal, KernelEnd, KernelTask, read_goal, write_goal
from engine.capture.recorded_spec import recorded_spec
from engine.cluster.connection import Cluster, ClusterWorker, answer_of
from engine.cuda.load import load_program, read_below
from engine.errors import MachineError, OptimlError, UsageError
from engine.process.decode import NotThis, decode
from engine.process.sandbox import NoSandbox, Sandbox
from engine.process.wire import MAX_ANSWER, WireError, pack, unpack
from engine.run.earlier_run import set_aside
from engine.run.ready_spec import SpecMaker
from engine.search.journal_copy import CopyPosition, JournalCopy, snapshot
from engine.settings.config import NAMES, load_config
from engine.settings.folders import write_files
from engine.spec.kernel_spec import KernelSpec

_POLL_S = 1.0  # how often searches are asked what they came to
_ATTEMPTS = 3  # workers that a kernel may lose: after that it is taken for what ends them. Ours
_BREAKS = (
    10  # times that the connection may break while a kernel is under way: its worker stays, and begins again. Ours
)
_ALONE_S = 60.0  # for a worker to come back where none is left
# That a worker may report nothing of its search before the kernel goes to another: twice the time after which a search that nobody asks
# about ends. And what a kernel may take beyond its time, to set up and confirm the best, before it is given up. Ours.
_SILENT_S, _RESERVE_S = 120.0, 300.0
_LEAST_S = 1.0  # of the rest of a search's time


@dataclass(frozen=True)
class ClusterEvent:
    """Something that happened to a kernel: "begin", "progress", "lost" (with its worker; it goes on elsewhere) or "end"."""

    event: str
    rank: int
    file: str
    kernel: str
    worker: str
    candidates: int = 0
    best: float = 1.0
    left_s: float | None = None
    said: str = ""


@dataclass(frozen=True)
class _Seen:
    """What a worker reports of its search."""

    attempt: str
    candidates: int
    best: float
    elapsed_s: float
    phase: str


@dataclass
class _Turn:
    """A kernel under way. `copy` is of a journal that a worker writes in a folder of its own."""

    task: KernelTask
    began: float = field(default_factory=time.monotonic)
    lost: int = 0
    breaks: int = 0
    attempt: str = ""
    worker: ClusterWorker | None = None
    future: Any = None
    answer: Future[Any] | None = None  # what the worker found, on its way here
    heard: float = 0.0  # when the worker last reported of the attempt
    candidates: int = 0
    out: Path | None = None
    copy: JournalCopy | None = None

    @property
    def left_s(self) -> float | None:
        """What is left of its time; below 0 where that is over."""
        return None if self.task.seconds is None else self.task.seconds - (time.monotonic() - self.began)

    @property
    def ordered(self) -> KernelTask:
        """The task for the next worker: after a first one what is left of its time."""
        if self.left_s is None or not self.attempt:
            return self.task
        asked = self.task.seconds if self.task.whole_s is None else self.task.whole_s
        return dataclasses.replace(self.task, seconds=max(_LEAST_S, self.left_s), whole_s=asked)


@dataclass(frozen=True)
class Brought:
    """What an order brings of a kernel: its spec, and for what is more than a search plain data and files, which are in no repository."""

    spec: KernelSpec
    spec_path: str | None
    asked: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, bytes] = field(default_factory=dict)


class WorkKind(Protocol):
    """What workers are asked to do with kernels. `run` is a function of an installed module, which they call with an order."""

    @property
    def run(self) -> Callable[[bytes], bytes]: ...

    def brought(self, task: KernelTask, *, shared: bool) -> Brought | None:
        """What the order has to bring; None: the worker finds it on the shared folder. Raises OptimlError, said of this kernel."""


class Searches:
    """The searches of `optiml all`."""

    run = staticmethod(run_order)

    def __init__(self, root: Path, box: Sandbox | NoSandbox) -> None:
        self._specs = SpecMaker(root.resolve(), box, recorded=recorded_spec)
        self._root = root.resolve()

    def brought(self, task: KernelTask, *, shared: bool) -> Brought | None:
        """The kernel's spec, where its worker cannot make it of the repository."""
        if shared:
            return None
        ready = self._specs.ready(self._root / task.file, task.kernel)
        return Brought(ready.spec, ready.spec_path)


class ClusterExecutor:
    """The executor of `run_campaign` on a cluster. `close` gives up what is under way; journals stay as they are."""

    def __init__(
        self, cluster: Cluster, root: Path, wish: MachineWish, kind: WorkKind, *, shared: bool,
        on_event: Callable[[ClusterEvent], None] = lambda event: None,
    ) -> None:  # fmt: skip
        self._cluster, self._root, self._wish, self._kind, self._shared = cluster, root.resolve(), wish, kind, shared
        self._on_event = on_event
        self._turns: dict[int, _Turn] = {}
        self._asked: dict[str, Future[Any]] = {}  # questions that workers have not answered, by address
        self._given_up: dict[str, list[str]] = {}  # attempts that workers may still be at, by address
        self._some = threading.Event()
        self._alone_since: float | None = None
        self.slots = len(cluster.workers)
        if not shared:
            check_sent(root)

    def begin(self, task: KernelTask) -> None:
        """Send a kernel to a worker that has nothing to do; later where there is none. Raises MachineError.

        One with `seconds` ends within these and `_RESERVE_S`, whatever becomes of its worker.
        """
        turn = self._turns[task.rank] = _Turn(task)
        self._place(turn)

    def ended(self) -> list[tuple[int, KernelEnd]]:
        """Wait until searches end; their ranks with what came of them. Raises MachineError where the cluster is gone."""
        while True:
            ends = [(rank, end) for rank, turn in list(self._turns.items()) if (end := self._end_of(turn)) is not None]
            for rank, end in ends:
                turn = self._turns.pop(rank)
                self._release(turn)
                best = end.speedup if end.speedup is not None else 1.0
                self._tell("end", turn, candidates=end.candidates, best=best, said=end.said)
            if ends:
                return ends
            self._some.wait(_POLL_S)
            self._some.clear()
            self._look()

    def close(self) -> None:
        """Give up what is under way: workers end it when nobody asks about it any more."""
        for turn in self._turns.values():
            self._release(turn)
        self._turns.clear()

    def _place(self, turn: _Turn) -> None:
        busy = {other.worker.address for other in self._turns.values() if other.worker is not None}
        # One that has not answered may hang.
        worker = next((w for w in self._cluster.workers if w.address not in busy | self._asked.keys()), None)
        if worker is None:
            return
        task = turn.ordered
        turn.attempt, turn.worker, turn.heard = secrets.token_hex(8), worker, time.monotonic()
        frame = self._order(turn, task)
        if frame is None:
            return
        turn.future = self._cluster.submit(self._kind.run, frame, worker)
        turn.future.add_done_callback(lambda future: self._some.set())
        self._tell("begin", turn)

    def _order(self, turn: _Turn, task: KernelTask) -> bytes | None:
        """What the worker is sent; None where the kernel has no spec, which `_end_of` says."""
        assert turn.worker is not None
        order = Order(turn.attempt, task, self._wish, turn.worker.cores, str(self._root))
        try:
            brought = self._kind.brought(turn.task, shared=self._shared)
            if brought is None:
                return pack(dataclasses.asdict(order))
            files = {} if self._shared else self._carried(turn, brought)
        except MachineError:
            raise
        except OptimlError as error:
            turn.future = KernelEnd("failed", str(error))
            return None
        order = dataclasses.replace(
            order, root=order.root if self._shared else "", files=tuple(files), spec=dataclasses.asdict(brought.spec),
            spec_path=brought.spec_path, asked=brought.asked, extra=tuple(brought.extra),
        )  # fmt: skip
        return pack(dataclasses.asdict(order), [*files.values(), *brought.extra.values()])

    def _carried(self, turn: _Turn, brought: Brought) -> dict[str, bytes]:
        """The files that a search reads: of the repository, and of an earlier run in the kernel's folder."""
        spec, compiled = brought.spec, brought.spec.compile
        kernels = [step.kernel for step in spec.steps]
        program = load_program(
            self._root / turn.task.file, spec_file=brought.spec_path, kernels=kernels, include=compiled.include, unit=compiled.unit
        )  # fmt: skip
        files = dict(program.files)
        for name in NAMES:
            data = read_below(self._root, name)
            if data is not None:
                files[name] = data
        turn.out = turn.task.folder(self._root, spec.kernel)
        turn.copy = JournalCopy(turn.out / JOURNAL)
        if turn.copy.place.candidate >= 0:
            below = turn.out.relative_to(self._root).as_posix()
            files[f"{below}/{JOURNAL}"] = snapshot(turn.out / JOURNAL)
            for name in (*RESULTS, GOAL):
                if (turn.out / name).is_file():
                    files[f"{below}/{name}"] = (turn.out / name).read_bytes()
        return files

    def _end_of(self, turn: _Turn) -> KernelEnd | None:
        """How a turn ended; None while it goes on. Raises MachineError, of the worker too."""
        future = turn.future
        if future is None or isinstance(future, KernelEnd):
            return future
        if not future.done():
            return None
        if future.status == "error":
            raise MachineError(f"a search failed: {_brief(future.exception())}", self._where(turn), "see its log")
        if future.status == "finished" and turn.answer is None:
            turn.answer = self._cluster.fetch(future)
            turn.answer.add_done_callback(lambda answer: self._some.set())
        if turn.answer is not None and not turn.answer.done():
            return None
        frame = None if turn.answer is None else answer_of(turn.answer)
        # Dask gave the task up, or the worker went with its answer
        if frame is None or isinstance(frame, BaseException):
            self._lose(turn)
            return None
        return self._answered(turn, frame)

    def _answered(self, turn: _Turn, frame: object) -> KernelEnd | None:
        """How a turn ended by its worker's answer; None where the worker ended it because nobody asked."""
        header, blobs = self._read(frame, turn)
        if header.get("unasked") is True:
            self._lose(turn)
            return None
        try:
            if (error := header.get("error")) is not None:
                what, where, do = decode(tuple[str, str, str], error)
                raise MachineError(what, where or self._where(turn), do)
            end = decode(KernelEnd, header.get("end"))
            if self._shared:
                if end.folder and Path(end.folder).resolve().parent != self._root / ".optiml":
                    raise NotThis("names a folder other than the kernel's", "folder")
                return end
            assert turn.out is not None
            names = decode(tuple[str, ...], header.get("files"))
            if not set(names) <= set(RESULTS) or len(names) > len(blobs):
                raise NotThis("names files other than results", "files")
            self._grow(turn, header, blobs[len(names) :])
            contents: dict[str, bytes | None] = dict.fromkeys(RESULTS)
            write_files(turn.out, contents | dict(zip(names, blobs, strict=False)))
            return dataclasses.replace(end, folder=str(turn.out) if end.folder else "")
        except NotThis as error:
            raise MachineError(f"a worker's answer {error}", self._where(turn), "check that machine") from None

    def _look(self) -> None:
        """See which workers are there, what their searches came to, and which kernels have to go elsewhere. Raises MachineError."""
        there = {worker.address for worker in self._cluster.refresh()}
        if there:
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > _ALONE_S:
            raise MachineError("no workers left", self._cluster.address, "start workers, then resume with --resume")
        for address in {*self._asked, *self._given_up} - there:
            self._asked.pop(address, None)
            self._given_up.pop(address, None)
        self._ask(
            {t.worker.address: t for t in self._turns.values() if t.worker is not None and t.worker.address in there}
        )
        for turn in self._turns.values():
            if isinstance(turn.future, KernelEnd):
                continue
            if turn.left_s is not None and turn.left_s < -_RESERVE_S:
                self._give_up(turn)
            elif turn.worker is None:
                self._place(turn)
            elif not turn.future.done() and turn.worker.address not in there:
                self._lose(turn)
            elif time.monotonic() - turn.heard > _SILENT_S:
                self._lose(turn, silent=turn.worker.address in self._asked)

    def _ask(self, turns: Mapping[str, _Turn]) -> None:
        """Ask workers, each by its address, what their searches came to. One that hangs holds up no other and is asked nothing more."""
        for address in {*turns, *self._given_up} - self._asked.keys():
            asked: dict[str, Any] = {"attempts": {}, "given_up": self._given_up.get(address, [])}
            if (turn := turns.get(address)) is not None:
                asked["attempts"][turn.attempt] = dataclasses.asdict(
                    turn.copy.place if turn.copy is not None else CopyPosition()
                )
            self._asked[address] = self._cluster.question(report, pack(asked), worker=address)
        wait(self._asked.values(), timeout=_POLL_S)
        for address, question in list(self._asked.items()):
            if not question.done():
                continue
            del self._asked[address]
            frame = answer_of(question)
            if address in turns and not isinstance(frame, BaseException):  # whether it is lost shows elsewhere
                self._reported(turns[address], frame)

    def _reported(self, turn: _Turn, frame: object) -> None:
        header, blobs = self._read(frame, turn)
        try:
            seen = decode(_Seen, header["seen"]) if "seen" in header else None
            if seen is None or seen.attempt != turn.attempt:
                return  # it is at another, or has begun nothing yet
            if turn.copy is not None and header.get("rows"):
                self._grow(turn, header, blobs)
        except NotThis as error:
            raise MachineError(f"a worker's report {error}", self._where(turn), "check that machine") from None
        turn.heard, turn.candidates = time.monotonic(), seen.candidates
        self._tell("progress", turn, candidates=seen.candidates, best=seen.best, said=seen.phase)

    def _grow(self, turn: _Turn, header: Mapping[str, Any], blobs: Sequence[bytes]) -> None:
        """Take in rows of a journal, behind the turn's goal; those of another run begin a new one beside the earlier."""
        assert turn.copy is not None
        assert turn.out is not None
        rows, goal = header.get("rows"), header.get("goal")
        if not isinstance(rows, dict):
            raise NotThis("has no rows")
        if rows.get("another") is True:
            turn.copy.close()
            set_aside(turn.out)
            turn.copy = JournalCopy(turn.out / JOURNAL)
        if goal is not None and (found := decode(Goal, goal)) != read_goal(turn.out):
            write_goal(turn.out, found)
        turn.copy.add(rows, blobs)

    def _lose(self, turn: _Turn, *, silent: bool = False) -> None:
        """Take a kernel from a worker that is gone or silent; or from one that is there, where Dask or the worker gave its task up."""
        assert turn.worker is not None
        gone = turn.worker.address not in {worker.address for worker in self._cluster.refresh()}
        turn.breaks, turn.lost = turn.breaks + (not (gone or silent)), turn.lost + (gone or silent)
        said = "its worker was lost" if gone else "its worker does not answer" if silent else "the connection broke"
        self._tell("lost", turn, said=said)
        self._leave(turn)
        if turn.breaks >= _BREAKS:
            turn.future = KernelEnd(
                "failed", f"the connection to the cluster broke {turn.breaks} times during its search"
            )
        if turn.lost >= _ATTEMPTS:
            turn.future = KernelEnd("failed", f"{turn.lost} workers were lost while they searched it")

    def _give_up(self, turn: _Turn) -> None:
        """End a turn whose time is over, and what a search may take beyond it too."""
        where = f" on worker {turn.worker.name}" if turn.worker is not None else ""
        said = f"its search{where} did not end within {_RESERVE_S:.0f} s of its time; the journal has {turn.candidates} candidates"
        if turn.worker is not None:
            self._leave(turn)
        turn.future = KernelEnd("failed", said, candidates=turn.candidates)

    def _leave(self, turn: _Turn) -> None:
        """Take a kernel from its worker, which is told that nobody waits for it any more."""
        assert turn.worker is not None
        self._given_up.setdefault(turn.worker.address, []).append(turn.attempt)
        self._release(turn)
        turn.worker, turn.future, turn.answer = None, None, None

    def _release(self, turn: _Turn) -> None:
        if turn.copy is not None:
            turn.copy.close()
            turn.copy = None
        if turn.future is not None and not isinstance(turn.future, KernelEnd):
            turn.future.release()

    def _read(self, frame: object, turn: _Turn) -> tuple[dict[str, Any], list[bytes]]:
        try:
            if not isinstance(frame, bytes):
                raise WireError("is no frame")
            return unpack(frame, MAX_ANSWER)
        except WireError as error:
            raise MachineError(f"a worker's answer cannot be read: {error.what}", self._where(turn)) from None

    def _where(self, turn: _Turn) -> str:
        name = turn.worker.name if turn.worker is not None else "?"
        return f"worker {name}, {turn.task.file}:{turn.task.kernel}"

    def _tell(self, event: str, turn: _Turn, **more: Any) -> None:
        task, left = turn.task, turn.left_s if turn.left_s is None else max(0.0, turn.left_s)
        worker = turn.worker.name if turn.worker is not None else ""
        self._on_event(ClusterEvent(event, task.rank, task.file, task.kernel, worker, left_s=left, **more))


def check_sent(root: Path) -> None:
    """Raises UsageError where the files of a kernel are not enough to search it."""
    if load_config(root)[0].guardrails.command:
        raise UsageError(
            "guardrails.command needs the whole repository, and only the kernels' files are sent", "--cluster",
            "put the repository in a shared folder and add --shared",
        )  # fmt: skip


def _brief(error: object) -> str:
    return f"{type(error).__name__}: {error}"[:300]
