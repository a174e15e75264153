"""Records a program's kernel launches on the GPU: one run for times, a second one for arguments and buffers."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from engine.capture.launch_choice import different_launches, write_plan
from engine.capture.library import injection_library, require_cupti
from engine.capture.manifest import (
    BLOBS,
    MAX_BLOB,
    VERSION,
    Buffer,
    LaunchTimes,
    Manifest,
    RecordedArgument,
    RecordedKernel,
    RecordedLaunch,
    hide_from_git,
    save_manifest,
    store_blob,
)
from engine.capture.program_run import ProgramEnd, run_program
from engine.capture.raw_records import RawLaunch, RawTime, Times, read_launches, read_notes, read_times
from engine.capture.source_binding import bind, repository_kernels, split_name
from engine.errors import MachineError, OptimlError, RefusedError, UsageError
from engine.settings.folders import results_folder

_LEAST_SHARE = 0.01  # of the time of all kernels, for arguments to be recorded unasked; ours
_MOST_KERNELS = 32
_MOST_SHAPES = 64  # kept in the manifest for one kernel
_MOST_NAMES = 20_000
_SUBSCRIBED = "39"  # CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED
_PRIVILEGES = ("35", "40")


@dataclass(frozen=True)
class CaptureRequest:
    """What is to be recorded. `kernels` (plain or qualified names) are those whose arguments are; empty: those that take time.

    `launches` are recorded of each kernel, `buffer_bytes` of each buffer and `total_bytes` of all together; `limit_s` ends
    each run.
    """

    command: tuple[str, ...]
    root: Path
    folder: Path
    cache: Path
    kernels: tuple[str, ...] = ()
    launches: int = 3
    buffer_bytes: int = 16 << 20
    total_bytes: int = 1 << 30
    limit_s: float | None = None
    arguments: bool = True


@dataclass(frozen=True)
class CaptureEnd:
    """A recording, and how the program ended in each run: times, arguments."""

    manifest: Manifest
    ends: tuple[ProgramEnd, ...]


def record(request: CaptureRequest, say: Callable[[str], None] = lambda phase: None) -> CaptureEnd:
    """Run the command twice and store what it launched. A program that fails or is ended leaves what it recorded.

    `say` is called with each phase before it begins.
    Raises MachineError without CUPTI or a compiler; UsageError where the command cannot be started or another tool is in
    the way; RefusedError where it launched no kernel.
    """
    check_environment(os.environ)
    cupti = require_cupti()
    say("building the recording library")
    library = injection_library(request.cache, cupti)
    environment = {
        **os.environ,
        "CUDA_INJECTION64_PATH": str(library),
        "OPTIML_CAPTURE_CUPTI": str(cupti.library),
        "OPTIML_CAPTURE_BYTES": str(request.total_bytes),
        "OPTIML_CAPTURE_BUFFER_BYTES": str(min(request.buffer_bytes, MAX_BLOB)),
    }
    with (
        results_folder(request.folder),
        tempfile.TemporaryDirectory(dir=request.folder, prefix=".run-", ignore_cleanup_errors=True) as scratch,
    ):
        hide_from_git(request.folder)
        return _record(request, environment, Path(scratch), say)


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse where another tool is injected already. Raises UsageError."""
    held = environment.get("CUDA_INJECTION64_PATH")
    if held:
        raise UsageError(
            f"another tool already records this program (CUDA_INJECTION64_PATH is {held})",
            do="run 'optiml capture' outside nsys, ncu and compute-sanitizer, or unset the variable",
        )


