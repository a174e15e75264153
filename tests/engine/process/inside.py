"""Runs what the attempts to get out of the sandbox try."""

from __future__ import annotations

import subprocess
import sys

import pytest

from engine.process import sandbox as module
from engine.process.sandbox import NoSandbox, Sandbox

_WORKS, _WHY = module.available()
needs_sandbox = pytest.mark.skipif(not _WORKS, reason=f"no sandbox here: {_WHY}")
SECRET = "s3cret-of-the-host"

Done = subprocess.CompletedProcess[str]


def run(argv: list[str], timeout: float = 100) -> Done:
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, errors="replace"
    )


def python(box: Sandbox | NoSandbox, code: str, **options: object) -> Done:
    return run(box.command([sys.executable, "-I", "-c", code], **options))  # type: ignore[arg-type]


def shell(box: Sandbox | NoSandbox, code: str, **options: object) -> Done:
    return run(box.command(["/bin/sh", "-c", code], **options))  # type: ignore[arg-type]
