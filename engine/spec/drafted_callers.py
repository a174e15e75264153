"""What the callers of a kernel show of its drafted arguments: buffers passed twice, and numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from engine.cuda.aliasing import shared_buffers
from engine.cuda.definitions import declarators
from engine.cuda.host_scope import HostScope
from engine.cuda.instances import launched_instances, qualified
from engine.cuda.kernel import Kernel, LaunchSite
from engine.cuda.launch import hidden_launch, sites
from engine.cuda.launch_reading import readable_sites
from engine.cuda.parse import names_in, parse, text
from engine.cuda.syntax import is_integer_type, operands
from engine.errors import SourceError
from engine.model import Program
from engine.spec.drafted_parts import ASSUMED, Part
from engine.spec.dtypes import parse_dtype
from engine.spec.host_solved import definition_of
from engine.spec.launch_config import argument_node

_FIRST = (0, 1, 2)  # what loops of steps begin with; those over lengths begin with more
_NULL = ("nullptr", "NULL")
_FRACTION = re.compile(r"[-+]?\s*(?:\d{1,9}\.\d*|\.\d+|\d{1,9}(?=[eE]))(?:[eE][-+]?\d{1,2})?[fFlL]?")


def is_launched(program: Program, kernel: Kernel) -> bool:
    """Whether a launch of the kernel is seen and can be read."""
    with suppress(SourceError):
        return bool(readable_sites(program, kernel.name))
    return False


def no_launch(program: Program, kernel: Kernel) -> str:
    """Why no launch of the kernel is known, and what to add."""
    place = hidden_launch(program, kernel.name)
    why = (
        f"{place} hands the kernel on, and what launches it is not read"
        if place
        else "no host code launches the kernel"
    )
    return f"{why}; add launch.grid and launch.block"


def note_shared(program: Program, kernel: Kernel, parts: list[Part]) -> None:
    """Note for each buffer that a caller passes for another parameter, too."""
    notes = {part.argument.name: part.notes for part in parts}
    with suppress(SourceError):
        for pair in shared_buffers(program, kernel, sites(program, kernel.name)) or ():
            notes[pair.second].append(f"assumed: a buffer of its own, but {pair.where} passes that of '{pair.first}'")


def passed_null(program: Program, kernel: Kernel, template_args: str) -> frozenset[str]:
    """The parameters for which every launch of the instance passes no buffer; every launch at all, where none is seen to be its own."""
    wanted = "".join(template_args.split())
    sites = readable_sites(program, kernel.name)
    own = {
        instance.site.span
        for instance in launched_instances(program, kernel.name)
        if "".join(qualified(program, instance.arguments).split()) == wanted
    }
    null = [
        {p.name for p, passed in zip(kernel.parameters, site.arguments, strict=False) if passed.strip() in _NULL}
        for site in sites
        if site.span in own or not own
    ]
    return frozenset(set.intersection(*null)) if null else frozenset()


def set_passed(program: Program, kernel: Kernel, parts: list[Part]) -> None:
    """Give scalars whose value nothing tells the number that the first launch passes for them.

    Of a fraction not 0, 1 or -1: these would hide a term or a factor that an edit forgets.
    """
    assumed = {p.argument.name: p for p in parts if p.notes == [ASSUMED] and "." not in p.argument.name}
    for name, (value, where) in passed_numbers(program, kernel).items() if assumed else ():
        part = assumed.get(name)
        if part is None or (parse_dtype(part.argument.type).kind == "float" and value in (-1, 0, 1)):
            continue
        part.argument = replace(part.argument, value=repr(value))
        part.notes = [f"assumed: the value, as {where} passes it"]


def passed_numbers(program: Program, kernel: Kernel) -> dict[str, tuple[int | float, str]]:
    """What the first launch that passes a number for a parameter, as such or by the name of a constant, passes, and where."""
    found: dict[str, tuple[int | float, str]] = {}
    for site in readable_sites(program, kernel.name):
        scope = HostScope(program, parse(program.files[site.path], site.path), {})
        for parameter, passed in zip(kernel.parameters, site.arguments, strict=False):
            if parameter.pointer or parameter.name in found:
                continue
            value = _number(scope, site, passed.strip())
            if value is not None:
                found[parameter.name] = value, f"{site.path}:{site.line}"
    return found


def passed_equal(program: Program, kernel: Kernel) -> dict[str, str]:
    """Parameters for which every visible launch passes what it passes for an earlier one, with the earlier one's name."""
    names = [p.name for p in kernel.parameters]
    plain = [p.name for p in kernel.parameters if not p.pointer]
    rows = [
        dict(zip(names, (" ".join(a.split()) for a in site.arguments), strict=False))
        for site in readable_sites(program, kernel.name)
    ]
    found: dict[str, str] = {}
    for at, later in enumerate(plain):
        for first in plain[:at]:
            if first not in found and rows and all(first in row and row.get(later) == row[first] for row in rows):
                found.setdefault(later, first)
    return found


