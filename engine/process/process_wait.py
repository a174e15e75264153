"""Waiting for a child process with a time limit, without polling."""

import contextlib
import os
import select
import subprocess
from typing import Any


def wait_process(process: subprocess.Popen[Any], timeout_s: float | None) -> int:
    """As `Popen.wait`, which looks every 50 ms where it has a time limit. Raises subprocess.TimeoutExpired."""
    if timeout_s is None or not hasattr(os, "pidfd_open"):
        return process.wait(timeout=timeout_s)
    with contextlib.suppress(OSError):  # it has ended and was waited for, or the system has no such call
        ending = os.pidfd_open(process.pid)
        try:
            poll = select.poll()
            poll.register(ending, select.POLLIN)
            ended = bool(poll.poll(min(max(0.0, timeout_s) * 1000, 2**31 - 1)))
        finally:
            os.close(ending)
        if ended:
            return process.wait()
        raise subprocess.TimeoutExpired(process.args, timeout_s)
    return process.wait(timeout=timeout_s)