def _record(
    request: CaptureRequest, environment: Mapping[str, str], scratch: Path, say: Callable[[str], None]
) -> CaptureEnd:  # fmt: skip
    first, second = scratch / "times", scratch / "launches"
    first.mkdir()
    second.mkdir()
    runs = 2 if request.arguments else 1
    say(f"run 1 of {runs}: times{limited(request)}")
    ends = [run_program(request.command, {**environment, "OPTIML_CAPTURE_DIR": str(first)}, request.limit_s)]
    say("reading launch times")
    times, problems = read_times(first)
    notes = [*(f"the first run: {p}" for p in problems), *_explained(read_notes(first))]
    if not times.rows:
        raise _nothing(request, ends[0], times, notes)
    if not times.ended:
        notes.append("the program was ended: launches in its last two seconds may be missing")
    if times.dropped:
        notes.append(f"{times.dropped} launches have no record: CUPTI's buffers were full")
    kernels = measured_kernels(request, times)
    manifest = Manifest(VERSION, request.command, ends[0].exit_code, ends[0].seconds, kernels, tuple(notes))
    save_manifest(request.folder, manifest)
    if not request.arguments or ends[0].interrupted:
        return CaptureEnd(manifest, tuple(ends))
    chosen = chosen_kernels(request, kernels)
    plan = [
        r for name in chosen for r in different_launches([t for t in times.rows if t.kernel == name], request.launches)
    ]
    if not plan:
        return CaptureEnd(manifest, tuple(ends))
    write_plan(scratch / "plan", plan)
    again = {**environment, "OPTIML_CAPTURE_DIR": str(second), "OPTIML_CAPTURE_PLAN": str(scratch / "plan")}
    say(
        f"run 2 of 2: arguments of {len(plan)} launches of {len(chosen)} kernels; the first run took {ends[0].seconds:.0f} s"
    )
    ends.append(run_program(request.command, again, request.limit_s))
    say("storing what was recorded")
    launches, problems = read_launches(second)
    notes += [*(f"the second run: {p}" for p in problems), *_explained(read_notes(second))]
    stored = BlobStore(request.folder / BLOBS, second, request.buffer_bytes)
    kernels = tuple(with_launches(k, [r for r in launches if r.kernel == k.name], stored) for k in kernels)
    kernels = bound_kernels(request.root, kernels, request.command)
    notes += _missed(plan, kernels)
    manifest = replace(manifest, kernels=kernels, notes=tuple(dict.fromkeys(notes)))
    save_manifest(request.folder, manifest)
    stored.drop_others(manifest)
    return CaptureEnd(manifest, tuple(ends))


def limited(request: CaptureRequest) -> str:
    """How long a run may take, as a phase says it; "" without a limit."""
    return "" if request.limit_s is None else f", for {request.limit_s:.0f} s at most"


def measured_kernels(request: CaptureRequest, times: Times) -> tuple[RecordedKernel, ...]:
    """The kernels by time, bound to their source."""
    rows: dict[str, list[RawTime]] = {}
    for row in times.rows[:_MOST_NAMES]:
        rows.setdefault(row.kernel, []).append(row)
    whole = sum(r.total_ns for r in times.rows) or 1
    found = []
    for name, each in rows.items():
        each.sort(key=lambda r: -r.total_ns)
        total = sum(r.total_ns for r in each)
        shapes = tuple(
            LaunchTimes(
                r.grid, r.block, r.shared, r.count, r.total_ns / 1e3, r.min_ns / 1e3, r.max_ns / 1e3, r.in_graphs
            )
            for r in each[:_MOST_SHAPES]
        )
        count, registers = sum(r.count for r in each), each[0].registers
        found.append(
            RecordedKernel(
                name, each[0].demangled, "", 0, "", "", "", total / whole, count, total / 1e3, registers, shapes, ()
            )
        )
    found.sort(key=lambda k: (-k.total_us, k.name))
    return bound_kernels(request.root, tuple(found), request.command)


def bound_kernels(
    root: Path, kernels: Sequence[RecordedKernel], command: tuple[str, ...]
) -> tuple[RecordedKernel, ...]:
    """The kernels with their source; where arguments are recorded, their number tells overloads apart."""
    there = repository_kernels(root, [k.demangled for k in kernels])
    found = []
    for kernel in kernels:
        count = len(kernel.launches[0].arguments) if kernel.launches else None
        made = bind(kernel.demangled, count, there, command)
        if made.place is None:
            found.append(replace(kernel, file="", line=0, kernel="", template_args="", problem=made.problem))
            continue
        file, source = made.place.file, made.place.kernel
        found.append(
            replace(
                kernel,
                file=file,
                line=source.line,
                kernel=source.qualified,
                template_args=made.template_args,
                problem="",
            )
        )
    return tuple(found)


def chosen_kernels(
    request: CaptureRequest, kernels: Sequence[RecordedKernel], least_share: float = _LEAST_SHARE
) -> list[str]:
    """Names of the kernels whose arguments are recorded: those asked for, else the repository's own with so much of the time.

    Raises UsageError for a name that no kernel has.
    """
    if not request.kernels:
        own = [k for k in kernels if k.file or k.problem.startswith("several")]
        return [k.name for k in own if k.share >= least_share][:_MOST_KERNELS]
    found: list[str] = []
    for wanted in request.kernels:
        plain = {k.name: split_name(k.demangled).qualified for k in kernels}
        names = [n for n, q in plain.items() if wanted in (n, q, q.rpartition("::")[2])]
        if not names:
            raise UsageError(f"the program launched no kernel '{wanted[:100]}'", "--kernel", "its times are stored")
        found += names
    return list(dict.fromkeys(found))