def passed_products(program: Program, kernel: Kernel) -> dict[str, tuple[str, ...]]:
    """What the first launch passes as a product, `n = rows * cols`, of which the kernel is given a factor as well: its factors.

    They have the names of the kernel's parameters, others those of the parameters of the host's function.
    """
    site = next(iter(readable_sites(program, kernel.name)), None)
    if site is None:
        return {}
    scope = HostScope(program, parse(program.files[site.path], site.path), {})
    hosts = [f for f in scope.unit.functions if f.name == site.function]
    own = {p.name for p in hosts[0].parameters if is_integer_type(p.base)} if len(hosts) == 1 else set[str]()
    passed = [
        (p.name, each.strip()) for p, each in zip(kernel.parameters, site.arguments, strict=False) if not p.pointer
    ]
    given = {each: name for name, each in passed if each.isidentifier()}
    found: dict[str, tuple[str, ...]] = {}
    for name, each in passed:
        node = argument_node(scope.unit, site, each)
        value = definition_of(scope, node) if node is not None and node.type == "identifier" else node
        factors = [text(n) for n in operands(value, "*")] if value is not None else []
        known = [given.get(factor, factor if factor in own else "") for factor in factors]
        if len(known) > 1 and all(known) and name not in known and any(factor in given for factor in factors):
            found[name] = tuple(known)
    return found


def set_products(parts: list[Part], products: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Give sizes of the kernel that are products of others their value, and say which these are.

    The others become sizes where nothing tells their value; where something does, the product stays a size of its own.
    """
    own = {part.argument.name: part for part in parts}
    free = {name for name, part in own.items() if part.size == name or part.notes == [ASSUMED]}
    found = {
        n: f for n, f in products.items() if own[n].size == n and all(each in free or each not in own for each in f)
    }
    for factor in (own[each] for factors in found.values() for each in factors if each in own):
        if factor.notes == [ASSUMED]:
            factor.argument, factor.size, factor.notes = replace(factor.argument, value=""), factor.argument.name, []
    for name, factors in found.items():
        own[name].argument, own[name].size = replace(own[name].argument, value="*".join(factors)), ""
        own[name].notes = ["assumed: the value, as the host computes it"]
    return found


def set_looped(program: Program, kernel: Kernel, parts: list[Part]) -> None:
    """Give whole numbers that each launch passes the counter of a loop around it the value that the loop begins with."""
    found: list[dict[str, tuple[int, str]]] = []
    for site in readable_sites(program, kernel.name):
        scope = HostScope(program, parse(program.files[site.path], site.path), {})
        passed = zip(kernel.parameters, site.arguments, strict=False)
        begins = {p.name: _begins(scope, site, each.strip()) for p, each in passed if not p.pointer}
        where = f"the loop around {site.path}:{site.line}"
        found.append({name: (value, where) for name, value in begins.items() if value in _FIRST})
    for part in parts:
        if found and part.argument.role == "scalar" and all(part.argument.name in each for each in found):
            value, where = found[0][part.argument.name]
            part.argument, part.size = replace(part.argument, value=str(value)), ""
            part.notes = [f"assumed: the value, with which {where} begins"]


def _begins(scope: HostScope, site: LaunchSite, name: str) -> int | None:
    """The value with which a loop around a launch begins to count `name`; None where none counts it."""
    node = scope.unit.root.descendant_for_byte_range(site.span.start, site.span.end) if name.isidentifier() else None
    while node is not None and node.type != "function_definition":
        node = node.parent
        first, update = (
            (node.child_by_field_name(part) for part in ("initializer", "update"))
            if node is not None and node.type == "for_statement"
            else (None, None)
        )
        if first is None or update is None or name not in names_in(update):
            continue
        left, right = first.child_by_field_name("left"), first.child_by_field_name("right")
        named = [*declarators(first), *([(text(left), right)] if left is not None else [])]
        for value in (value for each, value in named if each == name and value is not None):
            with suppress(SourceError):
                number = scope.number(value)
                return number if isinstance(number, int) else None
    return None


def _number(scope: HostScope, site: LaunchSite, passed: str) -> int | float | None:
    if passed in ("true", "false"):
        return int(passed == "true")
    if _FRACTION.fullmatch(passed):
        return float(passed.rstrip("fFlL").replace(" ", ""))
    node = argument_node(scope.unit, site, passed)
    try:
        value = scope.number(node) if node is not None else None
    except SourceError:
        return None
    return value if value is not None and math.isfinite(value) else None
