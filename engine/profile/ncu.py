"""Nsight Compute in batches: a warmed worker under `ncu` takes up to a batch of candidates, and the next one warms up.

`ncu` starts in seconds and speaks only when its process ends, so nothing is gained by asking for one kernel at a time. It
runs inside the sandbox, around the worker: around the sandbox it finds no kernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import shutil
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from engine.compile.cubin import find_tool
from engine.process import wire
from engine.process.sandbox import Limits, NoSandbox, Sandbox, SandboxAccess, python_command
from engine.process.worker_process import Worker, WorkerLost
from engine.profile import output
from engine.profile.counters import CHEAP, FailureKind, MetricSet, Profile, ProfileFailure, ProfileRequest, StepProfile
from engine.spec.kernel_spec import KernelSpec

BATCH = 16
_READY_S = 60.0  # ncu's start, CUDA's context and CuPy's import, on a busy machine
_KERNEL_S = 20.0  # one candidate: some 30 passes over what takes a second
_END_S = 30.0
_MAX_FRAME = 1 << 20  # the worker answers with a few hundred bytes
_SESSIONS = 4  # for one call: what metrics and crashing candidates may cost before the rest is given up
_PATIENCE, _PAUSE_S = 2, 0.5  # tries when another holds the counters, and how long it is waited before the next one
_TOO_LONG = "did not finish in time"
_NO_NCU = "Nsight Compute (ncu) is not installed: install it with the CUDA toolkit, or NVIDIA's nsight-compute package"
_SILENT = "the profiler ended without a report"
_PARAMETERS = Path("/proc/driver/nvidia/params")
_OPTIONS = ("--clock-control", "none")  # the clocks are not ours to set


def find_ncu() -> Path | None:
    """Nsight Compute's command line, or None: beside a CUDA toolkit, on PATH, or in /opt/nvidia."""
    found = find_tool("ncu")
    if found is not None:
        return found
    others = [p for p in Path("/opt/nvidia/nsight-compute").glob("*/ncu") if os.access(p, os.X_OK)]
    return max(others, key=lambda p: [int(n) for n in re.findall(r"\d+", p.parent.name)], default=None)


