"""Runs CUDA kernels on the CPU to refute candidates."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from engine.compile.cache import DiskCache
from engine.compile.compiler import compile_error
from engine.compile.fallback_headers import FALLBACK
from engine.cpu.condition_marks import mark_conditions
from engine.cpu.features import unsupported
from engine.cpu.host_source import ENTRIES, file_name
from engine.cpu.host_source import prepare as prepare_text
from engine.cpu.job_files import write_jobs
from engine.cpu.jobs import CpuBinary, CpuFinding, CpuJob, CpuRun, Unsupported
from engine.cpu.object_lines import Lines
from engine.cpu.reports import MAX_RESULT_BYTES, Report, read_report
from engine.cpu.sampled import SAMPLE_BYTES, Writes, read_writes
from engine.cpu.toolchain import INCLUDE, RUNTIME, Prepared, Toolchain, find_toolchain, prepare, zig_environment
from engine.errors import CompileError, MachineError
from engine.process.bounded_output import BoundedOutput
from engine.process.process_wait import wait_process
from engine.process.sandbox import Limits, SandboxAccess
from engine.spec.kernel_spec import KernelSpec

if TYPE_CHECKING:
    from engine.process.sandbox import NoSandbox, Sandbox

_SHORT_REPORT = 16 << 10  # bytes: what most reports take, of MAX_RESULT_BYTES
_MAX_LOG = 20_000  # characters of a compiler's output that are kept
_BUSY = 4  # times its deadline of processor time a run may take: on a busy machine it waits
_MARK_TIMEOUT_S = 60.0
_RACE_FIBERS = 640  # CUDA threads that race detection looks at, but two blocks of each launch: 1 MB and up to 1 ms each
_RACE_FIBERS_PER_CORE = 1280  # of all jobs together: a second at most
_MAX_TEXT = 8 << 20
_MAX_OBJECT = 256 << 20
_FILE_BYTES = 4 << 30  # that a process may write: what ends behind it is killed
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")
_PTX = re.compile(r"attribute error: (inline PTX [\w.]+)")
_EXPRESSION = re.compile(r"[\w:<>,\s()*&+\-/.']{1,400}\Z")
_STATUS_BYTES = 512  # of a line in which the supervisor reports how a job ended
_LOOK_S = 0.1
_ENDS = re.compile(r"^(\d{1,6}) (ok|timeout|exit \d+|signal \d+)(?: (.*))?$", re.M)
# Every report counts: of two of one place the first may be harmless.
_TSAN = (
    "suppress_equal_stacks=0:suppress_equal_addresses=0:history_size=0:symbolize=0:atexit_sleep_ms=0:report_signal_unsafe=0:"
    "handle_segv=0:handle_sigbus=0:handle_sigfpe=0:exitcode=0"
)


@dataclass(frozen=True)
class _Done:
    """How a program ended: its status (None: it was killed at its time limit), its output and its log, both bounded."""

    status: int | None
    output: bytes
    log: str


class CpuMachine:
    """A machine of fibres. Each method may be called from several threads.

    `cache` keeps what is built once per compiler; `scratch` holds what one job needs, and is cleaned. With `sandbox` None
    compiler and kernels run without a sandbox: for code that is the user's own. `jobs` is how many run at once. `go_on` is called
    before each batch of runs and ten times a second beside a program; what it raises ends both.
    """

    def __init__(self, cache: Path, *, sandbox: Sandbox | NoSandbox | None, scratch: Path, jobs: int = 2,
                 toolchain: Toolchain | None = None) -> None:  # fmt: skip
        self.cache, self.sandbox, self.scratch, self.jobs = cache.resolve(), sandbox, scratch.resolve(), max(1, jobs)
        found = toolchain or find_toolchain()
        if found is None:
            raise MachineError(
                "no C++ compiler was found", "", "install g++ or clang++, or 'pip install optiml-cuda[zig]'"
            )
        self.toolchain = found
        self._prepared: dict[str, Prepared] = {}
        self._objects = DiskCache(self.cache / "objects")
        self.go_on: Callable[[], None] = lambda: None
        # Reads of shared memory that nothing has written are no finding, and what is there depends on a run's order.
        self.unwritten_shared = False

    def prepared(self, std: str = "c++17") -> Prepared:
        """The header and programs for a language standard, built on the first call. C++14 code is taken as C++17."""
        std = std if std in ("c++20", "c++23") else "c++17"
        if std not in self._prepared:
            self._prepared[std] = prepare(self.toolchain, self.cache, std)
        return self._prepared[std]

    @property
    def degraded(self) -> tuple[str, ...]:
        """What this machine cannot find out, in sentences. Empty when nothing is missing."""
        missing = self.prepared().race_missing
        return (f"races are not detected: {missing}",) if missing else ()

    def build(
        self,
        text: str,
        path: str,
        spec: KernelSpec,
        expressions: Sequence[str],
        *,
        timeout_s: float = 60,
        strict: bool = False,
    ) -> CpuBinary:
        """Compiles a device slice for the CPU. `expressions` name the kernel of each step: "k" or "k<float, 256>".

        With `strict` undefined behaviour shows (`Toolchain.strict_flags`).

        Raises Unsupported with what the code uses that cannot run here, and CompileError with the compiler's log.
        """
        features = unsupported(text)
        if features:
            raise Unsupported(f"this code cannot run on the CPU: it uses {', '.join(features)}", path,
                              "it is only compiled for the GPU", features=features)  # fmt: skip
        if len(text) > _MAX_TEXT:
            raise Unsupported(f"the source has {len(text)} characters", path, features=("a file of this size",))
        for expression in expressions:
            if not _EXPRESSION.match(expression):
                raise CompileError(f"'{expression[:80]}' is not a kernel name", path, "check the spec's kernel", log="")
        return self._built(prepare_text(text, path, list(expressions)), path, spec, strict, timeout_s)

    def marked(self, text: str, binary: CpuBinary, expressions: Sequence[str], *, strict: bool = False) -> CpuBinary:
        """The binary that `build` made of a text once more, with marks that report the outcomes of its conditions.

        Raises CompileError.
        """
        spec, path = binary.spec, binary.path
        prepared = self.prepared(spec.compile.std)
        header = str(prepared.header if self.toolchain.kind == "gcc" else INCLUDE / "optiml_cuda.h")
        argv = [*self._front(spec), "-E", "-include", header, "-x", "c++", "-"]
        done = self._start(
            argv, self._compiler_access(prepared.folder, "/tmp"), timeout_s=_MARK_TIMEOUT_S,
            given=prepare_text(text, path, list(expressions)).encode(),
        )  # fmt: skip
        if done.status != 0:
            raise CompileError("the preprocessor refuses the kernel", path, log=done.log[:_MAX_LOG])
        marks = mark_conditions(done.output.decode("utf-8", "replace"), file_name(path), ENTRIES)
        built = self._built(marks.text, path, spec, strict, _MARK_TIMEOUT_S)
        return replace(built, conditions=marks.conditions, unread=marks.unread, unread_in=marks.unread_in)

    def _built(self, translated: str, path: str, spec: KernelSpec, strict: bool, timeout_s: float) -> CpuBinary:
        prepared = self.prepared(spec.compile.std)
        # The prepared folder's name stands for the compiler, its flags and the header.
        flags = self.toolchain.strict_flags if strict else ()
        parts = [1, prepared.folder.name, self._std(spec), list(spec.compile.defines), translated, *flags]
        key = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        kept = self._objects.get(key)
        compiled = kept[1] if kept is not None else self._compile(translated, path, spec, flags, timeout_s)
        folder = self._folder("build-")
        target = folder / "kernel.so"
        try:
            target.write_bytes(compiled)
            target.chmod(0o644)
        except OSError as error:
            raise MachineError("the scratch folder cannot be written", str(folder), str(error)) from None
        if kept is None:
            self._objects.put(key, {}, compiled)
        return CpuBinary(target, spec, path)

    def _front(self, spec: KernelSpec) -> list[str]:
        """The compiler with what decides how it reads a kernel's text, but for the header."""
        argv = [*self.toolchain.argv, f"-std={self._std(spec)}", *self.toolchain.kernel_flags]
        argv += ["-I", str(INCLUDE), "-I", str(FALLBACK)]
        for define in spec.compile.defines:
            if re.fullmatch(r"[A-Za-z_]\w*(=[\w.+\-() ]*)?", define):
                argv.append(f"-D{define}")
        return argv

    def _compile(self, text: str, path: str, spec: KernelSpec, flags: Sequence[str], timeout_s: float) -> bytes:
        """The shared object of a text. The compiler reads it from its input and writes below /tmp, which goes with the sandbox."""
        prepared = self.prepared(spec.compile.std)
        with (
            tempfile.TemporaryDirectory(prefix="build-")
            if self.sandbox is None or not self.sandbox.safe
            else nullcontext("/tmp/build") as work
        ):
            source, target = f"{work}/kernel.cpp", f"{work}/kernel.so"
            argv = [*self._front(spec), *flags]
            if self.toolchain.kind == "gcc":
                argv += ["-include", str(prepared.header)]
            else:
                argv += ["-include-pch", str(prepared.header) + ".pch"]
            # The object must not bring ThreadSanitizer's library: the program that loads it has the callbacks.
            link = ["-shared", "-nodefaultlibs", source, "-o", target, "-lm", "-lc"]
            commands = [[*argv, *link]]
            if self.toolchain.kind == "zig":  # its driver would build a C library for each link
                linker = [self.toolchain.argv[0], "ld.lld", "-shared", f"{work}/kernel.o", "-o", target]
                commands = [[*argv, "-c", source, "-o", f"{work}/kernel.o"], linker]
            steps = " && ".join(f"{shlex.join(command)} 1>&2" for command in commands)
            done = self._start(
                ["/bin/sh", "-c", f'mkdir -p "$0" && cat >"$0/kernel.cpp" && {steps} && cat "$0/kernel.so"', work],
                self._compiler_access(prepared.folder, work), timeout_s=timeout_s, memory=4 << 30, given=text.encode(),
            )  # fmt: skip
        if done.status == 0 and done.output:
            return done.output
        log = done.log.replace(source, path)[:_MAX_LOG]
        if done.status is None:
            raise CompileError(f"the C++ compiler did not end in {timeout_s:g} s", path, log=log)
        if refused := tuple(dict.fromkeys(_PTX.findall(log))):
            raise Unsupported(f"this code cannot run on the CPU: it uses {', '.join(refused)}", path,
                              "it is only compiled for the GPU", features=refused)  # fmt: skip
        told = compile_error(log, path)
        raise CompileError(
            f"the C++ compiler reports an error in the kernel: {told.what}", told.where, told.do, log=log
        )

    def discard(self, binary: CpuBinary) -> None:
        """Removes what `build` left for a binary that is not needed any more."""
        shutil.rmtree(binary.object.parent, ignore_errors=True)

    def run(self, binary: CpuBinary, job: CpuJob, *, deadline_s: float = 20) -> CpuRun:
        """One run with every access checked. One launch per step, in order."""
        return self.run_many(binary, [job], deadline_s=deadline_s)[0]

    def run_many(self, binary: CpuBinary, jobs: Sequence[CpuJob], *, deadline_s: float = 20) -> list[CpuRun]:
        """Several runs from one process start, each in a process of its own with the deadline, in seconds of processor time."""
        return self.run_each([(binary, job) for job in jobs], deadline_s=deadline_s)

    def run_each(self, runs: Sequence[tuple[CpuBinary, CpuJob]], *, deadline_s: float = 20) -> list[CpuRun]:
        """As `run_many`, of binaries that trust each other."""
        return self._runs(runs, "screen", deadline_s)

    def races(self, binary: CpuBinary, jobs: Sequence[CpuJob], *, deadline_s: float = 20) -> tuple[CpuFinding, ...]:
        """What ThreadSanitizer finds over these jobs, each race once. Raises MachineError where `degraded` says why.

        Jobs of large blocks cost a second each; of those only as many are looked at as fit the time, the ones with the most blocks.
        """
        found: dict[tuple[object, ...], CpuFinding] = {}
        for run in self.race_runs([(binary, job) for job in _watched(jobs, self.jobs)], deadline_s=deadline_s):
            for finding in run.findings:
                found.setdefault((finding.kind, finding.message), finding)
        return tuple(found.values())

    def race_runs(self, runs: Sequence[tuple[CpuBinary, CpuJob]], *, deadline_s: float = 20) -> list[CpuRun]:
        """Runs under ThreadSanitizer, whose findings are the races, from one process start: its threads are made once for all.

        Binaries that do not trust each other need a call each. Raises MachineError as `races`.
        """
        if runs and self.prepared(runs[0][0].spec.compile.std).race is None:
            raise MachineError("races cannot be detected", "", self.degraded[0])
        return self._runs(runs, "race", deadline_s)

    def _std(self, spec: KernelSpec) -> str:
        return spec.compile.std if spec.compile.std in ("c++20", "c++23") else "c++17"

    def _folder(self, prefix: str) -> Path:
        try:
            self.scratch.mkdir(parents=True, exist_ok=True)
            folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self.scratch))
            folder.chmod(0o755)  # in the sandbox another user reads it; nobody else gets through the folders above
            return folder
        except OSError as error:
            raise MachineError("the scratch folder cannot be written", str(self.scratch), str(error)) from None

    def _compiler_access(self, prepared: Path, work: str) -> SandboxAccess:
        """What the C++ compiler may read, and its environment where it writes below `work`."""
        environment = zig_environment(Path(work)) if self.toolchain.kind == "zig" else {}
        return SandboxAccess(readable=[prepared, INCLUDE, RUNTIME, *self.toolchain.folders], environment=environment)

    def _start(
        self, argv: Sequence[str], access: SandboxAccess, *, timeout_s: float, memory: int | None = None, given: bytes = b"",
        outputs: Sequence[BoundedOutput] = (),
    ) -> _Done:  # fmt: skip
        """Run a program in the sandbox, where it can write nothing that stays but its output, its log and `outputs`."""
        command = list(argv)
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", **access.environment}
        if self.sandbox is not None:
            command = self.sandbox.command(
                argv,
                access,
                Limits(memory_bytes=memory, cpu_s=int(timeout_s * 4) + 10, file_bytes=_FILE_BYTES),
            )
        with BoundedOutput(_MAX_OBJECT) as out, BoundedOutput(_MAX_LOG * 4) as err, tempfile.TemporaryFile() as text:
            text.write(given)
            text.seek(0)
            try:
                process = subprocess.Popen(
                    command, stdin=text, stdout=out.fileno(), stderr=err.fileno(), env=env, start_new_session=True,
                    pass_fds=[each.fileno() for each in outputs],
                )  # fmt: skip
            except OSError as error:
                raise MachineError("a program could not be started", command[0], str(error)) from None
            try:
                status = self._ended(process, time.monotonic() + timeout_s)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            return _Done(status, out.head(_MAX_OBJECT), err.head(_MAX_LOG * 4).decode("utf-8", "replace"))

    def _ended(self, process: subprocess.Popen[bytes], until: float) -> int | None:
        """A process's status; None at the time limit."""
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return wait_process(process, min(left, _LOOK_S))
            self.go_on()
        return None

    def _runs(
        self, runs: Sequence[tuple[CpuBinary, CpuJob]], mode: Literal["screen", "race"], deadline_s: float
    ) -> list[CpuRun]:
        """In batches whose results fit what a process may write: behind that it is killed."""
        batches: list[list[tuple[CpuBinary, CpuJob]]] = []
        room = 0
        for binary, job in runs:
            size = MAX_RESULT_BYTES + _output_bytes(binary.spec, job)
            if not batches or size > room:
                batches.append([])
                room = _FILE_BYTES
            batches[-1].append((binary, job))
            room -= size
        return [run for batch in batches for run in self._batch(batch, mode, deadline_s)]

    def _batch(
        self, jobs: Sequence[tuple[CpuBinary, CpuJob]], mode: Literal["screen", "race"], deadline_s: float
    ) -> list[CpuRun]:
        self.go_on()
        prepared = self.prepared(jobs[0][0].spec.compile.std)
        program = prepared.screen if mode == "screen" else prepared.race
        assert program is not None
        folder = self._folder("run-")
        sizes = [MAX_RESULT_BYTES + _output_bytes(binary.spec, job) for binary, job in jobs]
        starts = [0, *itertools.accumulate(sizes)]
        try:
            with BoundedOutput(starts[-1]) as results, BoundedOutput(len(jobs) * _STATUS_BYTES) as statuses:
                places = [
                    f"output {results.fileno()} {start} {MAX_RESULT_BYTES}\nfibers {_RACE_FIBERS if mode == 'race' else 0}"
                    f"\nunwritten_shared {int(self.unwritten_shared)}"
                    for start in starts[:-1]
                ]
                files = write_jobs(folder, jobs, places)
                rounds = -(-len(jobs) // self.jobs)
                figures = [statuses.fileno(), self.jobs, int(deadline_s * 1000), int(_BUSY * deadline_s * 1000)]
                started = time.monotonic()
                done = self._start(
                    [str(prepared.supervise), *map(str, figures), str(program), *map(str, files)],
                    SandboxAccess(
                        readable=[prepared.folder, *{binary.object.parent: None for binary, _ in jobs}, folder],
                        environment={"TSAN_OPTIONS": _TSAN} if mode == "race" else {},
                    ),
                    timeout_s=_BUSY * deadline_s * rounds + 10, outputs=[results, statuses],
                )  # fmt: skip
                elapsed = (time.monotonic() - started) / len(jobs)
                said = statuses.head(statuses.limit).decode("ascii", "replace")
                ends = {int(m[1]): (m[2], m[3] or "") for m in _ENDS.finditer(said)}
                if not ends and done.status not in (0, None):
                    raise MachineError(
                        "the CPU run could not be started", "", done.log.strip()[-300:] or f"status {done.status}"
                    )
                lines = {b.object: Lines(b.object, b.path, INCLUDE) for b, _ in jobs}
                runs = []
                for number, (binary, job) in enumerate(jobs):
                    ending = _JobEnd(*ends.get(number, ("timeout", "")), deadline_s, elapsed)
                    runs.append(_read_run(results, starts[number], binary, job, ending, lines[binary.object]))
                return runs
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _watched(jobs: Sequence[CpuJob], cores: int) -> list[CpuJob]:
    """The jobs that race detection has time for: launches of several blocks that it sees whole, then the ones with the most blocks. Two at
    least, and others while the threads are few enough."""

    def whole(job: CpuJob) -> bool:
        seen = all(x.blocks <= max(2, _RACE_FIBERS // x.threads) for x in job.launches)
        return seen and any(x.blocks > 1 for x in job.launches)

    def threads(job: CpuJob) -> int:
        return sum(min(x.blocks, max(2, _RACE_FIBERS // x.threads)) * x.threads for x in job.launches)

    chosen: list[CpuJob] = []
    left = _RACE_FIBERS_PER_CORE * cores

    def turn(job: CpuJob) -> tuple[bool, int]:
        seen, blocks = whole(job), max((x.blocks for x in job.launches), default=0)
        return not seen, sum(x.threads for x in job.launches) if seen else -blocks

    for job in sorted(jobs, key=turn):
        if len(chosen) < 2 or threads(job) <= left:
            chosen.append(job)
        left -= threads(job)
    return [job for job in jobs if any(job is one for one in chosen)]


def _buffers(spec: KernelSpec) -> list[str]:
    return [a.name for a in spec.arguments if a.role != "scalar"]


def _outputs(spec: KernelSpec) -> list[str]:
    """Names of the buffers that a run hands back."""
    return [a.name for a in spec.outputs]


def _output_bytes(spec: KernelSpec, job: CpuJob) -> int:
    return SAMPLE_BYTES if job.sample else sum(job.buffers[name].nbytes for name in _outputs(spec))


def _report_text(results: BoundedOutput, start: int) -> str:
    """A job's report, which a zero ends: nearly always a few lines of the room that it has."""
    for room in (_SHORT_REPORT, MAX_RESULT_BYTES):
        text, end, _ = results.at(start, room).partition(b"\0")
        if end:
            break
    return text.decode("utf-8", "replace")


@dataclass(frozen=True)
class _JobEnd:
    """How the process of a job ended: the supervisor's word for it, its detail, the deadline, and the seconds that it took."""

    how: str
    said: str
    deadline_s: float
    elapsed_s: float


def _read_run(
    results: BoundedOutput, start: int, binary: CpuBinary, job: CpuJob, ending: _JobEnd, lines: Lines
) -> CpuRun:
    names = _buffers(binary.spec)
    elements = [max(job.buffers[name].dtype.itemsize, 1) for name in names]
    report = Report()
    text = _report_text(results, start)
    if text:
        report = read_report(text, lines, names, elements, job.launches)
    how, said = ending.how, ending.said
    if how == "timeout":
        report.findings.append(CpuFinding("timeout", f"did not end in {ending.deadline_s:g} s"))
    elif (how != "ok" or not report.complete) and not report.findings:
        report.findings.append(
            CpuFinding("crash", f"the run ended with {how}" + (f": {said.strip()}" if said.strip() else ""))
        )
    outputs: dict[str, np.ndarray[Any, Any]] = {}
    at = start + MAX_RESULT_BYTES
    writes: dict[str, Writes] = {}
    if report.complete and job.sample:
        writes = read_writes(results, at, {name: job.buffers[name].dtype for name in names})
        writes = {name: found for name, found in writes.items() if not binary.spec.argument(name).scratch}
    elif report.complete:
        for name in _outputs(binary.spec):
            like = job.buffers[name]
            data = results.at(at, like.nbytes)
            outputs[name] = np.frombuffer(data, like.dtype, like.size) if like.size else like.copy()
            at += like.nbytes
    return CpuRun(
        outputs, tuple(report.findings), report.counts, ending.elapsed_s,
        {names[i]: n for i, n in report.touched.items()}, {names[i]: n for i, n in report.written.items()}, report.limited, writes,
        report.seen,
    )  # fmt: skip
