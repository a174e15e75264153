"""compute-sanitizer over what would be suggested: bad accesses, races, uninitialised reads, barriers misused."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.errors import MachineError
from engine.evaluate.model import Built
from engine.gpu.runner import DeviceFault, GpuRunner
from engine.spec.model import KernelSpec
from engine.verify.plan import Check

Tool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
TOOLS: tuple[Tool, ...] = ("memcheck", "racecheck", "initcheck", "synccheck")
_TIMEOUT_S = 60.0
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error)")
_MAX_LOG = 1 << 20


@dataclass(frozen=True)
class Sanitized:
    """What one tool said of one program. `errors` is None where the tool gave no verdict; `first` is its first report."""

    tool: Tool
    errors: int | None
    first: str = ""
    seconds: float = 0.0


MakeRunner = Callable[[Sequence[str], Path], GpuRunner]


def sanitize(
    spec: KernelSpec, built: Built, checks: Sequence[Check], make: MakeRunner, sanitizer: str,
    tools: Sequence[Tool] = TOOLS,
) -> tuple[Sanitized, ...]:  # fmt: skip
    """Run a program under each tool, side by side, every tool around a worker of its own.

    `make(watcher, scratch)` gives the worker; `sanitizer` is the path of compute-sanitizer. A worker that ends early
    under a tool is what a tool does on an error: its log decides.
    """

    def one(tool: Tool) -> Sanitized:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="optiml-") as name:
            scratch = Path(name)
            log = scratch / "log"
            watcher = [
                sanitizer,
                "--tool",
                tool,
                "--log-file",
                str(log),
                "--print-limit",
                "3",
                "--launch-timeout",
                "60",
            ]
            runner = make(watcher, scratch)
            problem = ""
            try:
                runner.open(spec, built, None)
                runner.run("original", checks, timeout_s=_TIMEOUT_S)
            except (DeviceFault, MachineError) as error:
                problem = error.what
            finally:
                runner.close()
            errors, first = read_log(log)
        if errors is None:
            first = problem or first or "the tool gave no summary"
        return Sanitized(tool, errors, first, time.monotonic() - begin)

    with ThreadPoolExecutor(len(tools)) as executor:
        return tuple(executor.map(one, tools))


def read_log(path: Path) -> tuple[int | None, str]:
    """(errors, first report) of a log; (None, what it says) where there is no summary in it."""
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_LOG).decode("utf-8", "replace")
    except OSError:
        return None, ""
    counts = [int(m[1] or m[2]) for m in _SUMMARY.finditer(text)]
    lines = [line.removeprefix("=========").strip() for line in text.splitlines()]
    reports = [
        line for line in lines if re.match(r"(?:Invalid|Error:|Uninitialized|Barrier error|Program hit|Warning:)", line)
    ]
    first = reports[0][:300] if reports else next((line[:300] for line in lines if line), "")
    return (counts[-1] if counts else None), first