def ncu_version(ncu: Path, box: Sandbox | NoSandbox) -> str:
    """What `ncu --version` says ("2025.3.1.0"), "" where it says nothing that can be read."""
    try:
        done = subprocess.run(
            box.command([str(ncu), "--version"], SandboxAccess(readable=_readable(ncu), gpu=True)),  # it may be a script that looks in /opt
            capture_output=True, timeout=_END_S, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    match = re.search(r"Version (\d+(?:\.\d+){1,3})", done.stdout.decode("utf-8", "replace"))
    return match[1] if match else ""


def refused_by_driver(box: Sandbox | NoSandbox) -> str:
    """A sentence when the driver keeps the counters for administrators and this would not be one; "" otherwise."""
    try:
        text = _PARAMETERS.read_text()
    except OSError:
        return ""
    if "RmProfilingAdminOnly: 1" not in text or (not box.safe and os.geteuid() == 0):
        return ""
    found = output.complaint("ERR_NVGPUCTRPERM", ())
    return found.reason if found else ""


@dataclass(frozen=True)
class Cost:
    """What one batch took, in seconds: until the worker was ready and primed, the GPU held, and from there to ncu's end.

    `prepare_s` the worker spent before, and `prime_s` is a part of `ready_s`.
    """

    metrics: str
    candidates: int
    profiled: int
    ready_s: float
    held_s: float
    end_s: float
    prepare_s: float
    prime_s: float


@dataclass
class Pending:
    """A batch that was begun. `asked` are the positions in it that the current session was given, `times` in seconds."""

    batch: tuple[ProfileRequest, ...]
    metrics: MetricSet
    gpu: AbstractContextManager[object]
    session: _Session | None = None
    errors: list[str | None] = field(default_factory=list)
    problem: str = ""
    times: tuple[float, float, float] = (0.0, 0.0, 0.0)
    answers: dict[int, Profile | ProfileFailure] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.asked = list(range(len(self.batch)))


@dataclass(frozen=True)
class ProfilerSettings:
    """How a profiler runs: `case` is what is warmed up for (the index that requests will name; None: the first timing case), and
    `spares` workers wait for the cheap set, one for each other used."""

    case: int | None = None
    device: int = 0
    prime: bool = True
    spares: int = 2
    options: Sequence[str] = _OPTIONS


_DEFAULTS = ProfilerSettings()


class Profiler:
    """Profiles candidates of one spec on one GPU. Not thread-safe.

    `tools` is the machine code of the worker's own kernels, `scratch` the GPU worker's cache folder. Nothing is started
    before the first call, and nothing raises for what the profiler does: `unusable` says why it is given up, `dropped`
    which counters it does not have, and each request gets a profile or a declared failure.
    """

    def __init__(
        self, box: Sandbox | NoSandbox, ncu: Path | None, tools: bytes, scratch: Path, spec: KernelSpec,
        settings: ProfilerSettings = _DEFAULTS,
    ) -> None:  # fmt: skip
        self._options = tuple(settings.options)
        self.seconds: list[float] = []  # of the last session, for each candidate that ran
        self._box, self._ncu, self._tools, self._scratch, self._spec = box, ncu, tools, scratch, spec
        self.said = ""  # the last report, as the profiler wrote it
        self._case = len(spec.check) if settings.case is None else settings.case
        self._device, self._prime = settings.device, settings.prime
        self._seed = secrets.randbits(40)
        self._spares = max(1, settings.spares)
        self._warm: dict[str, deque[_Session]] = {}
        self._alive: set[_Session] = set()
        self._silent = 0  # batches in a row of which nothing was said
        self._busy = 0  # and for which another held the counters
        self.dropped: frozenset[str] = frozenset()
        self.costs: list[Cost] = []
        self.unusable = _NO_NCU if ncu is None else refused_by_driver(box)
        self.version = ""  # known once the first worker was started

    def warm_up(self, metrics: MetricSet) -> None:
        """Start workers for these counters until the spares are there; returns at once."""
        waiting = self._warm.setdefault(metrics.name, deque())
        if not self.version and self._ncu is not None and not self.unusable:
            self.version = ncu_version(self._ncu, self._box) or "unknown"
        while waiting and not waiting[0].alive:
            waiting.popleft().close()
        # The others take their time, and each spare holds memory
        spares = self._spares if metrics.name == CHEAP.name else 1
        while not self.unusable and self._ncu is not None and len(waiting) < spares:
            try:
                waiting.append(_Session(self, self._ncu, metrics.without(self.dropped)))
            except OSError as error:
                self.unusable = f"the profiler cannot be started: {error.strerror or error}"

    def begin(
        self, batch: Sequence[ProfileRequest], metrics: MetricSet,
        gpu: AbstractContextManager[object] | None = None,
    ) -> Pending:  # fmt: skip
        """Have a batch run; `gpu` is entered for as long as the GPU is used. `finish` has the answers.

        While one batch is pending another may be begun: its profiler sets up while the first one's writes its report.
        """
        pending = Pending(tuple(batch), metrics, gpu or contextlib.nullcontext())
        if not self.unusable and batch:
            self._run(pending)
        return pending

    def finish(self, pending: Pending) -> list[Profile | ProfileFailure]:
        """The answers to a batch, in order.

        A candidate that faults costs its worker: what came before it and after it is profiled once more.
        """
        batch, answers = pending.batch, pending.answers
        for number in range(_SESSIONS):
            if number:
                self._run(pending)
            done = self._end(pending)
            answers.update({pending.asked[i]: answer for i, answer in done.items()})
            pending.asked = [i for i in range(len(batch)) if i not in answers]
            if not pending.asked or self.unusable:
                break
        for i in pending.asked:
            reason = self.unusable or "the profiler ended too often before this candidate's turn"
            answers[i] = ProfileFailure(batch[i].key, "no profiler" if self.unusable else "lost", reason)
        return [answers[i] for i in range(len(batch))]

    def profile(
        self, batch: Sequence[ProfileRequest], metrics: MetricSet,
        gpu: AbstractContextManager[object] | None = None,
    ) -> list[Profile | ProfileFailure]:  # fmt: skip
        """Profile each request, in order: `begin` and `finish`."""
        return self.finish(self.begin(batch, metrics, gpu))

    def close(self) -> None:
        """End what was warmed up."""
        for waiting in self._warm.values():
            while waiting:
                waiting.popleft().close()

    def interrupt(self) -> None:
        """End whatever runs, from any thread: nobody waits for it any longer, and nothing is begun after that."""
        self.unusable = self.unusable or "the profiler did not end in time"
        for session in list(self._alive):
            session._worker.kill()

    def _run(self, pending: Pending) -> None:
        """Have what is still asked of a batch launched by a worker that waits."""
        begin = time.perf_counter()
        pending.session, pending.errors, pending.problem = None, [], ""
        self.warm_up(pending.metrics)
        waiting = self._warm[pending.metrics.name]
        if not waiting:
            return
        session = pending.session = waiting.popleft()
        problem = session.wait_ready() or (session.prime() if self._prime else "")
        ready = held = released = time.perf_counter()
        if not problem:
            with pending.gpu:
                held = time.perf_counter()
                pending.errors = session.run([pending.batch[i] for i in pending.asked])
                released = time.perf_counter()
            self.warm_up(pending.metrics)  # beside this one's end, when the GPU is free again
        pending.problem = problem
        pending.times = (ready - begin, released - held, released)

    def _end(self, pending: Pending) -> dict[int, Profile | ProfileFailure]:
        """What one process under the profiler gave, by position in what was asked. What is not in it may be asked again."""
        session, metrics = pending.session, pending.metrics
        if session is None:
            return {}
        pending.session = None
        try:
            text = session.end()
        finally:
            session.close()
        batch = [pending.batch[i] for i in pending.asked]
        self.said, self.seconds = text, session.seconds
        rows = output.parse(text)
        found = output.complaint(text, session.metrics.metrics)
        answers = _answers(batch, session.metrics, rows[session.primed_rows(rows) :], pending.errors, self.version)
        answers = {i: _with_missing(a, metrics) for i, a in answers.items()}
        count = sum(isinstance(a, Profile) for a in answers.values())
        ready_s, held_s, released = pending.times
        self.costs.append(
            Cost(
                metrics.name, len(batch), count, ready_s, held_s, time.perf_counter() - released, session.prepare_s,
                session.prime_s,
            )
        )  # fmt: skip
        return self._judged(batch, answers, found, pending.problem, pending.errors)

    def _judged(
        self, batch: Sequence[ProfileRequest], answers: dict[int, Profile | ProfileFailure],
        found: output.Complaint | None, problem: str, errors: Sequence[str | None],
    ) -> dict[int, Profile | ProfileFailure]:  # fmt: skip
        """Learn from what went wrong; returns the answers that stand."""
        profiled = {i: a for i, a in answers.items() if isinstance(a, Profile)}
        if profiled:
            self._silent = self._busy = 0
        if found is not None and found.kind == "missing":
            self.dropped |= found.metrics
            self.close()  # what waits was started with counters that are not there
            return dict(profiled)
        if found is not None and found.kind == "busy" and self._busy < _PATIENCE:
            self._busy += 1  # perhaps the batch before this one had not let the counters go
            time.sleep(_PAUSE_S)
            return dict(profiled)
        if found is not None and found.kind in ("permission", "busy"):
            self.unusable = found.reason
        elif problem:
            self._silent += 1
            if self._silent < 2:
                return {}  # a spare may have been killed while it waited
            self.unusable = found.reason if found else f"the profiler's worker cannot start: {problem}"
        elif not profiled and not any(errors):
            self._silent += 1
            said = next((a.reason for a in answers.values() if isinstance(a, ProfileFailure)), _SILENT)
            reason = found.reason if found else said
            if self._silent > 1:
                self.unusable = reason
            return {i: ProfileFailure(r.key, "lost", reason) for i, r in enumerate(batch)} | answers
        if self.unusable:
            kind: FailureKind = found.kind if found else "no profiler"
            return {i: profiled.get(i) or ProfileFailure(r.key, kind, self.unusable) for i, r in enumerate(batch)}
        return answers


class _Session:
    """One process under ncu, from its start to its report."""

    def __init__(self, profiler: Profiler, ncu: Path, metrics: MetricSet) -> None:
        self.metrics = metrics
        self.prepare_s = self.prime_s = 0.0
        self.seconds: list[float] = []
        self._primed = False
        scratch = profiler._scratch
        scratch.mkdir(parents=True, exist_ok=True)
        self._folder = scratch / f"profile-{secrets.token_hex(8)}"
        self._folder.mkdir(mode=0o700)
        self._log = self._folder / "out" / "ncu.log"
        self._log.parent.mkdir()
        setup = self._folder / "setup"
        with setup.open("wb") as file:
            header = {
                "spec": dataclasses.asdict(profiler._spec), "case": profiler._case, "seed": profiler._seed,
            }  # fmt: skip
            wire.send(file, header, [profiler._tools])
        setup.chmod(0o644)
        self._folder.chmod(0o755)
        (cache := scratch / "cupy").mkdir(exist_ok=True, mode=0o700)
        argv = [
            str(ncu), "--config-file", "off", "--profile-from-start", "off", *profiler._options,
            "--target-processes", "all", "--metrics", ",".join(metrics.metrics), "--csv", "--page", "raw",
            "--print-units", "base", "--print-kernel-base", "mangled",
            *(["--print-metric-instances", "details"] if metrics.instances else []),
            "--log-file", str(self._log),
            *python_command("engine.profile.profile_worker", str(setup)),
        ]  # fmt: skip
        command = profiler._box.command(
            argv,
            SandboxAccess(
                readable=[*_readable(ncu), setup],
                writable=[self._log.parent, cache],
                gpu=True,
                device=profiler._device,
                environment={"CUPY_CACHE_DIR": str(cache)},
            ),
            Limits(file_bytes=2 << 30),
        )
        try:
            self._worker = Worker(command, limit=_MAX_FRAME)
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        self._others = profiler._alive
        self._others.add(self)

    @property
    def alive(self) -> bool:
        return self._worker.alive

    def wait_ready(self) -> str:
        """Wait until the worker has warmed up; what is wrong, or ""."""
        try:
            answer, _ = self._worker.receive(timeout_s=_READY_S)
        except WorkerLost as lost:
            said = lost.stderr.strip().splitlines()
            return said[-1][:300] if said else "it does not answer" if lost.kind == "timeout" else "it ended at once"
        if answer.get("ready") is not True:
            return str(answer.get("error", "it is not ready"))[:300]
        self.prepare_s = _seconds(answer.get("prepare_s"))
        return ""

    def prime(self) -> str:
        """Have the profiler set itself up; what is wrong, or ""."""
        try:
            answer, _ = self._worker.call({"prime": True}, timeout_s=_READY_S)
        except WorkerLost as lost:
            return "it does not answer" if lost.kind == "timeout" else "it ended at its start"
        self._primed = answer.get("primed") is True
        self.prime_s = _seconds(answer.get("prime_s"))
        return "" if self._primed else str(answer.get("error", "it did not begin"))[:300]

    def run(self, batch: Sequence[ProfileRequest]) -> list[str | None]:
        """Have the batch launched: one entry for each candidate that was reached, None where it ran."""
        items = [
            {
                "entries": r.binary.entries, "constants": r.binary.constants, "case": r.case,
                "launches": [(s.grid, s.block, s.shared_bytes) for s in r.launches],
            }
            for r in batch
        ]  # fmt: skip
        cubins = [r.binary.cubin for r in batch]
        # The pipe holds 64 KiB, so this write blocks while the worker reads: on a thread, lest a dead worker hold us.
        sender = threading.Thread(target=self._worker.send, args=({"items": items}, cubins), daemon=True)
        sender.start()
        errors: list[str | None] = []
        try:
            for _ in batch:
                answer, _ = self._worker.receive(timeout_s=_KERNEL_S)
                error = answer.get("error")
                errors.append(None if error is None else str(error)[:300])
                self.seconds.append(_seconds(answer.get("seconds")))
                if error is not None:
                    break
        except WorkerLost as lost:
            errors.append(_TOO_LONG if lost.kind == "timeout" else "crashed the profiler's process")
        sender.join(timeout=1.0)
        return errors

    def end(self) -> str:
        """Wait for ncu to end; what it wrote, "" where it wrote nothing."""
        self._worker.finish(timeout_s=_END_S)
        return output.read(self._log)

    def primed_rows(self, rows: Sequence[output.Row]) -> int:
        """How many of the first rows are not the batch's."""
        return 1 if self._primed and rows and "fill_words" in rows[0].kernel else 0

    def close(self) -> None:
        self._others.discard(self)
        self._worker.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _answers(
    batch: Sequence[ProfileRequest], metrics: MetricSet, rows: Sequence[output.Row], errors: Sequence[str | None],
    version: str,
) -> dict[int, Profile | ProfileFailure]:  # fmt: skip
    """Rows to requests. A launch counts only where as many rows came as were launched that look like it, in their order."""
    answers: dict[int, Profile | ProfileFailure] = {}
    ran = [i for i, error in enumerate(errors) if error is None]
    for i, error in enumerate(errors):
        if error is not None:
            kind: FailureKind = "timeout" if error == _TOO_LONG else "launch"
            answers[i] = ProfileFailure(batch[i].key, kind, f"could not be profiled: {error}")
    expected = [(i, step) for i in ran for step in range(len(batch[i].launches))]
    found: dict[tuple[int, int], output.Row] = {}
    looks = {(batch[i].binary.entries[step], batch[i].launches[step]) for i, step in expected}
    for look in looks:
        wanted = [(i, s) for i, s in expected if (batch[i].binary.entries[s], batch[i].launches[s]) == look]
        came = [row for row in rows if row.is_of(*look)]
        if len(came) == len(wanted):
            found.update(zip(wanted, came, strict=True))
    crashed = len(ran) < len(errors) or len(errors) < len(batch)
    for i in ran:
        request = batch[i]
        steps = [found.get((i, s)) for s in range(len(request.launches))]
        if any(row is None for row in steps):
            if not crashed and rows:
                answers[i] = ProfileFailure(
                    request.key, "missing", "the profiler's report does not contain this kernel"
                )
            continue
        answers[i] = Profile(
            request.key, metrics.name, request.case,
            tuple(
                StepProfile(
                    request.binary.entries[s], request.launches[s], row.counters, passes=row.passes_known
                )
                for s, row in enumerate(steps)
                if row is not None
            ),
            version,
        )  # fmt: skip
    return answers


def _with_missing(answer: Profile | ProfileFailure, asked: MetricSet) -> Profile | ProfileFailure:
    """With every counter that was asked for and did not come named, those given up earlier too."""
    if isinstance(answer, ProfileFailure):
        return answer
    steps = (
        dataclasses.replace(s, missing=tuple(m for m in asked.metrics if m not in s.counters)) for s in answer.steps
    )
    return dataclasses.replace(answer, steps=tuple(steps))


def _readable(ncu: Path) -> list[Path]:
    """The folders that ncu's own files are in: where it is linked from, and where it lies."""
    folders = {ncu.parent, ncu.resolve().parent}
    return sorted(folder for folder in folders if str(folder) not in ("/usr/bin", "/bin", "/usr/local/bin"))


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
