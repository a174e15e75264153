"""`optiml capture -- COMMAND`: run a program and record how it launches its kernels."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from engine.capture.cpu_recording import record_on_cpu
from engine.capture.manifest import recording_folder
from engine.capture.recording import CaptureRequest, record
from engine.commands.json_answer import print_json
from engine.commands.optimize import parse_budget
from engine.cuda.load import repository_root
from engine.errors import UsageError
from engine.report.safe_text import clean
from engine.report.terminal import Live
from engine.report.times_table import times_table
from engine.settings.folders import cache_folder

if TYPE_CHECKING:
    from engine.capture.recording import CaptureEnd

_MIB = 1 << 20
SCHEMA = "optiml.capture/1"


def run(arguments: argparse.Namespace) -> int:
    """Exit code 0 when the program ended with 0, 1 when it did not (the recorded data are stored), 130 interrupted.

    Raises UsageError, MachineError, RefusedError.
    """
    for option in ("launches", "max_buffer", "max_total"):
        if not 1 <= getattr(arguments, option) <= 1 << 20:
            raise UsageError("must be between 1 and 1048576", f"--{option.replace('_', '-')}")
    command = tuple(arguments.command)
    is_source = arguments.cpu and command[0].endswith(".cu") and Path(command[0]).is_file()
    if not is_source and shutil.which(command[0]) is None:
        raise UsageError("no such program", command[0], "check the command after --")
    root = repository_root(Path.cwd() / "any")
    folder = (arguments.out or recording_folder(root)).resolve()
    request = CaptureRequest(
            command, root, folder, cache_folder(), kernels=tuple(arguments.kernel), launches=arguments.launches,
            buffer_bytes=arguments.max_buffer * _MIB, total_bytes=arguments.max_total * _MIB,
            limit_s=_seconds(arguments.limit), arguments=not arguments.times_only,
        )  # fmt: skip
    recorder = record_on_cpu if arguments.cpu else record
    if arguments.format == "text":
        with Live(beside=True) as live:
            done = recorder(request, live.phase)
        return _report(done, folder)
    with _stdout_to_stderr():  # what the program prints is none of the object
        done = recorder(request)
    print_json(
        SCHEMA, folder=str(folder), recording=asdict(done.manifest), exit_codes=[end.exit_code for end in done.ends]
    )
    return _code(done)


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    seconds: float | None = parse_budget(text).seconds
    if seconds is None:
        raise UsageError(f"invalid limit '{text}': expected e.g. 90s or 5m", "--limit")
    return seconds


def _report(done: CaptureEnd, folder: Path) -> int:
    print(times_table(done.manifest))
    for note in done.manifest.notes:
        print(f"note: {clean(note)}", file=sys.stderr)
    print(f"recorded in {folder}; the data are private to this machine", file=sys.stderr)
    return _code(done)


def _code(done: CaptureEnd) -> int:
    if any(end.interrupted for end in done.ends):
        raise KeyboardInterrupt("the recorded data are stored")
    for number, end in enumerate(done.ends, 1):
        if end.exit_code != 0:
            how = "was ended at the time limit" if end.exit_code is None else f"ended with exit code {end.exit_code}"
            print(f"optiml: run {number}: the program {how}; the recorded data are stored", file=sys.stderr)
            return 1
    return 0
