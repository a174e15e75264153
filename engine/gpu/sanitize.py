"""compute-sanitizer on originals and finalists: invalid accesses, races, uninitialised reads, misused barriers.

A tool gives a verdict only where the program ran to its end under it. Reports are attributed to kernels by name: a report in one
of the worker's own kernels is an internal error, every other report counts against the program that was run.
"""

import functools
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.compile.built import Built
from engine.errors import MachineError
from engine.gpu.runner import DeviceFault, GpuRunner
from engine.settings.folders import read_regular
from engine.settings.scratch import scratch_folder
from engine.spec.kernel_spec import KernelSpec
from engine.verify.plan import Check

Tool = Literal["memcheck", "racecheck", "initcheck", "synccheck"]
TOOLS: tuple[Tool, ...] = ("memcheck", "racecheck", "initcheck", "synccheck")
KERNEL_FILES = tuple(Path(__file__).parent / name for name in ("tools.cu", "relations.cu"))
_TIMEOUT_S = 60.0
_MAX_LOG = 1 << 20
_MAX_TEXT = 300

_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: \d+ hazards? displayed \((\d+) error)")
# A line of the log: one space before a report's first line, more before its details.
_LINE = re.compile(r"^=========( *)(.*?)\s*$", re.M)
_REPORT = re.compile(r"Invalid |Error: |Uninitialized |Barrier error|Program hit|Misaligned |Out-of-range ")
# Frames of device code. Addresses, allocations and host frames follow the word "at" too.
_NO_FRAME = re.compile(r"Host Frame|Saved host|Address |and is |by thread")
_FRAME = re.compile(r"(?:\bat|Device Frame:) (?!__)(.+?)(?= and (?:Read|Write) access at| \[\d+ hazards?\]|$)")
_BLIND = re.compile(
    r"not supported|unsupported|no attachable|internal (?:sanitizer )?error|before first instrumented|"
    r"failed to (?:initialize|attach|instrument|patch)",
    re.I,
)


@dataclass(frozen=True)
class Sanitized:
    """The verdict of one tool on one program. `errors` is None where it gave none; `first` is the first report, or the reason.

    `lost`: the program's run failed under the tool, without a report.
    """

    tool: Tool
    errors: int | None
    first: str = ""
    seconds: float = 0.0
    lost: bool = False


@dataclass(frozen=True)
class ToolReport:
    """One report of a log: its first line with the first frame, and the names of the functions it was found in."""

    text: str
    functions: tuple[str, ...]


@dataclass(frozen=True)
class ToolLog:
    """What a log contains. `errors` is the summary's count, None without a summary; `blind` says why the tool could not look."""

    errors: int | None
    reports: tuple[ToolReport, ...] = ()
    blind: str = ""


MakeRunner = Callable[[Sequence[str], Path], GpuRunner]


def sanitize(
    spec: KernelSpec, built: Built, checks: Sequence[Check], make: MakeRunner, sanitizer: str,
    tools: Sequence[Tool] = TOOLS,
) -> tuple[Sanitized, ...]:  # fmt: skip
    """Run a program under each tool in parallel, each tool around a worker of its own.

    `make(watcher, scratch)` gives the worker; `sanitizer` is the path of compute-sanitizer. A tool ends the worker on an
    error, so a worker that ended early is judged by the log. Raises MachineError for a report in a kernel of the worker.
    """

    def one(tool: Tool) -> Sanitized:
        begin = time.monotonic()
        with scratch_folder() as folder:
            scratch = folder / "worker"  # the worker may write there, and not where the folder says that it is in use
            scratch.mkdir()
            log = scratch / "log"
            options = ["--tool", tool, "--log-file", str(log), "--print-limit", "10", "--launch-timeout", "60"]
            runner = make([sanitizer, *options], scratch)
            problem = ""
            try:
                runner.open(spec, built, None)
                runner.run("original", checks, timeout_s=_TIMEOUT_S)
            except (DeviceFault, MachineError) as error:
                problem = error.what
            finally:
                runner.close()
            found = verdict(tool, read_log(log), problem, built.text)
        return Sanitized(tool, found.errors, found.first, time.monotonic() - begin, found.lost)

    with ThreadPoolExecutor(len(tools)) as executor:
        return tuple(executor.map(one, tools))


