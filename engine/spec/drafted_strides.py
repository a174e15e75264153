"""The strides among a draft's scalars, with the values of memory without gaps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from engine.cuda.records import parameter_name, split_arguments
from engine.spec.drafted_parts import Part
from engine.spec.dtypes import parse_dtype
from engine.spec.strides import EXTENT, Numbers, strides
from engine.spec.usage import Usage


def set_strides(parts: Sequence[Part], hosts: Sequence[str], usage: Usage, template_args: str) -> tuple[str, ...]:
    """Gives strides their values, as those of memory without gaps; the lengths of rows that are no size themselves."""
    given = zip(usage.kernel.template_parameters, split_arguments(template_args), strict=False)
    constants = {parameter_name(p): int(value) for p, value in given if value.isdigit()}
    numbers = [
        p
        for p in parts
        if p.argument.role == "scalar"
        and parse_dtype(p.argument.type).kind == "int"
        and (p.argument.value in ("", p.size) if p.size else p.argument.value == "1")
    ]
    whole = {p.argument.name.rpartition(".")[2]: p for p in numbers}
    buffers = {
        p.argument.name.rpartition(".")[2]: parse_dtype(p.argument.type).itemsize
        for p in parts
        if p.argument.role != "scalar" and not p.opaque
    }
    counted = [*(p.size for p in numbers if p.size), *hosts]
    scaling = [name for name, part in whole.items() if usage.scales(part.argument.name)]
    found = strides(Numbers([*whole], counted, buffers, scaling, usage.counts_bytes(), constants))
    for name, value in found.items():
        part = whole[name]
        part.argument, part.size = replace(part.argument, value=value), ""
        part.notes = [_note(name, value)]
    elements = [re.sub(r"\*\d+$", "", value) for value in found.values()]
    return tuple(dict.fromkeys(value for value in elements if not value.isdigit()))


def _note(name: str, value: str) -> str:
    if EXTENT.fullmatch(name):
        return "assumed: the extent of the first source"
    return "assumed: rows that do not overlap" if "max(" in value else "assumed: memory without gaps"
