"""Runs the original on the CPU to see how much of each buffer it touches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.model import Program
from engine.source.launch import evaluate
from engine.source.slice import device_slice
from engine.spec.data import generate, scalars
from engine.spec.dtypes import parse_dtype
from engine.spec.model import Argument, Case, Fill, KernelSpec

if TYPE_CHECKING:
    from engine.cpu import CpuMachine

_MAX_TRIAL_S, _MAX_S = 5.0, 10.0  # a trial, and all that begin: a person waits for the draft
_MAX_ELEMENTS = 1 << 23  # of one buffer in a trial
_MAX_SQUARE = 1 << 20  # a matrix of one size on both sides: the largest trial of a vector need not have room for one


def cpu_probe(
    program: Program, spec: KernelSpec, machine: CpuMachine, root: Path, *, whole: int = 0
) -> Callable[[Mapping[str, int]], Mapping[str, int]]:
    """A probe for `engine.spec.draft.draft`: elements touched of each buffer, by parameter, for a set of sizes.

    `spec` gives types, roles and scalars; its sizes do not count. Buffers are made larger than any common extent, and once more
    larger where a trial reaches beyond; floats are drawn, integers are all `whole`: they may be indices. A trial that reaches
    beyond even that gives nothing, nor does one that takes too long, or comes after others that did.
    Raises OptimlError where the kernel cannot be compiled, launched or run here.
    """
    step = spec.steps[0]
    expression = f"{step.kernel}<{step.template_args}>" if step.template_args else step.kernel
    sliced = device_slice(program, [expression], root=root, include=spec.compile.include)
    binary = machine.build(sliced.text, spec.file, spec, [expression])
    spent = [0.0]

    def probe(sizes: Mapping[str, int]) -> dict[str, int]:
        most, product = max(sizes.values(), default=0), math.prod(sizes.values())
        least = 4096 + 4 * product + 4 * most + 2 * min(most**2, _MAX_SQUARE)
        for length in sorted({min(_MAX_ELEMENTS, least), min(_MAX_ELEMENTS, least + 2 * product * most)}):
            if spent[0] > _MAX_S:
                break
            kinds, touched = run(sizes, length)
            if not kinds & {"out_of_bounds", "crash", "timeout"}:
                return touched
            if "out_of_bounds" not in kinds:
                break
        return {}  # it ended there: what it had touched by then says nothing

    def run(sizes: Mapping[str, int], length: int) -> tuple[set[str], dict[str, int]]:
        case = Case("trial", dict(sizes))
        trial = replace(spec, arguments=tuple(_roomy(a, length, whole) for a in spec.arguments))
        launch = evaluate(program, spec, 0, {**spec.check[0].sizes, **sizes})  # beside the sizes, figures of the host's
        buffers = generate(trial, case, 1, "declared")
        for argument in trial.arguments:
            if argument.role == "out" and argument.name not in buffers:
                buffers[argument.name] = _zeros(argument, length)
        begin = time.monotonic()
        done = machine.run(binary, [launch], buffers, scalars(trial, case), deadline_s=_MAX_TRIAL_S)
        spent[0] += time.monotonic() - begin
        lanes = {a.name: parse_dtype(a.type).lanes for a in trial.arguments}
        return {f.kind for f in done.findings}, {name: -(-n // lanes[name]) for name, n in done.touched.items() if n}

    return probe


def _zeros(argument: Argument, length: int) -> object:
    import numpy as np

    dtype = parse_dtype(argument.type)
    return np.zeros(length * dtype.lanes, dtype.storage)


def _roomy(argument: Argument, length: int, whole: int) -> Argument:
    if argument.role == "scalar":
        return argument
    fill = Fill() if parse_dtype(argument.type).kind == "float" else Fill("constant", str(whole))
    return replace(argument, size=str(length), fill=fill)
