"""One run of the user's program, as the user runs it: no sandbox, its own terminal, its own environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import UsageError
from engine.process.process_wait import wait_process

_GRACE_S = 10.0  # for a program that is asked to end


@dataclass(frozen=True)
class ProgramEnd:
    """How a run ended. `exit_code` is None where the time limit ended it, negative for a signal."""

    exit_code: int | None
    seconds: float
    interrupted: bool = False


def run_program(argv: Sequence[str], environment: Mapping[str, str], limit_s: float | None) -> ProgramEnd:
    """Run the command and wait for it. Ctrl-C and the limit end it, with its workers where it has no terminal to read from.

    Raises UsageError where it cannot be started.
    """
    begin = time.monotonic()
    # In a group of its own its workers end with it; but a group that is not the terminal's may not read from it.
    group = None if sys.stdin is not None and sys.stdin.isatty() else 0
    try:
        child = subprocess.Popen(list(argv), env=dict(environment), process_group=group)
    except OSError as error:
        raise UsageError(f"cannot be started: {error.strerror}", argv[0], "check the command after --") from None
    interrupted = False
    try:
        code: int | None = wait_process(child, limit_s)
    except subprocess.TimeoutExpired:
        code = None
    except KeyboardInterrupt:
        code, interrupted = None, True
    if code is None:
        _end(child, whole_group=group == 0)
    return ProgramEnd(code, time.monotonic() - begin, interrupted)


def _end(child: subprocess.Popen[bytes], *, whole_group: bool) -> None:
    def send(number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number) if whole_group else child.send_signal(number)

    for number, patience_s in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, None)):
        send(number)
        try:
            wait_process(child, patience_s)
            break
        except subprocess.TimeoutExpired:
            continue
    if whole_group:
        send(signal.SIGKILL)  # what it left behind
