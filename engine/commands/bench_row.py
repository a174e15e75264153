"""One row of a table in a process of its own, on a worker of a cluster: functions that Dask calls by name, with plain data.

A row that fails, crashes or is killed costs that row, and not the worker.
"""

import contextlib
import datetime
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from engine.process.cores import ONE_THREAD
from engine.process.decode import decode
from engine.process.wire import pack, unpack

_END_S = 5.0  # for what was interrupted to clear up after itself
_SAID = 1500
_RUNNING: set[subprocess.Popen[bytes]] = set()  # of this process


def run_row(frame: bytes) -> bytes:
    """Run the command of a row (`arguments` of optiml, which writes it to `--row-to`) on these `cores`: a frame with its `row`."""
    header, _ = unpack(frame)
    arguments, cores = decode(tuple[str, ...], header.get("arguments")), decode(tuple[int, ...], header.get("cores"))
    date, begin = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="optiml-bench") as folder:
        target, said = Path(folder) / "row.json", Path(folder) / "output"
        with said.open("wb") as output:
            # Threads are limited for a worker, and not for what is measured.
            environment = {name: value for name, value in os.environ.items() if name not in ONE_THREAD}
            process = subprocess.Popen(
                command_of(arguments, target), cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=output, stderr=output,
                process_group=0,
            )  # fmt: skip
            _RUNNING.add(process)
            with contextlib.suppress(OSError):  # it has ended, or may not be told
                os.sched_setaffinity(process.pid, cores)
            try:
                code = process.wait()
            finally:
                _RUNNING.discard(process)
                _signal(process, signal.SIGKILL)  # what it started
                assert process.stdin is not None
                process.stdin.close()
        with contextlib.suppress(OSError, ValueError):
            row: Any = json.loads(target.read_text(encoding="utf-8"))
            if isinstance(row, dict) and "error" in row:
                return pack({"row": row})
        text = said.read_bytes().decode("utf-8", "replace").strip()[-_SAID:]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    error = f"the row's process ended with {how} and no row: {text or 'no output'}"
    wall_s = round(time.monotonic() - begin, 2)
    return pack({"row": {"error": error, "date": date, "commit": "", "wall_s": wall_s}})


def stop_row(text: str) -> str:
    """End the row that this process runs, as a Ctrl-C does, and then at once; what it was given."""
    running, deadline = list(_RUNNING), time.monotonic() + _END_S
    for process in running:
        _signal(process, signal.SIGINT)
    while any(process in _RUNNING for process in running) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in running:
        _signal(process, signal.SIGKILL)
    return text


def command_of(arguments: Sequence[str], target: Path) -> list[str]:
    """The command of a row that is written to `target`."""
    return [sys.executable, "-m", "engine.cli", *arguments, "--row-to", str(target)]


def end_with_parent() -> None:
    """In a row's process: end it and all that it started when whoever started it is gone, whose end of stdin then closes."""

    def watch() -> None:
        sys.stdin.buffer.read()
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)

    if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):  # started by hand it has a terminal or nothing there
        threading.Thread(target=watch, daemon=True).start()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
