"""Plain loads of parameters' elements, and those behind a condition that does not speak of them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from engine.cuda.questions import Polynomial, assigned, inside, names, root_name, text, walk
from engine.rewrite import ElementAccess, Node, Scope
from engine.rules.idioms.strided_loop import StrideLoop, changed_names, stride_loop

LOOPS = ("for_statement", "while_statement", "do_statement")
_MOST_COPIES = 16  # each takes a register


@dataclass(frozen=True)
class Load:
    """Loads of one element that may share a register."""

    array: str
    type: str
    written: str  # as the author writes the first of them: "x[i]"
    nodes: tuple[Node, ...]


def _loadable(scope: Scope, use: ElementAccess) -> bool:
    """Whether the access is a plain load of a parameter's element, by the parameter's own type.

    Its index may hold elements of the thread's own arrays.
    """
    array, above = use.node.child_by_field_name("argument"), use.node.parent
    if use.node.type != "subscript_expression" or array is None or use.index is None or "\n" in text(use.node):
        return False
    if above is None or (above.type == "pointer_expression" and text(above).startswith("&")):
        return False
    parameter = scope.parameters.get(use.array)
    if parameter is None or parameter.type.count("*") != 1 or array.type != "identifier":
        return False
    declared = scope.lookup(text(array), array)
    if declared is not None and parameter.base not in declared.type.split():
        return False
    if "[" not in use.index.render():
        return True
    # Else the index is loaded as well, and that load would have to move first.
    inner = [n for n in walk(use.node) if n.type == "subscript_expression" and n != use.node]
    return bool(inner) and all(scope.apart(n) for n in inner)


def _grouped(scope: Scope, uses: Sequence[ElementAccess]) -> list[Load]:
    """The loads by element."""
    found: dict[tuple[str, Polynomial], list[ElementAccess]] = {}
    for use in uses:
        if use.index is not None:
            found.setdefault((use.array, use.index), []).append(use)
    groups = []
    for (array, _), mine in found.items():
        ordered = sorted(mine, key=lambda u: u.node.start_byte)
        kind = scope.parameters[array].base
        groups.append(Load(array, kind, text(ordered[0].node), tuple(u.node for u in ordered)))
    return groups


@dataclass(frozen=True)
class LoadAhead:
    """A load to be made before a condition; with `copies`, one for each value of the variable `count` from 0 on."""

    load: Load
    count: str = ""
    copies: int = 1


def before_condition(
    scope: Scope, statement: Node, reads: Sequence[ElementAccess], other: Collection[str]
) -> list[LoadAhead]:
    """Loads behind an `if` that may be made before it: its condition has no name in common with their index, which uses none of `other`.

    A load that the condition guards has its names there; that the address is good where the condition does not hold is for the checks
    of memory to say. `reads` are loads of arrays that the kernel never writes. A loop around a load must be one over copies.
    """
    condition, body = statement.child_by_field_name("condition"), statement.child_by_field_name("consequence")
    if statement.type != "if_statement" or condition is None or body is None:
        return []
    stored = {root_name(target) for n in walk(statement) if (target := assigned(n)) is not None}
    fixed = names(condition) | changed_names(statement) | stored | set(other)
    found: dict[int, tuple[StrideLoop | None, list[ElementAccess]]] = {}
    for use in reads:
        if not inside(use.node, body) or not _loadable(scope, use):
            continue
        loops = _loops_around(use.node, body)
        if loops is None or len(loops) > 1:
            continue
        loop = loops[0] if loops else None
        own = {loop.variable} if loop is not None else set()
        if not names(use.node) & (fixed - own):
            found.setdefault(loop.node.id if loop is not None else 0, (loop, []))[1].append(use)
    made: list[LoadAhead] = []
    for loop, uses in found.values():
        loads = _grouped(scope, uses)
        if loop is None:
            made += [LoadAhead(load) for load in loads]
        else:
            made += [LoadAhead(load, loop.variable, int(text(loop.bound))) for load in loads]
    return made


def _loops_around(node: Node, body: Node) -> list[StrideLoop] | None:
    """The loops over copies between a load and the body; None where something else decides on the load."""
    at, loops = node, list[StrideLoop]()
    while at != body and at.parent is not None:
        at = at.parent
        if at.type in LOOPS:
            loop = stride_loop(at, memory=True)
            if loop is None or (text(loop.start), loop.step) != ("0", "1") or not text(loop.bound).isdigit():
                return None
            if not 0 < int(text(loop.bound)) <= _MOST_COPIES:
                return None
            loops.append(loop)
        if at.type in ("if_statement", "switch_statement", "conditional_expression", "lambda_expression"):
            return None
        if at.type == "binary_expression" and text(at.child_by_field_name("operator") or at) in ("&&", "||"):
            return None
    return loops
