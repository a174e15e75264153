"""Runs the original on the CPU to see how much of each buffer it touches, and what it does there."""

from __future__ import annotations

import math
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.cpu.jobs import CpuJob
from engine.cuda.slice import device_slice
from engine.model import Program
from engine.spec.data import generate, poisoned, scalars
from engine.spec.dtypes import parse_dtype
from engine.spec.extents import trial_key
from engine.spec.kernel_spec import Argument, Case, Fill, KernelSpec, Role
from engine.spec.launch_config import evaluate
from engine.spec.spec_checks import can_launch

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from engine.cpu import CpuMachine, CpuRun

    Array = NDArray[Any]

_MAX_TRIAL_S, _MAX_COUNT_S = 5.0, 3.0
# After which no trial begins, of how far a kernel reaches, and of roles: a person waits for the draft.
_MAX_S, _MAX_ROLES_S = 15.0, 5.0
_MAX_ELEMENTS = 1 << 23  # of one buffer in a trial
_MOST_IN_ROW = (
    32  # of the bytes that a trial has room for: how many times more one with rows of a constant length takes
)
_MAX_SQUARE = 1 << 20  # a matrix of one size on both sides: the largest trial of a vector need not have room for one
_LEAST_FINITE = 0.5  # of an output's elements; ours: where most are no numbers little is compared
_WHOLLY_FINITE = 0.95  # of an output; ours: fewer, and other inputs are better where these lie in the functions' domain
_COUNTED = 1 << 10  # elements of a case whose accesses are counted
_MAX_HALVED = 26  # how often a size may be halved for that
_ENDS = {
    "out_of_bounds",
    "crash",
    "misaligned",
    "timeout",
}  # findings that end a run: what it had touched by then says nothing
_BUSY = 4  # times as long as the work takes that it may wait for a core


def _core_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class _Watch:
    """What a trial takes, in seconds of a core: a busy machine is no reason to end trials."""

    def __init__(self) -> None:
        self._core_s, self._begin = _core_s(), time.monotonic()

    def spent_s(self) -> float:
        return max(_core_s() - self._core_s, (time.monotonic() - self._begin) / _BUSY)


@dataclass(frozen=True)
class OutputMeaning:
    """What is wrong with a draft that runs: outputs that are mostly no numbers (or `partly`), or one value whatever the inputs are."""

    not_finite: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()
    constant: bool = False


