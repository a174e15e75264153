"""Rows of tables over several GPUs of one machine at once: one row at a time on each, each in a process of its own.

Rows are independent, and a ratio stands within one row and so within one GPU. A row's process sees one GPU (`CUDA_VISIBLE_DEVICES`)
and its share of the processor's cores; it writes its row to a file of its own, and this process alone writes records. A row that
fails, crashes or is killed costs that row. Rows that need another's result wait for it; rows of a group go to the GPU where the group
began, while there are any, because what such a row leaves (benchmarks/store.py) is for that GPU alone.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.bench import Ledger, Progress, Row
from benchmarks.examples import one_gpu, optiml
from engine.errors import MachineError, UsageError
from engine.process.cores import shares

_POLL_S = 0.1
_END_S = 5.0  # for what was interrupted to clear up after itself
Item = tuple[Ledger, str]
Command = Callable[[Ledger, str, Path], Sequence[str]]


@dataclass(frozen=True)
class Gpu:
    """One GPU: what `CUDA_VISIBLE_DEVICES` calls it, and what the driver says of it (empty: rows run without one)."""

    index: str
    name: str
    uuid: str


@dataclass
class _Running:
    item: Item
    process: subprocess.Popen[bytes]
    target: Path
    output: IO[bytes]
    begin: float
    date: str


@dataclass
class _Slot:
    gpu: Gpu
    cpus: Sequence[int]
    running: _Running | None = None


def find_gpus(text: str, device: str = "auto") -> tuple[Gpu, ...]:
    """The GPUs that `--gpus` names: a number says how many of those visible here, a list with commas which.

    With `device` "cpu" they stand for rows at once without a GPU. Raises UsageError for what is no such list, MachineError where
    one does not answer.
    """
    listed = [word.strip() for word in text.split(",") if word.strip()]
    if not listed or not all(word.isdecimal() for word in listed) or len(set(listed)) < len(listed):
        raise UsageError(f"'{text[:60]}' names no GPUs", "--gpus", "write how many, as in 4, or which, as in 0,1,2,3")
    if "," not in text:
        visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
        count = int(text)
        if count < 1 or (visible and device != "cpu" and count > len(visible)):
            raise UsageError(
                f"{count} GPUs cannot be had ({len(visible)} are visible)" if visible else "must be above 0", "--gpus"
            )
        listed = visible[:count] if visible and device != "cpu" else [str(i) for i in range(count)]
    if device == "cpu":
        return tuple(Gpu(index, "", "") for index in listed)
    return tuple(_gpu(index) for index in listed)


def _gpu(index: str) -> Gpu:
    import pynvml

    try:
        pynvml.nvmlInit()
        named = not index.isdecimal()
        handle = pynvml.nvmlDeviceGetHandleByUUID(index) if named else pynvml.nvmlDeviceGetHandleByIndex(int(index))
        return Gpu(index, str(pynvml.nvmlDeviceGetName(handle)), str(pynvml.nvmlDeviceGetUUID(handle)))
    except pynvml.NVMLError as error:
        raise MachineError(f"GPU {index} does not answer: {error}", "--gpus", "look with nvidia-smi -L") from None


def row_command(ledger: Ledger, key: str, target: Path) -> list[str]:
    """The command that measures one row of a table and writes it to a file."""
    place, settings = ledger.place, ledger.settings
    command = [
        optiml(),
        "bench",
        ledger.table.name,
        "--only",
        key,
        "--row-to",
        str(target),
        "--device",
        settings.device,
    ]
    command += ["--out", str(place.results), "--checkout", str(place.root)]
    for option in ("seconds", "candidates", "seeds"):
        value = getattr(settings, option)
        if value is not None:
            command += [f"--{option}", str(value)]
    return command


def end_with_parent() -> None:
    """In a row's process: end it and all that it started when whoever started it is gone, whose end of stdin then closes."""

    def watch() -> None:
        sys.stdin.buffer.read()
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)

    if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):  # started by hand it has a terminal or nothing there
        threading.Thread(target=watch, daemon=True).start()


