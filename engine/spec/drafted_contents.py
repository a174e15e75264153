"""What a draft fills its buffers with, and sizes that follow from the launch alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from engine.cuda.macros import function_macros, object_macros
from engine.cuda.parse import names_in
from engine.model import Program
from engine.spec.drafted_parts import Part
from engine.spec.dtypes import parse_dtype
from engine.spec.indirect import Indirect
from engine.spec.kernel_spec import Argument, Fill
from engine.spec.shapes import MAX_CHECKED
from engine.spec.usage import Usage

ABSENT = "assumed: not given, as some launch passes none"
UNUSED = "assumed: one element, as the kernel does not use it"


def set_absent(parts: Sequence[Part], null: Collection[str], used: Collection[str], touched: Collection[str]) -> None:
    """One element for each buffer that no trial touched, while there were some, where it is null at some launch, or not `used`."""
    for part in parts:
        name = part.argument.name
        if part.argument.role == "scalar" or name in touched or part.argument.symbol:
            continue
        if name in null or name not in used:
            part.argument, part.extent = replace(part.argument, role="in"), "1"
            part.notes = [ABSENT if name in null else UNUSED]


def named(program: Program, usage: Usage) -> set[str]:
    """The buffers that the kernel names, itself or by macros that its files define; and all in structs."""
    texts: dict[str, list[str]] = {}
    for path, data in program.files.items():
        if path.endswith(".toml"):
            continue
        for name, written in object_macros(data, path).items():
            texts.setdefault(name, []).extend(written)
        for name, bodies in function_macros(data, path).items():
            texts.setdefault(name, []).extend(body for _, body in bodies)
    words, new = set[str](), names_in(usage.body)
    while new:
        words |= new
        new = {word for macro in new & texts.keys() for each in texts[macro] for word in _WORD.findall(each)} - words
    return {name for name in usage.uses if name in words or "." in name}


_WORD = re.compile(r"[A-Za-z_]\w*")
_SMALL = "60"  # bytes up to which make finite, small fractions of every width, whatever the kernel takes them for
_NARROW = 1 << 15  # values of 16 bits: whole numbers of more are mostly indices or labels


def set_fill(part: Part, arguments: Mapping[str, Argument], tables: Mapping[str, Indirect], usage: Usage) -> None:
    """Gives what a buffer holds at first, where the kernel reads it; `tables` are buffers whose indices come from others."""
    argument = part.argument
    if argument.role not in ("in", "inout"):
        return
    dtype = parse_dtype(argument.type)
    if {ABSENT, UNUSED} & {*part.notes}:
        part.argument = replace(argument, fill=Fill("constant", "0"))
    elif argument.role == "inout" and usage.uses[argument.name].atomic:
        part.argument = replace(argument, fill=Fill("constant", "0"))
        part.notes.append("assumed: starts at zero")
    elif dtype.kind in ("int", "bool", "bytes"):
        into = usage.indexed_by(argument.name)
        if not into and [a for a in arguments.values() if is_index(a)] == [argument]:
            into = [*tables]  # what moves what they reach can only be its contents
        targets = [found for t in into if (found := tables[t].high if t in tables else arguments[t].size)]
        most = int(dtype.limits[1]) + 1
        high = "2" if dtype.kind == "bool" else _SMALL if part.opaque else str(min(most, 256))
        if argument.size == "1" and not targets:
            # A single number mostly switches the kernel off (`if (*noop) return`).
            part.argument = replace(argument, fill=Fill("constant", "0"))
            part.notes.append("assumed: zero")
            return
        low, stored = "0", stored_at(usage, [*arguments.values()], tables)
        if (
            targets
            and most > MAX_CHECKED
            and any(argument.name == found for found in stored.values())
            and targets == [argument.size]
        ):
            part.argument = replace(argument, fill=Fill("permutation"))
            part.notes.append("assumed: each index once, as results are stored there")
            return
        if targets:
            high = targets[0] if most > MAX_CHECKED else f"min({targets[0]}, {most})"
        elif not into and dtype.kind == "int" and dtype.limits[0] < 0 and most <= _NARROW and not part.opaque:
            low = f"-{high}"  # quantised values, not indices: who takes them for unsigned is wrong
        part.argument = replace(argument, fill=Fill("integers", low, high))
        part.notes.append("assumed: the range of its values")


def set_finite(part: Part) -> None:
    """Other contents, where those of `set_fill` give no numbers: positive ones, and bytes whose bits are those of small floats."""
    argument = part.argument
    if argument.role not in ("in", "inout"):
        return
    if argument.fill == Fill():
        part.argument = replace(argument, fill=Fill("uniform", "0.1", "1"))
        part.notes.append("assumed: positive, as other inputs give no numbers")
    elif argument.fill == Fill("integers", "0", "256") and parse_dtype(argument.type).storage.itemsize == 1:
        part.argument = replace(argument, fill=Fill("integers", "0", _SMALL))
        part.notes.append("assumed: bits of small numbers, as others give no numbers")


def stored_at(usage: Usage, arguments: Sequence[Argument], tables: Collection[str]) -> dict[str, str]:
    """Of tables whose elements are stored, and by no atomic, those with one buffer of indices, with that."""
    indices = [a.name for a in arguments if is_index(a)]
    found = {name: [i for i in indices if name in usage.indexed_by(i)] or indices for name in tables}
    stored = {name for name in tables if usage.uses[name].stored and not usage.uses[name].atomic}
    return {name: own[0] for name, own in found.items() if name in stored and len(own) == 1 and own[0] != name}


def is_index(argument: Argument) -> bool:
    """Whether the argument is a buffer whose contents may be indices."""
    return argument.role in ("in", "inout") and parse_dtype(argument.type).kind == "int"


def set_by_block(parts: list[Part], blocks: Mapping[str, int]) -> None:
    """Sizes that are the same in all trials as so many elements for each block, where the device decides how many blocks there are."""
    for part in parts:
        text = next((t for t, n in blocks.items() if n > 1 and part.argument.size == str(n)), "")
        if text and not part.argument.symbol:
            part.argument = replace(part.argument, size=text)
            part.notes.append("assumed: one element for each block")
