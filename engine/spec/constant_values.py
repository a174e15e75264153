"""What a program's expressions, shared arrays, bounds and launches come to where named constants have other values than in its text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from engine.arith import ArithmeticError_, evaluate_int
from engine.cuda.closure import closure
from engine.cuda.constants import integers, words
from engine.cuda.kernel import Kernel, Unit
from engine.errors import OptimlError
from engine.model import LaunchConfig, Program
from engine.spec.dtypes import parse_dtype
from engine.spec.kernel_spec import KernelSpec
from engine.spec.launch_config import evaluate
from engine.spec.tables import tuning_lines

_QUALIFIERS = re.compile(r"\b(?:const|volatile|unsigned(?= int\b))\b")


def value_at(unit: Unit, text: str, values: Mapping[str, int]) -> int | None:
    """The value of an integer expression over `values`, and over constants of the file that depend on them; None where it has none."""
    try:
        return evaluate_int(text, integers(unit, words(text), values))
    except ArithmeticError_:
        return None


def open_constants(unit: Unit) -> dict[str, int]:
    """The integer constants that the file's tune lines leave open, and those that depend on them, with their present values.

    Raises SpecError.
    """
    tuned = {text.partition("=")[0].strip() for kind, text, _ in tuning_lines(unit) if kind == "tune"}
    if not tuned:
        return {}
    texts = {**unit.constants, **unit.macros}

    def reached(name: str) -> set[str]:
        return closure([name], lambda word: words(texts.get(word, "")))

    return integers(unit, [name for name in texts if tuned & reached(name)])


def shared_bytes(unit: Unit, kernel: Kernel, values: Mapping[str, int]) -> int | None:
    """The static shared memory of a kernel in bytes; None where its declarations are no plain arithmetic."""
    total = 0
    for array in kernel.shared:
        if array.dynamic:
            continue
        try:
            count = parse_dtype(_QUALIFIERS.sub("", array.type).strip()).itemsize
        except OptimlError:
            return None
        for extent in array.extents:
            found = value_at(unit, extent, values)
            if found is None:
                return None
            count *= found
        total += count
    return total


def bound_at(unit: Unit, kernel: Kernel, values: Mapping[str, int]) -> int | None:
    """The threads that a kernel's `__launch_bounds__` admits; None where there is none or it is no plain arithmetic."""
    first = kernel.launch_bounds.partition(",")[0]
    own = words(" ".join(kernel.template_parameters))
    # A template's parameter hides a constant of its name.
    return value_at(unit, first, values) if first and not {*own} & {*words(first)} else None


def launches_at(program: Program, spec: KernelSpec, values: Mapping[str, int]) -> tuple[tuple[LaunchConfig, ...], ...]:
    """The launches of all steps for each timing case. Raises SourceError.

    The values go in as the compiler's defines would: the parsed text is then the same for all of them.
    """
    defines = (*spec.compile.defines, *(f"{name}={value}" for name, value in values.items()))
    at = replace(spec, compile=replace(spec.compile, defines=defines))
    return tuple(
        tuple(evaluate(program, at, step, case.sizes) for step in range(len(spec.steps))) for case in spec.time
    )