def run(
    ledgers: Sequence[Ledger], gpus: Sequence[Gpu], *, limit_s: float | None = None, command: Command = row_command,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> list[Progress]:  # fmt: skip
    """Measure what is missing of some tables, all rows in one queue: tables in their order, in each the longest rows first.

    `limit_s`: no row is begun that would not end within so many seconds from now. An interruption ends all rows that run.
    """
    queue = _Queue(ledgers, limit_s, say)
    slots = [
        _Slot(gpu, cpus) for gpu, cpus in zip(gpus, shares(sorted(os.sched_getaffinity(0)), len(gpus)), strict=True)
    ]
    work = Path(tempfile.mkdtemp(prefix="optiml-bench"))
    try:
        while True:
            for slot in slots:
                item = queue.take(slot.gpu) if slot.running is None else None
                if item is not None:
                    say(f"{item[0].table.name}: {item[1]} on GPU {slot.gpu.index} …")
                    slot.running = _begin(item, slot, command, work)
            if all(slot.running is None for slot in slots):
                break
            time.sleep(_POLL_S)
            for slot in slots:
                if slot.running is not None and slot.running.process.poll() is not None:
                    running, slot.running = slot.running, None
                    row = {**_ended(running), "gpu": {**asdict(slot.gpu), "at_once": len(slots)}}
                    ledger, key = running.item
                    ledger.record["gpus_at_once"] = max(len(slots), ledger.record.get("gpus_at_once", 0))
                    ledger.book(key, row)
                    queue.done(running.item)
                    say(
                        f"{ledger.table.name}: {key} {'failed' if row['error'] is not None else 'done'}, {row['wall_s']:.0f} s"
                    )
    finally:
        _end([slot.running for slot in slots if slot.running is not None])
        shutil.rmtree(work, ignore_errors=True)
    return [ledger.progress() for ledger in ledgers]


class _Queue:
    """Which row is next on a GPU."""

    def __init__(self, ledgers: Sequence[Ledger], limit_s: float | None, say: Callable[[str], None]) -> None:
        self._begin, self._limit_s, self._say = time.monotonic(), limit_s, say
        self._waiting: list[Item] = []
        for ledger in ledgers:
            if not ledger.todo:
                say(ledger.all_there)
            self._waiting += [(ledger, key) for key in sorted(ledger.todo, key=ledger.row_s, reverse=True)]
        self._needs = {_name(item): item[0].table.needs(item[0].place, item[1]) for item in self._waiting}
        self._open = set(self._needs)  # waiting or running
        self._home: dict[str, str] = {}  # groups, and the GPU where each began

    def take(self, gpu: Gpu) -> Item | None:
        """The next row for a GPU; None while there is none."""
        self._drop()
        ready = [item for item in self._waiting if not self._open.intersection(self._needs[_name(item)])]
        own = [item for item in ready if self._home.get(_group(item), gpu.index) == gpu.index]
        item = next(iter(own or ready), None)
        if item is not None:
            self._waiting.remove(item)
            self._home.setdefault(_group(item), gpu.index)
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


def _begin(item: Item, slot: _Slot, command: Command, work: Path) -> _Running:
    ledger, key = item
    target = Path(tempfile.mkdtemp(dir=work)) / "row.json"
    output = (target.parent / "output").open("w+b")
    environment = {**os.environ, **one_gpu(slot.gpu.index)}
    process = subprocess.Popen(
        list(command(ledger, key, target)),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=output,
        env=environment,
        process_group=0,
    )
    with contextlib.suppress(OSError):  # it has ended, or may not be told
        os.sched_setaffinity(process.pid, slot.cpus)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return _Running(item, process, target, output, time.monotonic(), date)


def _ended(running: _Running) -> Row:
    """The row that a process left, or how it ended without one. What it started ends with it."""
    _signal(running, signal.SIGKILL)
    code = running.process.returncode
    running.output.seek(0)
    said = running.output.read().decode("utf-8", "replace").strip()[-1500:]
    _close(running)
    with contextlib.suppress(OSError, ValueError):
        row: Any = json.loads(running.target.read_text(encoding="utf-8"))
        if isinstance(row, dict) and "error" in row:
            return row
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    wall_s = round(time.monotonic() - running.begin, 2)
    return {
        "error": f"the row's process ended with {how} and no row: {said or 'it said nothing'}", "date": running.date, "commit": "",
        "wall_s": wall_s,
    }  # fmt: skip


def _end(runnings: Sequence[_Running]) -> None:
    for running in runnings:
        _signal(running, signal.SIGINT)
    deadline = time.monotonic() + _END_S
    for running in runnings:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.process.wait(max(0.0, deadline - time.monotonic()))
        _signal(running, signal.SIGKILL)
        running.process.wait()
        _close(running)


def _signal(running: _Running, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(running.process.pid, number)


def _close(running: _Running) -> None:
    running.output.close()
    if running.process.stdin is not None:
        running.process.stdin.close()