class CpuProbe:
    """Runs the original on the CPU for `engine.spec.draft.draft`, at sizes that are to be tried.

    `spec` gives types, roles and scalars; its sizes do not count. Buffers are made larger than any common extent, and once more
    larger where a trial reaches beyond; floats are drawn, integers are all the same: they may be indices. A trial that reaches
    beyond even that gives nothing, nor does one that cannot be launched, one that takes too long, or one after others that did.
    All raise OptimlError where the kernel cannot be compiled, launched or run here.
    """

    def __init__(self, program: Program, spec: KernelSpec, machine: CpuMachine, root: Path) -> None:
        named, compiled = list(spec.expressions), spec.compile
        sliced = device_slice(program, named, root=root, include=compiled.include, unit=compiled.unit)
        self._program, self._spec, self._machine = program, spec, machine
        self._binary = machine.build(sliced.text, spec.file, spec, named)
        machine.unwritten_shared = True  # whether results depend on it, validation finds out
        self._spent_s = self._spent_on_roles_s = 0.0
        self._draws = 0
        self.kept: set[str] = set()  # outputs of which a case of `failing` left elements as they were
        self._lengths: dict[tuple[tuple[str, int], ...], int] = {}  # of the buffers that a trial had room in
        self._seen: dict[tuple[tuple[tuple[str, int], ...], int], dict[str, int]] = {}
        self._roles: dict[tuple[tuple[str, int], ...], dict[str, Role]] = {}
        self._ended: dict[tuple[tuple[str, int], ...], str] = {}  # trials that ended early, with why

    def touched(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Elements touched of each buffer, by parameter."""
        return self._reached(sizes, 0)

    def ended(self, sizes: Mapping[str, int]) -> str:
        """What ended the trial of `touched` at these sizes early; "" where it ran to its end, or there was none."""
        return self._ended.get(trial_key(sizes), "")

    def moved(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """As `touched`, with all whole numbers in buffers 1 instead of 0."""
        return self._reached(sizes, 1)

    def roles(self, sizes: Mapping[str, int]) -> dict[str, Role]:
        """What the kernel does with each buffer that it may write, at sizes that `touched` was called with.

        "in": it writes nothing there; "out": it writes all of it, each element before it reads it; else "inout".
        """
        length = self._lengths.get(key := trial_key(sizes))
        if key in self._roles:
            return self._roles[key]
        if length is None or self._spent_on_roles_s > _MAX_ROLES_S:
            return {}
        found = self._roles[key] = self._roles_in(sizes, length)
        return found

    def _roles_in(self, sizes: Mapping[str, int], length: int) -> dict[str, Role]:
        watch = _Watch()
        done = self._run(sizes, length, 0, first_contents=False)
        self._spent_on_roles_s += watch.spent_s()
        if done is None or {f.kind for f in done.findings} & _ENDS:
            return {}
        read = {f.array for f in done.findings if f.kind == "uninitialised"}
        found: dict[str, Role] = {}
        for name, count in done.written.items():
            if touched := done.touched[name]:
                found[name] = "in" if not count else "inout" if name in read or count < touched else "out"
        return found

    def meaning(self, spec: KernelSpec) -> OutputMeaning:
        """What the check cases of a complete draft show. Raises as the others."""
        seen: dict[str, list[Array]] = {}
        for case in spec.check if self._spent_s <= _MAX_S else ():
            launch = evaluate(self._program, spec, 0, case.sizes)
            if not can_launch(launch) or max(case.sizes.values(), default=0) > _MAX_ELEMENTS:
                continue
            binary = replace(self._binary, spec=spec)
            buffers = poisoned(spec, case, 1, "declared")
            done = self._machine.run(binary, CpuJob([launch], buffers, scalars(spec, case)), deadline_s=_MAX_TRIAL_S)
            if done.findings:
                continue  # what is wrong there, validation says
            for name, output in done.outputs.items():
                dtype = parse_dtype(spec.argument(name).type)
                seen.setdefault(name, []).append(dtype.to_float64(output) if dtype.kind == "float" else output)
        lost: list[str] = []
        partly: list[str] = []
        same = []
        for name, outputs in seen.items():
            values = np.concatenate([np.ravel(output) for output in outputs])
            finite = np.isfinite(values).mean() if values.dtype.kind == "f" and values.size else 1.0
            # One infinity makes every error small: tolerances are fractions of the root mean square.
            if finite < _WHOLLY_FINITE or (values.dtype.kind == "f" and np.isinf(values).any()):
                (lost if finite < _LEAST_FINITE else partly).append(name)
            same.append(values.size > 1 and bool((values == values[0]).all()))
        drawn = any(a.role in ("in", "inout") and a.fill.kind != "constant" for a in spec.arguments)
        return OutputMeaning(tuple(lost), tuple(partly), constant=drawn and bool(same) and all(same))

    def failing(self, spec: KernelSpec, cases: Sequence[Case]) -> dict[str, str]:
        """The cases that end in a finding, as of an access beyond a buffer, with what it says; each call draws other inputs.

        Raises as the others.
        """
        found = {}
        self._draws += 1
        for case in cases:
            if self._spent_s > _MAX_S:
                break
            watch = _Watch()
            job = self._job(spec, case, seed=self._draws)
            if job is None:
                found[case.name] = "cannot be launched"
                continue
            done = self._machine.run_many(replace(self._binary, spec=spec), [job], deadline_s=_MAX_TRIAL_S)[0]
            if done.findings:
                found[case.name] = done.findings[0].message
            else:
                outs = [a.name for a in spec.arguments if a.role == "out" and a.name in done.written]
                self.kept |= {name for name in outs if done.written[name] < job.buffers[name].size}
            self._spent_s += watch.spent_s()
        return found

    def overwritten(self, spec: KernelSpec, cases: Sequence[Case]) -> frozenset[str]:
        """Buffers read and written of which the kernel writes each element before it reads it, in all of these cases."""
        found = {a.name for a in spec.arguments if a.role == "inout" and not a.symbol}
        without = replace(
            spec, arguments=tuple(replace(a, role="out") if a.name in found else a for a in spec.arguments)
        )
        for case in cases if found else ():
            job = self._job(without, case) if self._spent_s <= _MAX_S else None
            if job is None:
                return frozenset()
            watch = _Watch()
            done = self._machine.run(replace(self._binary, spec=without), job, deadline_s=_MAX_TRIAL_S)
            self._spent_s += watch.spent_s()
            found -= {f.array for f in done.findings}
            found &= {name for name in found if done.written.get(name, 0) >= job.buffers[name].size}
            if {f.kind for f in done.findings} & _ENDS:
                return frozenset()
        return frozenset(found)

    def racy(self, spec: KernelSpec, cases: Sequence[Case]) -> frozenset[str]:
        """The names of the cases in which threads race. Raises as the others."""
        found = set()
        for case in cases if not self._machine.degraded else ():
            if self._spent_s > _MAX_S:
                break
            watch = _Watch()
            if (job := self._job(spec, case)) is not None:
                seen = self._machine.races(replace(self._binary, spec=spec), [job], deadline_s=_MAX_TRIAL_S)
                found |= {case.name for finding in seen if finding.kind == "race"}
            self._spent_s += watch.spent_s()
        return frozenset(found)

    def _job(self, spec: KernelSpec, case: Case, *, count: bool = False, seed: int = 1) -> CpuJob | None:
        launch = evaluate(self._program, spec, 0, case.sizes)
        if not can_launch(launch):
            return None
        return CpuJob([launch], poisoned(spec, case, seed, "declared"), scalars(spec, case), 0, count=count)

    def accesses(self, spec: KernelSpec, case: Case) -> tuple[float, float] | None:
        """About how many elements the kernel accesses in a case, and how much fewer when its sizes are halved.

        From counts of two cases that are that one, halved several times; None where these cannot be run.
        """
        if self._spent_s > _MAX_S:
            return None
        counted: list[float] = []
        halvings = failed = 0
        while len(counted) < 2 and halvings < _MAX_HALVED and failed < 4:
            halvings += 1
            sizes = {n: max(1, int(v) >> halvings) for n, v in case.sizes.items()}
            if math.prod(sizes.values()) <= _COUNTED:
                found = self._count(spec, Case("counted", sizes))
                failed += found is None
                counted += [found] if found is not None else []
        if len(counted) < 2:
            return None
        growth = max(1.0, counted[0] / max(counted[1], 1.0))
        return counted[0] * growth ** (halvings - 1), growth

    def _count(self, spec: KernelSpec, case: Case) -> float | None:
        job = self._job(spec, case, count=True)
        if job is None:
            return None
        (done,) = self._machine.run_many(replace(self._binary, spec=spec), [job], deadline_s=_MAX_COUNT_S)
        if done.counts is None or any(f.kind in _ENDS for f in done.findings):
            return None
        return sum(site.requests for kernel in done.counts.kernels for site in kernel.sites) * 32.0

    def _reached(self, sizes: Mapping[str, int], whole: int) -> dict[str, int]:
        """As `touched`, of runs that are made once: a draft that is made again asks for the same ones when no time may be left."""
        key = (trial_key(sizes), whole)
        if key not in self._seen:
            self._seen[key] = self._tried(sizes, whole)
        return self._seen[key]

    def _tried(self, sizes: Mapping[str, int], whole: int) -> dict[str, int]:
        most, product = max(sizes.values(), default=0), math.prod(sizes.values())
        least = 4096 + 4 * product + 4 * most + 2 * min(most**2, _MAX_SQUARE)
        ended = ""
        lengths = (least, least + 2 * product * most, _MOST_IN_ROW * least)
        for length in sorted({min(_MAX_ELEMENTS, each) for each in lengths}):
            if self._spent_s > _MAX_S:
                ended = ended or f"has no more time after {_MAX_S:g} s of trials"
                break
            watch = _Watch()
            done = self._run(sizes, length, whole)
            self._spent_s += watch.spent_s()
            kinds = {f.kind for f in done.findings} if done else set()
            if done and not kinds & _ENDS:
                lanes = {a.name: parse_dtype(a.type).lanes for a in self._spec.arguments}
                self._lengths[trial_key(sizes)] = length
                return {name: -(-n // lanes[name]) for name, n in done.touched.items() if n}
            ended = next((f.message for f in done.findings if f.kind in _ENDS), "") if done else "cannot be launched"
            if "out_of_bounds" not in kinds:
                break
        if not whole:
            self._ended[trial_key(sizes)] = ended
        return {}  # it ended there: what it had touched by then says nothing

    def _run(self, sizes: Mapping[str, int], length: int, whole: int, *, first_contents: bool = True) -> CpuRun | None:
        """One run; None where these sizes give no launch.

        Without `first_contents` reads of what may be written count as such of what nothing has written.
        """
        # Beside the sizes there are figures of the host's.
        launch = evaluate(self._program, self._spec, 0, {**self._spec.check[0].sizes, **sizes})
        if not can_launch(launch):  # half a tile may have no block
            return None
        arguments = [_roomy(a, length, whole) for a in self._spec.arguments]
        drawn = [replace(a, role="inout") if a.role == "out" else a for a in arguments]
        spec = replace(self._spec, arguments=tuple(drawn))
        buffers = generate(spec, case := Case("trial", dict(sizes)), 1, "declared")
        if not first_contents:
            arguments = [replace(a, role="out") if a.role == "inout" else a for a in arguments]
        binary = replace(self._binary, spec=replace(self._spec, arguments=tuple(arguments)))
        return self._machine.run(binary, CpuJob([launch], buffers, scalars(spec, case)), deadline_s=_MAX_TRIAL_S)


def _roomy(argument: Argument, length: int, whole: int) -> Argument:
    if argument.role == "scalar":
        return argument
    fill = Fill() if parse_dtype(argument.type).kind == "float" else Fill("constant", str(whole))
    if argument.fill.kind == "offsets":  # every segment as long as it may be
        fill = replace(argument.fill, low=f"({argument.fill.high}) - 1")
    # Constant memory has the extent of its declaration.
    size = argument.size if argument.symbol and "." not in argument.name else str(length)
    return replace(argument, size=size, fill=fill)
