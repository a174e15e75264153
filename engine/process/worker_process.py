"""A long-lived child process that answers frames, with a deadline for each answer."""

import contextlib
import os
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, Literal, cast

from engine.errors import MachineError
from engine.process import wire
from engine.process.bounded_output import BoundedOutput
from engine.process.process_wait import wait_process


@dataclass
class WorkerLost(MachineError):
    """The worker did not answer: `kind` is "timeout" (it was killed at its deadline) or "died"."""

    kind: Literal["timeout", "died"] = "died"
    stderr: str = ""


# A sandbox's processes end with the thread that started them: with one that lives as long as this process they end when they shall.
_starter = ThreadPoolExecutor(1, thread_name_prefix="start")
_LOG_BYTES = 4 << 20  # of what a process says on standard error; what it writes behind that is lost
_PIECE = 256 << 10  # bytes: most answers come in one, with their machine code


class _Answers:
    """What a process writes, read by whoever waits for it, with the deadline kept by the system.

    Each call that blocks costs a wait for the interpreter where other threads are at work: asking first whether there is something
    to read would be one more.
    """

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._left = end, memoryview(b"")
        self.deadline = 0.0

    def read(self, count: int) -> memoryview:
        """At most so many bytes; none at the end. Raises TimeoutError at the deadline, OSError once it is closed."""
        if not self._left:
            left_us = int(1e6 * (self.deadline - time.monotonic()))
            if left_us <= 0:  # to the system that would be no limit
                raise TimeoutError
            timeout = struct.pack("ll", *divmod(left_us, 1_000_000))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
            try:
                self._left = memoryview(self._socket.recv(_PIECE))
            except BlockingIOError:
                raise TimeoutError from None
        part, self._left = self._left[:count], self._left[count:]
        return part

    def close(self) -> None:
        self._socket.close()


class Worker:
    """One child process, asked through a pipe and answering on a socket. Not thread-safe: one call at a time.

    `argv` is started in a session of its own, so that killing it takes everything it started along; with `group` it stays in the
    caller's, and ends with whoever kills that. The child reads frames from its standard input and answers each with one frame on its
    standard output.
    """

    def __init__(
        self, argv: Sequence[str], *, limit: int = wire.MAX_ANSWER, environment: Mapping[str, str] | None = None,
        group: bool = False,
    ):  # fmt: skip
        self._limit, self._group = limit, group
        self._stderr = BoundedOutput(_LOG_BYTES)
        ours, theirs = socket.socketpair()
        self._answers = _Answers(ours)
        with theirs:
            start = partial(
                subprocess.Popen[bytes],
                argv,
                stdin=subprocess.PIPE,
                stdout=theirs,
                stderr=self._stderr.fileno(),
                start_new_session=not group,
                cwd="/",
                env=None if environment is None else dict(environment),
            )
            self._process = _starter.submit(start).result()
        self._reading = threading.Lock()
        self.ended = False  # by `kill`

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def ended_by(self) -> int | None:
        """The signal that ended the process, None where it runs or ended otherwise. A sandbox reports it as 128 and its number."""
        code = self._process.poll()
        return None if code is None else -code if code < 0 else code - 128 if code > 128 else None

    def call(
        self, header: Mapping[str, Any], blobs: Sequence[bytes] = (), *, timeout_s: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send one frame and wait for its answer. Raises WorkerLost, after which the worker is gone."""
        self.send(header, blobs)
        return self.receive(timeout_s=timeout_s)

    def send(self, header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Send one frame without waiting. That the process has ended is told by `receive`, behind the answers it left."""
        with contextlib.suppress(OSError, ValueError):
            wire.send(cast(BinaryIO, self._process.stdin), header, blobs)

    def receive(self, *, timeout_s: float) -> tuple[dict[str, Any], list[bytes]]:
        """The next answer. Raises WorkerLost."""
        self._answers.deadline = time.monotonic() + timeout_s
        lost: Literal["timeout", "died"] = "died"
        try:
            with self._reading:
                answer = wire.receive(cast(BinaryIO, self._answers), self._limit)
            if not self.ended:
                return answer
        except TimeoutError:
            lost = "timeout"
        except (wire.WireError, OSError, ValueError):
            pass
        raise self._lost(lost) from None

    def _lost(self, kind: Literal["timeout", "died"]) -> WorkerLost:
        self.kill()
        what = "a worker process did not answer in time" if kind == "timeout" else "a worker process ended"
        return WorkerLost(what, kind=kind, stderr=self.stderr())

    def stderr(self) -> str:
        """The last 8 KiB of what the child wrote to its standard error, of which 4 MiB are kept."""
        return self._stderr.tail(8192).decode("utf-8", "replace")

    def kill(self) -> None:
        """End the process and all it started, at once. Safe to call again."""
        self.ended = True
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.kill if self._group else os.killpg)(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            wait_process(self._process, 10)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        # Never under whoever reads it, as its number may be another file's by then: he sees the end, which may take the system seconds,
        # and closes it.
        if self._reading.acquire(blocking=False):
            self._answers.close()
            self._reading.release()

    def finish(self, *, timeout_s: float) -> int | None:
        """Close the child's input and wait until it ends by itself: its exit code, None where it had to be killed."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = wait_process(self._process, timeout_s)
        self.kill()
        return code

    def close(self, patience_s: float = 2.0) -> None:
        """End the process: politely (its input closes), then by force when it has not ended in that time."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            wait_process(self._process, patience_s)
        self.kill()