def verdict(tool: Tool, log: ToolLog, problem: str, text: str) -> Sanitized:
    """The verdict from a tool's log. `problem` is why the run failed ("" where it did not), `text` the program's device code.

    Raises MachineError for a report in a kernel of the worker.
    """
    words = set(re.findall(r"[A-Za-z_]\w*", text))  # a program may have a function with the name of one of ours
    ours = [r for r in log.reports if r.functions and all(_ours(name) and name not in words for name in r.functions)]
    theirs = [r for r in log.reports if r not in ours and (r.functions or not ours)]
    if theirs:
        return Sanitized(tool, max(log.errors or 0, len(theirs)), theirs[0].text)
    if ours:
        raise MachineError(f"{tool} reports an error in OptiML's own code: {ours[0].text}", do="please report this")
    if log.errors:
        return Sanitized(tool, log.errors, "errors without a readable report")
    if log.blind:
        return Sanitized(tool, None, log.blind)
    if problem:
        return Sanitized(tool, None, f"the kernel did not finish under the tool: {problem}", lost=True)
    if log.errors is None:
        return Sanitized(tool, None, "the tool wrote no summary")
    return Sanitized(tool, 0)


def read_log(path: Path) -> ToolLog:
    """The contents of a log of compute-sanitizer. A missing file is an empty log."""
    data = read_regular(path, _MAX_LOG)  # its folder is one that the worker may write to
    if data is None:
        return ToolLog(None)
    text = data.decode("utf-8", "replace")
    counts = [int(m[1] or m[2]) for m in _SUMMARY.finditer(text)]
    groups: list[list[str]] = []
    blind = ""
    for indent, line in _LINE.findall(text):
        if len(indent) < 2 and line:
            groups.append([line])
            blind = blind or (line[:_MAX_TEXT] if _BLIND.search(line) else "")
        elif line and groups:
            groups[-1].append(line)
    reports = tuple(_report(group) for group in groups if _REPORT.match(group[0]) and not _BLIND.search(group[0]))
    return ToolLog(counts[-1] if counts else None, reports, blind)


def _report(lines: Sequence[str]) -> ToolReport:
    frames = [frame for line in lines if not _NO_FRAME.match(line) for frame in _FRAME.findall(line)]
    names = dict.fromkeys(name for name in map(_function, frames) if name)
    text = lines[0] if _FRAME.search(lines[0]) or not frames else f"{lines[0]} at {frames[0]}"
    return ToolReport(text[:_MAX_TEXT], tuple(names))


def _function(frame: str) -> str:
    """The plain name of the function of a frame: `k` of `0x70 in k.cu:7:void ns::k<float>(float *)+0x70 in k.cu:7`."""
    frame = re.sub(r"^0x[0-9a-fA-F]+ in ", "", frame)
    frame = re.sub(r"^[^\s:(]+:\d+:", "", frame)
    frame = frame.split("+0x", 1)[0].replace("(anonymous namespace)", "anonymous")
    names = re.findall(r"[A-Za-z_]\w*", re.split(r"[(<]", frame, maxsplit=1)[0])
    return names[-1] if names else ""


def _ours(name: str) -> bool:
    return name in own_kernels() or name.startswith("cupy_")


@functools.cache
def own_kernels() -> frozenset[str]:
    """The names of the worker's own kernels."""
    text = "".join(path.read_text() for path in KERNEL_FILES)
    types = re.findall(r"^FOR_TYPE\((\w+),", text, re.M)
    names = re.findall(r"__global__ void (\w+?)(##NAME)?\(", text)
    return frozenset(name + kind for name, typed in names for kind in (types if typed else ("",)))
