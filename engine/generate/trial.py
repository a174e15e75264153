"""Runs a generated kernel on inputs of ours and holds what it gives against the oracle, before there is any original.

On a GPU the kernel runs in the GPU worker, without one on the CPU machine with every access checked; both in the sandbox. The
expected values never leave this process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engine.compile.built import Built
from engine.compile.cubin import find_tool
from engine.cpu import CpuBinary, CpuFinding, CpuJob, CpuMachine, Unsupported
from engine.errors import CompileError, MachineError, OptimlError
from engine.evaluate.build import Builder, BuildOptions
from engine.generate.oracle import ReferenceCheck, compare
from engine.generate.task import Task
from engine.gpu.runner import DeviceFault, GpuRunner, WorkerStart
from engine.gpu.sanitize import TOOLS, sanitize
from engine.model import Failure, Outcome, Program
from engine.run.machine import Machine
from engine.spec.kernel_spec import KernelSpec
from engine.verify.plan import Check, plan, real_shapes
from engine.verify.screen import screen
from engine.verify.widen import widen

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Arrays = Mapping[str, NDArray[Any]]

_RUN_S = 10.0  # one run on a check shape, which takes milliseconds
_ORDERS = 3
_RACED = 2  # shapes for ThreadSanitizer, where a thread costs a millisecond; what is suggested is raced on all of them
_KINDS = {
    "race": Outcome.RACE, "barrier_divergence": Outcome.RACE, "deadlock": Outcome.RACE, "timeout": Outcome.TIMED_OUT,
    "crash": Outcome.CRASHED, "misaligned": Outcome.CRASHED, "assert": Outcome.CRASHED,
}  # fmt: skip
_FAULTS = {"device": Outcome.MEMORY_ERROR, "timeout": Outcome.TIMED_OUT}


@dataclass(frozen=True)
class TriedKernel:
    """How a generated kernel fared. `outcome` is SCREENED where it gave what the reference gives on every check."""

    outcome: Outcome
    failure: Failure | None = None
    built: Built | None = field(default=None, repr=False)
    final: bool = False  # nothing that the model could put right
    widens: bool = False  # it can be compiled in double precision, and then is a better yardstick for others
    elapsed_s: float = 0.0

    @property
    def right(self) -> bool:
        return self.outcome is Outcome.SCREENED


class _Stopped(Exception):
    """A run that gave no outputs, and why."""

    def __init__(self, outcome: Outcome, failure: Failure, *, final: bool = False) -> None:
        super().__init__(failure.reason)
        self.outcome, self.failure, self.final = outcome, failure, final


class Runs(Protocol):
    """Runs one built kernel. Raises `_Stopped` where a run strays or does not end."""

    def start(self, built: Built) -> Built: ...

    def outputs(self, built: Built, known: Sequence[ReferenceCheck]) -> Sequence[Arrays]: ...

    def races(self, built: Built, known: Sequence[ReferenceCheck]) -> str: ...

    def close(self) -> None: ...


class CpuRuns:
    """Kernels on the CPU: every access is checked, threads and blocks come in several orders."""

    def __init__(self, spec: KernelSpec, machine: Machine) -> None:
        self._spec = spec
        self._machine = CpuMachine(
            machine.cache / "cpu", sandbox=machine.box, scratch=machine.scratch, jobs=machine.jobs
        )

    def start(self, built: Built) -> Built:
        """Compile for the CPU."""
        try:
            binary = self._machine.build(built.text, self._spec.file, self._spec, built.expressions)
        except Unsupported as error:
            reason = f"the CPU path cannot run {', '.join(error.features)}"
            raise _Stopped(Outcome.SCREENED_OUT, Failure(reason), final=True) from None
        except CompileError as error:
            raise _Stopped(Outcome.COMPILE_ERROR, Failure(error.what)) from None
        return replace(built, extra=binary)

    def _jobs(self, built: Built, known: Sequence[ReferenceCheck]) -> list[CpuJob]:
        return [CpuJob(built.launches[k.index], k.buffers, k.scalars, i % _ORDERS) for i, k in enumerate(known)]

    def outputs(self, built: Built, known: Sequence[ReferenceCheck]) -> Sequence[Arrays]:
        """The outputs of each check. The first runs alone: a kernel that never ends costs its deadline once."""
        binary: CpuBinary = built.extra
        jobs = self._jobs(built, known)
        found = []
        for part, names in ((jobs[:1], known[:1]), (jobs[1:], known[1:])):
            for run, one in zip(
                self._machine.run_many(binary, part, deadline_s=_RUN_S) if part else [], names, strict=True
            ):
                if run.findings:
                    raise self._stray(run.findings[0], one)
                found.append(run.outputs)
        return found

    def _stray(self, finding: CpuFinding, known: ReferenceCheck) -> _Stopped:
        failure = Failure(
            finding.message, known.case.name, finding.array or "", finding.index, line=finding.line or None
        )
        return _Stopped(_KINDS.get(finding.kind, Outcome.MEMORY_ERROR), failure)

    def races(self, built: Built, known: Sequence[ReferenceCheck]) -> str:
        """The first data race that ThreadSanitizer finds, "" where none or where it cannot look."""
        if self._machine.degraded:
            return ""
        small = sorted((k for k in known if k.family == "declared"), key=lambda k: sum(map(len, k.buffers.values())))
        chosen = small[1 : 1 + _RACED]  # beyond a single element, where nothing meets
        findings = self._machine.races(built.extra, self._jobs(built, chosen))
        return findings[0].message if findings else ""

    def close(self) -> None:
        """Nothing stays open."""


class GpuRuns:
    """Kernels on the GPU: guard zones and inputs are looked at after each run."""

    def __init__(self, spec: KernelSpec, machine: Machine) -> None:
        self._spec, self._machine = spec, machine
        self._tools = machine.tool_kernels()
        self._runner = self._make()

    def _make(self, watcher: Sequence[str] = (), scratch: Path | None = None) -> GpuRunner:
        machine = self._machine
        where = scratch or machine.cache / "worker"
        return GpuRunner(machine.box, self._tools, where, WorkerStart(machine.device, watcher))

    def start(self, built: Built) -> Built:
        """Load the machine code."""
        try:
            self._runner.open(self._spec, built, None)
        except DeviceFault as fault:
            raise _Stopped(
                _FAULTS.get(fault.kind, Outcome.CRASHED), Failure(f"cannot be loaded: {fault.what}")
            ) from None
        return built

    def outputs(self, built: Built, known: Sequence[ReferenceCheck]) -> Sequence[Arrays]:
        """The outputs of each check."""
        found = []
        for one in known:
            try:
                strayed, outputs = self._runner.outputs("original", one.index, one.buffers, one.seed, timeout_s=_RUN_S)
            except DeviceFault as fault:
                failure = Failure(f"the kernel faulted: {fault.what}", case=one.case.name)
                raise _Stopped(_FAULTS.get(fault.kind, Outcome.CRASHED), failure) from None
            if strayed:
                raise _Stopped(Outcome.MEMORY_ERROR, Failure(strayed, case=one.case.name))
            found.append(outputs)
        return found

    def races(self, built: Built, known: Sequence[ReferenceCheck]) -> str:
        """The first report of compute-sanitizer, "" where none or where it is not there."""
        tool = find_tool("compute-sanitizer")
        if tool is None:
            return ""
        small = [k for k in known if k.family == "declared" and k.index < len(self._spec.check)]  # the tools are slow
        checks = [Check(k.index, k.family, k.seed) for k in small]
        for said in sanitize(self._spec, built, checks, lambda w, s: self._make(w, s), str(tool), TOOLS):
            if said.errors:
                return f"{said.tool}: {said.first}"
        return ""

    def close(self) -> None:
        """End the worker."""
        self._runner.close()


class Trial:
    """Tries generated kernels of one task. `known` are checks with the reference's answers. Thread-safe: one at a time runs."""

    def __init__(
        self,
        task: Task,
        spec: KernelSpec,
        root: Path,
        machine: Machine,
        skeleton: Program,
        known: Sequence[ReferenceCheck],
    ) -> None:
        self._task, self._spec, self._root, self._machine = task, spec, root, machine
        self._skeleton, self._known = skeleton, tuple(known)
        self._runs: Runs = (GpuRuns if machine.mode == "measured" else CpuRuns)(spec, machine)
        self._lock = threading.Lock()

    def __call__(self, program: Program, known: Sequence[ReferenceCheck] | None = None) -> TriedKernel:
        """Screen, build and run a program on every check, and look for races; or run it on the checks that are given."""
        begin = time.monotonic()
        tried = self._tried(program, self._known if known is None else known)
        if tried.right and known is None:
            tried = self._raced(tried)
        return replace(tried, elapsed_s=time.monotonic() - begin)

    def _tried(self, program: Program, known: Sequence[ReferenceCheck]) -> TriedKernel:
        try:
            reason = screen(self._skeleton, program, self._spec)
            if reason:
                return TriedKernel(Outcome.SCREENED_OUT, Failure(reason))
            built = self._build(program)
        except CompileError as error:
            line = error.where.rpartition(":")[2]
            return TriedKernel(Outcome.COMPILE_ERROR, Failure(error.what, line=int(line) if line.isdigit() else None))
        except OptimlError as error:
            return TriedKernel(Outcome.SCREENED_OUT, Failure(error.what))
        if built.binary.clock_reads:
            return TriedKernel(Outcome.SCREENED_OUT, Failure("reads a clock or sleeps, according to its machine code"))
        widens = widen(built.text, built.expressions) is not None
        with self._lock:
            try:
                built = self._runs.start(built)
                outputs = self._runs.outputs(built, known)
            except _Stopped as stopped:
                return TriedKernel(stopped.outcome, stopped.failure, built, stopped.final)
        for one, got in zip(known, outputs, strict=True):
            failure = compare(self._spec, self._task, one, got)
            if failure is not None:
                return TriedKernel(Outcome.WRONG_RESULT, failure, built)
        return TriedKernel(Outcome.SCREENED, None, built, widens=widens)

    def _build(self, program: Program) -> Built:
        predicted = self._machine.mode == "predicted"
        builder = Builder(
            self._spec,
            self._root,
            self._machine.compiler,
            self._machine.target,
            options=BuildOptions(line_info=predicted),
        )
        return builder.original(program)

    def _raced(self, tried: TriedKernel) -> TriedKernel:
        """What becomes of a correct program under a race detector."""
        assert tried.built is not None
        try:
            with self._lock:
                race = self._runs.races(tried.built, self._known)
        except MachineError as error:
            reason = f"could not be checked for races: {error.what}"
            return replace(tried, outcome=Outcome.SCREENED_OUT, failure=Failure(reason), final=True)
        return replace(tried, outcome=Outcome.RACE, failure=Failure(race)) if race else tried

    def close(self) -> None:
        """End what was started."""
        self._runs.close()


def check_plan(spec: KernelSpec, bits: Any, *, real: bool) -> tuple[Check, ...]:
    """Every check shape with every family of inputs on fresh seeds; with `real` the timing shapes too."""
    return (*plan(spec, bits), *(real_shapes(spec, bits) if real else ()))
