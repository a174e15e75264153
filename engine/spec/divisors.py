"""Divisors that the host prepares for a kernel, as a factor, a shift and the divisor in a `uint3`.

`n / d` is `(high(n * factor) + n) >> shift` (Granlund and Montgomery, Division by Invariant Integers using Multiplication, 1994).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from engine.cuda.host_scope import HostScope
from engine.cuda.kernel import Kernel
from engine.cuda.launch_reading import readable_sites
from engine.cuda.parse import parse, text
from engine.errors import SourceError
from engine.model import Program
from engine.spec.drafted_parts import ASSUMED, Part
from engine.spec.host_solved import definition_of
from engine.spec.kernel_spec import Argument
from engine.spec.launch_config import argument_node

if TYPE_CHECKING:
    from tree_sitter import Node

_TYPE, _LANE = "uint3", "unsigned int"
_LANES = {"x": 0, "y": 4, "z": 8}  # offsets in bytes
_HIGH = re.compile(r"(?:\b(\w+)\s*=\s*)?__umulhi\(\s*(\w+)\s*,\s*(\w+)\s*\.\s*([xyz])\s*\)")
_PLAIN = re.compile(r"\w+(?: ?\* ?\w+)*")


@dataclass(frozen=True)
class _Lanes:
    factor: str
    shift: str
    divisor: str


def with_divisors(program: Program, kernel: Kernel, parts: list[Part]) -> list[Part]:
    """The arguments with the fields of prepared divisors in the place of one number for all three.

    What the host divides by becomes a size, where it is none of the kernel's.
    """
    kinds = {p.name for p in kernel.parameters if not p.pointer and p.base == _TYPE}
    lanes = _division(program) if kinds else None
    if lanes is None:
        return parts
    passed, found = _passed(program, kernel, kinds), list[Part]()
    for part in parts:
        name = part.argument.name
        if name not in kinds or part.notes != [ASSUMED]:
            found.append(part)
            continue
        divisor = _divisor(passed.get(name, ""), name, parts)
        d = divisor if divisor.isidentifier() else f"({divisor})"
        log = f"ceil_log2({d})"
        values = {
            lanes.factor: f"4294967296*((1 << {log}) - {d})/{d} + 1",
            lanes.shift: log,
            lanes.divisor: divisor,
        }
        found.append(Part(Argument(name, "struct:12", "scalar", value=f"hex:{'00' * 12}"), []))
        for lane, offset in _LANES.items():
            argument = Argument(f"{name}.{lane}", _LANE, "scalar", value=values[lane], offset=offset)
            size = divisor if lane == lanes.divisor and divisor.isidentifier() else ""
            found.append(Part(argument, [f"assumed: a division by {divisor}, as the host prepares it"], size))
    return found


def _division(program: Program) -> _Lanes | None:
    """The lanes of a `uint3` that some function of the program divides by."""
    for path, data in program.files.items():
        if b"__umulhi" not in data or path.endswith(".toml"):
            continue
        for function in parse(data, path).functions:
            body = text(function.node) if function.node is not None else ""
            high = _HIGH.search(body)
            if high is None or high[3] not in {p.name for p in function.parameters if p.base == _TYPE}:
                continue
            sums = "|".join(rf"{a}\s*\+\s*{b}" for a, b in ((_part(high), high[2]), (high[2], _part(high))))
            shifted = re.search(rf"\(\s*(?:{sums})\s*\)\s*>>\s*{high[3]}\s*\.\s*([xyz])", body)
            if shifted is not None and shifted[1] != high[4]:
                (rest,) = _LANES.keys() - {high[4], shifted[1]}
                return _Lanes(high[4], shifted[1], rest)
    return None


def _part(high: re.Match[str]) -> str:
    """How the function writes the high half: by a local's name, or as the call."""
    return high[1] or re.escape(high[0])


def _passed(program: Program, kernel: Kernel, wanted: set[str]) -> Mapping[str, str]:
    """What the first launch's divisors are made of, over the kernel's names where it is given the same."""
    site = next(iter(readable_sites(program, kernel.name)), None)
    if site is None:
        return {}
    scope = HostScope(program, parse(program.files[site.path], site.path), {})
    pairs = [(p.name, each.strip()) for p, each in zip(kernel.parameters, site.arguments, strict=False)]
    own = {each: name for name, each in pairs if each.isidentifier()}
    found = {}
    for name, each in pairs:
        node = argument_node(scope.unit, site, each) if name in wanted else None
        with suppress(SourceError):
            value = definition_of(scope, node) if node is not None and node.type == "identifier" else node
            if value is not None and (inner := _argument(value)) is not None:
                found[name] = re.sub(r"\w+", lambda m: own.get(m[0], m[0]), text(inner))
    return found


def _argument(call: Node) -> Node | None:
    """The only argument of a call, without casts."""
    given = call.child_by_field_name("arguments") if call.type == "call_expression" else None
    if given is None or given.named_child_count != 1:
        return None
    node = given.named_children[0]
    while node.type in ("cast_expression", "parenthesized_expression"):
        node = node.child_by_field_name("value") or node.named_children[-1]
    return node


def _divisor(written: str, name: str, parts: list[Part]) -> str:
    """What is divided by: sizes of the kernel, a size of the host's, or one of its own."""
    scalars = {p.argument.name: p for p in parts}
    names = re.findall(r"\w+", written) if _PLAIN.fullmatch(written) else []
    known = [scalars[each] for each in names if each in scalars]
    if not names or any(each.isdigit() for each in names):
        return f"{name}_divisor"
    if any(p.argument.role != "scalar" or (p.size != p.argument.name and p.notes != [ASSUMED]) for p in known):
        return f"{name}_divisor"
    if len(known) < len(names) and len(names) > 1:
        return f"{name}_divisor"
    for part in known:
        if part.notes == [ASSUMED]:
            part.argument, part.size, part.notes = replace(part.argument, value=""), part.argument.name, []
    return "*".join(names)
