"""Which pointer parameters of a kernel may point into one buffer, by what its callers pass."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from tree_sitter import Node

from engine.cuda.definitions import expression
from engine.cuda.kernel import Function, Kernel, LaunchSite, Unit
from engine.cuda.parse import parse
from engine.cuda.syntax import called, children, text, walk
from engine.errors import SourceError
from engine.model import Program

_MAX_CALLERS = 4  # functions around a launch that hand its buffers on
_NO_BUFFERS = frozenset({"NULL", "nullptr"})

_Passed = Mapping[str, frozenset[str]]  # the host's variables behind each pointer parameter of the kernel


@dataclass(frozen=True)
class SharedBuffer:
    """Two pointer parameters for which a caller passes one variable. `where` is the `path:line` of the launch or call.

    `equal`: what it passes for them is made of the same variables, as the whole buffer twice is.
    """

    first: str
    second: str
    where: str
    equal: bool = False


def shared_buffers(program: Program, kernel: Kernel, launches: Sequence[LaunchSite]) -> tuple[SharedBuffer, ...] | None:
    """The pairs of pointer parameters that a caller passes one buffer for, or parts of one (`buf`, `buf + n`).

    Callers are the launches, and calls of the functions around them. None where no launch is seen, or one passes too little.
    """
    if not launches or any(len(launch.arguments) < len(kernel.parameters) for launch in launches):
        return None
    units = [unit for path in program.files if (unit := _unit(program, path)) is not None]
    found: dict[SharedBuffer, None] = {}
    for launch in launches:
        given = zip(kernel.parameters, launch.arguments, strict=False)
        passed = {p.name: _variables(expression(argument), argument) for p, argument in given if p.pointer}
        found |= dict.fromkeys(_clashes(passed, f"{launch.path}:{launch.line}"))
        found |= dict.fromkeys(_callers(units, launch.function, passed, _MAX_CALLERS))
    return tuple(found)


def _callers(units: Sequence[Unit], name: str, passed: _Passed, depth: int) -> Iterator[SharedBuffer]:
    """The pairs that calls of a host function share, which hands its own parameters to the kernel."""
    if not name or not depth:
        return
    bodies = [f for unit in units for f in unit.functions if f.name == name and f.qualifier == "host"]
    for unit in units if len(bodies) == 1 else ():
        for caller in unit.functions:
            for call in _calls(unit, caller, name):
                arguments = call.child_by_field_name("arguments")
                given = children(arguments) if arguments is not None else []
                behind = {p.name: _variables(a, "") for p, a in zip(bodies[0].parameters, given, strict=False)}
                onward = {k: frozenset[str]().union(*(behind.get(v, ()) for v in vs)) for k, vs in passed.items()}
                yield from _clashes(onward, f"{unit.path}:{call.start_point[0] + 1}")
                if caller.name != name:
                    yield from _callers(units, caller.name, onward, depth - 1)


def _calls(unit: Unit, caller: Function, name: str) -> list[Node]:
    if caller.qualifier != "host" or name.encode() not in unit.data[caller.body.start : caller.body.end]:
        return []
    found = [n for n in walk(caller.node) if n.type == "call_expression" and called(n).rpartition("::")[2] == name]
    return [n for n in found if not any(c.type == "kernel_call_syntax" for c in n.children)]


def _clashes(passed: _Passed, where: str) -> Iterator[SharedBuffer]:
    for (first, some), (second, others) in combinations(passed.items(), 2):
        if some & others:
            yield SharedBuffer(first, second, where, some == others)


def _variables(argument: Node | None, written: str) -> frozenset[str]:
    """The variables that a host expression is made of: not types, and not what is called."""
    if argument is None:
        return frozenset({written})  # an expression that is not understood may be the same again
    functions = {id_ for n in walk(argument) if n.type == "call_expression" for id_ in _function(n)}
    names = [n for n in walk(argument) if n.type in ("identifier", "this")]
    return frozenset(text(n) for n in names if n.id not in functions) - _NO_BUFFERS


def _function(call: Node) -> set[int]:
    """The names in what is called, but not the object of a member function."""
    function = call.child_by_field_name("function")
    if function is None or function.type == "field_expression":
        return set()
    return {n.id for n in walk(function)}


def _unit(program: Program, path: str) -> Unit | None:
    if path.endswith(".toml"):
        return None
    try:
        return parse(program.files[path], path)
    except SourceError:
        return None
