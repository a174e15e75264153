"""A long-lived child process that answers frames, with a deadline for each answer."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, cast

from engine import wire
from engine.errors import MachineError


@dataclass
class WorkerLost(MachineError):
    """The worker did not answer: `kind` is "timeout" (it was killed at its deadline) or "died"."""

    kind: Literal["timeout", "died"] = "died"
    stderr: str = ""


# A sandbox's processes end with the thread that started them: with one that lives as long as this process they end when they shall.
_starter = ThreadPoolExecutor(1, thread_name_prefix="start")


class Worker:
    """One child process on a pipe. Not thread-safe: one call at a time.

    `argv` is started in a session of its own, so that killing it takes everything it started along. The child reads
    frames from its standard input and answers each with one frame on its standard output.
    """

    def __init__(
        self, argv: Sequence[str], *, limit: int = wire.MAX_FRAME, environment: Mapping[str, str] | None = None
    ):
        self._limit = limit
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._answers: queue.Queue[tuple[dict[str, Any], list[bytes]] | None] = queue.Queue()
        self._process = _starter.submit(
            subprocess.Popen[bytes],
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            start_new_session=True,
            cwd="/",
            env=None if environment is None else dict(environment),
        ).result()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def _read(self) -> None:
        stream = cast(BinaryIO, self._process.stdout)
        with contextlib.suppress(wire.WireError, OSError, ValueError):
            while True:
                self._answers.put(wire.receive(stream, self._limit))
        self._answers.put(None)

    def call(
        self, header: Mapping[str, Any], blobs: Sequence[bytes] = (), *, timeout_s: float
    ) -> tuple[dict[str, Any], list[bytes]]:
        """Send one frame and wait for its answer. Raises WorkerLost, after which the worker is gone."""
        self.send(header, blobs)
        return self.receive(timeout_s=timeout_s)

    def send(self, header: Mapping[str, Any], blobs: Sequence[bytes] = ()) -> None:
        """Send one frame without waiting. Raises WorkerLost."""
        try:
            wire.send(cast(BinaryIO, self._process.stdin), header, blobs)
        except (OSError, ValueError):
            raise self._lost("died") from None

    def receive(self, *, timeout_s: float) -> tuple[dict[str, Any], list[bytes]]:
        """The next answer. Raises WorkerLost."""
        try:
            answer = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise self._lost("timeout") from None
        if answer is None:
            raise self._lost("died")
        return answer

    def _lost(self, kind: Literal["timeout", "died"]) -> WorkerLost:
        self.kill()
        what = "a worker process did not answer in time" if kind == "timeout" else "a worker process ended"
        return WorkerLost(what, kind=kind, stderr=self.stderr())

    def stderr(self) -> str:
        """The last 8 KiB of what the child wrote to its standard error."""
        end = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, end - 8192))
        return self._stderr.read().decode("utf-8", "replace")

    def kill(self) -> None:
        """End the process and all it started, at once. Safe to call again."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=10)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def finish(self, *, timeout_s: float) -> int | None:
        """Close the child's input and wait until it ends by itself: its exit code, None where it had to be killed."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        code: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=timeout_s)
        self.kill()
        return code

    def close(self, patience_s: float = 2.0) -> None:
        """End the process: politely (its input closes), then by force when it has not ended in that time."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=patience_s)
        self.kill()
