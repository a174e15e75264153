"""Scalars of a draft whose value follows from the launch that the draft is for, or from another scalar."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from engine.cuda.definitions import expression
from engine.cuda.host_scope import HostScope
from engine.cuda.instances import Instance, launched_instances, qualified
from engine.cuda.kernel import Kernel
from engine.cuda.launch_conditions import equalities
from engine.cuda.parse import parse
from engine.errors import SourceError
from engine.model import Program
from engine.spec.drafted_parts import ASSUMED, Part
from engine.spec.dtypes import parse_dtype

_INVERSE = re.compile(r"(?:inv(?:erse)?|one_over|reciprocal|recip|rcp)(?:_of)?_?(\w+)", re.IGNORECASE)


def set_values(program: Program, kernel: Kernel, template_args: str, parts: Sequence[Part]) -> None:
    """Gives scalars what the host compares them with where it launches this instance, and `inv_n` one over `n`."""
    for instance in launched_instances(program, kernel.name):
        if "".join(qualified(program, instance.arguments).split()) == "".join(template_args.split()):
            for name, value, condition in _compared(program, kernel, instance):
                for part in parts:
                    if part.argument.name == name and _is_whole(part):
                        part.argument, part.size = replace(part.argument, value=str(value)), ""
                        part.notes = [f"the launch's condition '{condition}'"]
            break
    scalars = {p.argument.name.rpartition(".")[2]: p for p in parts if _is_whole(p)}
    for part in parts:
        named = _INVERSE.fullmatch(part.argument.name.rpartition(".")[2])
        other = scalars.get(named[1]) if named is not None else None
        if other is not None and ASSUMED in part.notes and parse_dtype(part.argument.type).kind == "float":
            of = other.argument.value or other.argument.name
            part.argument = replace(part.argument, value=f"1.0/{of}")
            part.notes = [f"assumed: one over '{other.argument.name}'"]


def set_equal(parts: Sequence[Part], equal: Mapping[str, str]) -> None:
    """Gives sizes the value of the size that the host passes for them as well."""
    sizes = {p.argument.name for p in parts if p.size}
    for part in parts:
        other = equal.get(part.argument.name, "")
        if part.size and other in sizes:
            part.argument, part.size = replace(part.argument, value=other), ""
            part.notes = [f"every launch passes one value for '{other}' and '{part.argument.name}'"]


def _is_whole(part: Part) -> bool:
    dtype = parse_dtype(part.argument.type)
    return part.argument.role == "scalar" and dtype.kind == "int" and dtype.lanes == 1


def _compared(program: Program, kernel: Kernel, instance: Instance) -> Iterator[tuple[str, int, str]]:
    """(argument, value, condition): what the host compares with a constant before it passes it, and goes on where they are equal."""
    site = instance.site
    passed = {" ".join(a.split()): p.name for p, a in zip(kernel.parameters, site.arguments, strict=False)}
    own = {p.name for p in kernel.parameters}
    scope = HostScope(program, parse(program.files[site.path], site.path), {})
    for condition in instance.holds:
        for sides in equalities(condition):
            for compared, other in (sides, sides[::-1]):
                whole, _, field = compared.rpartition(".")
                name = passed.get(compared, f"{passed[whole]}.{field}" if whole in passed else "")
                if not name and compared in own and compared not in passed:
                    name = compared  # a caller's name for what the launching function is given
                node = expression(other)
                if name and node is not None:
                    try:
                        value = scope.number(node)
                    except SourceError:
                        continue
                    if isinstance(value, int):
                        yield name, value, condition
