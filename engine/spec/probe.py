"""Runs the original on the CPU to see how much of each buffer it touches, and what it does there."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.model import Program
from engine.source.launch import evaluate
from engine.source.slice import device_slice
from engine.spec.check import can_launch
from engine.spec.data import generate, scalars
from engine.spec.dtypes import parse_dtype
from engine.spec.extents import trial_key
from engine.spec.model import Argument, Case, Fill, KernelSpec, Role

if TYPE_CHECKING:
    from engine.cpu import CpuMachine, CpuRun

_MAX_TRIAL_S = 5.0
_MAX_S, _MAX_ROLES_S = (
    15.0,
    5.0,
)  # after which no trial begins, of how far a kernel reaches and of roles: a person waits for the draft
_MAX_ELEMENTS = 1 << 23  # of one buffer in a trial
_MAX_SQUARE = 1 << 20  # a matrix of one size on both sides: the largest trial of a vector need not have room for one
_ENDS = {"out_of_bounds", "crash", "timeout"}  # findings that end a run: what it had touched by then says nothing


class CpuProbe:
    """Runs the original on the CPU for `engine.spec.draft.draft`, at sizes that are to be tried.

    `spec` gives types, roles and scalars; its sizes do not count. Buffers are made larger than any common extent, and once more
    larger where a trial reaches beyond; floats are drawn, integers are all the same: they may be indices. A trial that reaches
    beyond even that gives nothing, nor does one that cannot be launched, one that takes too long, or one after others that did.
    All raise OptimlError where the kernel cannot be compiled, launched or run here.
    """

    def __init__(self, program: Program, spec: KernelSpec, machine: CpuMachine, root: Path) -> None:
        step = spec.steps[0]
        expression = f"{step.kernel}<{step.template_args}>" if step.template_args else step.kernel
        sliced = device_slice(program, [expression], root=root, include=spec.compile.include)
        self._program, self._spec, self._machine = program, spec, machine
        self._binary = machine.build(sliced.text, spec.file, spec, [expression])
        self._spent_s = self._spent_on_roles_s = 0.0
        self._lengths: dict[tuple[tuple[str, int], ...], int] = {}  # of the buffers that a trial had room in

    def touched(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Elements touched of each buffer, by parameter."""
        return self._reached(sizes, 0)

    def moved(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """As `touched`, with all whole numbers in buffers 1 instead of 0."""
        return self._reached(sizes, 1)

    def roles(self, sizes: Mapping[str, int]) -> dict[str, Role]:
        """What the kernel does with each buffer that it may write, at sizes that `touched` was called with.

        "in": it writes nothing there; "out": it writes all of it, each element before it reads it; else "inout".
        """
        length = self._lengths.get(trial_key(sizes))
        if length is None or self._spent_on_roles_s > _MAX_ROLES_S:
            return {}
        begin = time.monotonic()
        done = self._run(sizes, length, 0, first_contents=False)
        self._spent_on_roles_s += time.monotonic() - begin
        if done is None or {f.kind for f in done.findings} & _ENDS:
            return {}
        read = {f.array for f in done.findings if f.kind == "uninitialised"}
        found: dict[str, Role] = {}
        for name, count in done.written.items():
            if touched := done.touched[name]:
                found[name] = "in" if not count else "inout" if name in read or count < touched else "out"
        return found

    def _reached(self, sizes: Mapping[str, int], whole: int) -> dict[str, int]:
        most, product = max(sizes.values(), default=0), math.prod(sizes.values())
        least = 4096 + 4 * product + 4 * most + 2 * min(most**2, _MAX_SQUARE)
        for length in sorted({min(_MAX_ELEMENTS, least), min(_MAX_ELEMENTS, least + 2 * product * most)}):
            if self._spent_s > _MAX_S:
                break
            begin = time.monotonic()
            done = self._run(sizes, length, whole)
            self._spent_s += time.monotonic() - begin
            kinds = {f.kind for f in done.findings} if done else set()
            if done and not kinds & _ENDS:
                lanes = {a.name: parse_dtype(a.type).lanes for a in self._spec.arguments}
                self._lengths[trial_key(sizes)] = length
                return {name: -(-n // lanes[name]) for name, n in done.touched.items() if n}
            if "out_of_bounds" not in kinds:
                break
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
        return self._machine.run(binary, [launch], buffers, scalars(spec, case), deadline_s=_MAX_TRIAL_S)


def _roomy(argument: Argument, length: int, whole: int) -> Argument:
    if argument.role == "scalar":
        return argument
    fill = Fill() if parse_dtype(argument.type).kind == "float" else Fill("constant", str(whole))
    return replace(argument, size=str(length), fill=fill)