def with_launches(kernel: RecordedKernel, raw: Sequence[RawLaunch], stored: BlobStore) -> RecordedKernel:
    """The kernel with what was recorded of its launches, one of each grid, block and shared memory."""
    launches: dict[tuple[object, ...], RecordedLaunch] = {}
    for each in raw:
        key = (each.grid, each.block, each.shared)
        times = next((s for s in kernel.shapes if (s.grid, s.block, s.shared) == key), None)
        if times is None or key in launches:
            continue
        arguments = tuple(
            RecordedArgument(
                a.size,
                a.data,
                tuple(
                    Buffer(
                        p.at, p.memory, p.address, p.allocation, p.offset, min(p.recorded, stored.most), p.inner,
                        stored.keep(p.before), stored.keep(p.after),
                    )
                    for p in a.pointers
                ),
            )
            for a in each.arguments
        )  # fmt: skip
        launches[key] = RecordedLaunch(
            each.call, each.grid, each.block, each.cluster, each.shared, each.contents, times.count, times.total_us,
            arguments,
        )  # fmt: skip
    return replace(kernel, launches=tuple(launches.values()))


@dataclass
class BlobStore:
    """Buffer contents of a recording: from the run's files to blobs."""

    blobs: Path
    run: Path
    most: int

    def keep(self, name: str) -> str:
        """The name of the blob with what a file of the run contains."""
        return store_blob(self.blobs, self.run / name, self.most) if name else ""

    def drop_others(self, manifest: Manifest) -> None:
        """Delete the blobs of earlier recordings."""
        named = {
            f"{blob}.z"
            for k in manifest.kernels for launch in k.launches for a in launch.arguments for b in a.buffers
            for blob in (b.before, b.after)
        }  # fmt: skip
        with contextlib.suppress(OSError):
            for path in list(self.blobs.iterdir()):
                if path.name not in named:
                    path.unlink()


def _missed(plan: Sequence[RawTime], kernels: Sequence[RecordedKernel]) -> Iterator[str]:
    there = {(k.name, r.grid, r.block, r.shared) for k in kernels for r in k.launches}
    missed: dict[str, list[RawTime]] = {}
    for row in plan:
        if (row.kernel, row.grid, row.block, row.shared) not in there:
            missed.setdefault(row.kernel, []).append(row)
    for rows in missed.values():
        name = split_name(rows[0].demangled).qualified
        if all(r.in_graphs for r in rows):
            yield (
                f"{name}: launched by CUDA graphs, which hide arguments; record a run without graphs "
                "(PyTorch: without torch.cuda.graph and mode='reduce-overhead'; vLLM: enforce_eager)"
            )
        else:
            yield f"{name}: {len(rows)} of its launches did not occur in the second run"


def _explained(notes: Sequence[tuple[str, str]]) -> list[str]:
    return [_explanation(code, detail) for code, detail in notes]


def _explanation(code: str, detail: str) -> str:
    if code == _SUBSCRIBED:
        who = f" ({detail})" if detail else ", the program itself or a profiler in it"
        return f"another subscriber uses CUPTI{who}: disable it and record again"
    if code in _PRIVILEGES:
        return (
            "the driver allows profiling to administrators only: load nvidia with NVreg_RestrictProfilingToAdminUsers=0"
        )
    if code == "cupti":
        return f"CUPTI could not be opened: {detail[:300]}"
    if code == "driver":
        return "the driver's library (libcuda.so.1) lacks required functions"
    if code == "layout":
        return "the driver does not report argument layouts: use one of CUDA 12.4 or later"
    return f"CUPTI reports error {code[:20]}" if code.isdigit() else code[:300]


def _nothing(request: CaptureRequest, end: ProgramEnd, times: Times, notes: Sequence[str]) -> OptimlError:
    command = request.command[0]
    if notes:
        return MachineError(notes[0], command)
    how = "was ended" if end.exit_code is None else f"ended with exit code {end.exit_code}"
    if not times.processes:
        what = f"{how} and never initialised CUDA" if end.exit_code == 0 else f"{how} before it initialised CUDA"
        return RefusedError(what, command, "without a GPU: 'optiml capture --cpu'")
    return RefusedError(f"{how} and launched no kernel that was recorded", command, "check that it runs on this GPU")
