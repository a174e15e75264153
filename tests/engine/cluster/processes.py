"""A scheduler, workers and campaigns as processes of their own, to be killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

PRELOAD = Path(__file__).with_name("scripted.py")
_ROOT = Path(__file__).resolve().parents[3]
_WAIT_S = 60.0


def until(condition: Callable[[], bool], what: str, while_runs: subprocess.Popen[bytes] | None = None) -> None:
    """Wait for something to be so, while a process runs."""
    end = time.monotonic() + _WAIT_S
    while not condition():
        if time.monotonic() > end or (while_runs is not None and while_runs.poll() is not None):
            raise AssertionError(f"it never happened: {what}")
        time.sleep(0.05)


class Processes:
    """Dask's commands and ours, each in a process group, in a folder for what they say."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._number = folder, 0
        self.running: list[subprocess.Popen[bytes]] = []
        self.environment = {**os.environ, "OPTIML_CACHE": str(folder / "cache"), "PYTHONPATH": str(_ROOT)}

    def start(self, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[bytes]:
        """Start Python with these arguments."""
        self._number += 1
        with (self.folder / f"log{self._number}").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *arguments], cwd=cwd or self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )  # fmt: skip
        self.running.append(process)
        return process

    def said(self) -> str:
        """What all of them said."""
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("log*")))

    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines that all of them wrote, those of the last process last."""
        paths = sorted(self.folder.glob("log*"), key=lambda path: int(path.name.removeprefix("log")))
        texts = [line for path in paths for line in path.read_text(errors="replace").splitlines()]
        return [json.loads(line) for line in texts if line.startswith("{") and line.endswith("}")]

    def scheduler(self) -> tuple[subprocess.Popen[bytes], str]:
        """A scheduler and its address."""
        file = self.folder / f"scheduler{self._number}.json"
        process = self.start(
            "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file)
        )  # fmt: skip
        until(lambda: file.exists() and file.read_text().endswith("}"), "the scheduler is up", process)
        return process, str(json.loads(file.read_text())["address"])

    def worker(self, address: str, preload: Path = PRELOAD) -> subprocess.Popen[bytes]:
        """A worker without a nanny: killed it is gone. What is preloaded scripts its searches."""
        return self.start(
            "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--resources", "CPU_SLOT=1", "--no-nanny",
            "--no-dashboard", "--preload", str(preload), "--local-directory", str(self.folder),
        )  # fmt: skip

    def campaign(self, root: Path, address: str, *more: str) -> subprocess.Popen[bytes]:
        """`optiml all` on a scheduler's workers."""
        options = ["--cluster", address, "--device", "cpu", "--limit", "0.001", "--format", "json", "--least", "0"]
        return self.start("-m", "engine.cli", "all", str(root), *options, *more, cwd=root)

    def end(self) -> None:
        """End everything, at once."""
        for process in self.running:
            kill(process)


@contextmanager
def processes(folder: Path) -> Iterator[Processes]:
    """Processes that end with the test."""
    found = Processes(folder)
    try:
        yield found
    finally:
        found.end()


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of a process, and of nothing else of its group: what it started has to notice."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    process.wait()


def booked(root: Path) -> dict[str, list[tuple[int, str]]]:
    """The candidates in the journals of a repository, by folder: id and checksum."""
    found = {}
    for path in sorted(root.glob(".optiml/*/journal.sqlite")):
        with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(path)) as db:
            found[path.parent.name] = list(db.execute("SELECT id, checksum FROM candidates ORDER BY id"))
    return found


def total(root: Path) -> int:
    """Candidates in all journals, originals included."""
    return sum(map(len, booked(root).values()))
