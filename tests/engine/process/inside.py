"""Runs what the attempts to get out of the sandbox try."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import pytest

from engine.process import sandbox as module
from engine.process.sandbox import Limits, NoSandbox, Sandbox, SandboxAccess

_WORKS, _WHY = module.available()
needs_sandbox = pytest.mark.skipif(not _WORKS, reason=f"no sandbox here: {_WHY}")
SECRET = "s3cret-of-the-host"

Done = subprocess.CompletedProcess[str]


def run(argv: list[str], timeout: float = 100) -> Done:
    return subprocess.run(
        argv, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL, errors="replace"
    )


def python(box: Sandbox | NoSandbox, code: str, **options: Any) -> Done:
    return run(command(box, [sys.executable, "-I", "-c", code], options))


def shell(box: Sandbox | NoSandbox, code: str, **options: Any) -> Done:
    return run(command(box, ["/bin/sh", "-c", code], options))


def command(box: Sandbox | NoSandbox, argv: Sequence[str], options: Mapping[str, Any]) -> list[str]:
    limits = {each.name for each in fields(Limits)}
    return box.command(
        argv,
        SandboxAccess(**{name: value for name, value in options.items() if name not in limits}),
        Limits(**{name: value for name, value in options.items() if name in limits}),
    )
