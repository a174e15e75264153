"""What host variables come to where a launch passes an expression of them for a scalar whose value is known."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from engine.cuda.host_scope import HostScope, squeezed
from engine.cuda.parse import text
from engine.errors import SourceError

_MAX_DEPTH = 8  # definitions and operators followed
_WRAPPED = ("parenthesized_expression", "cast_expression")


def solved(scope: HostScope, passed: Node, value: int) -> Iterator[tuple[str, int]]:
    """(name, value) of the host variable that makes `passed` come to `value`, where it is the only one without a value.

    `const int d = C / heads;` passed for 64 with 12 heads gives C = 768: whoever divides so counts on there being no remainder.
    """
    definition = definition_of(scope, passed)
    node = definition if passed.type == "identifier" else passed
    return _of(scope, node, value, 0) if node is not None else iter(())


def _of(scope: HostScope, node: Node, value: int, depth: int) -> Iterator[tuple[str, int]]:
    while node.type in _WRAPPED:
        inside = node.child_by_field_name("value") or next(
            (n for n in node.named_children if n.type != "comment"), None
        )
        if inside is None:
            return
        node = inside
    if depth > _MAX_DEPTH or value < 1:
        return
    if node.type == "identifier":
        name = text(node)
        definition = definition_of(scope, node) if name not in scope.known else None
        if definition is not None and definition.type in (
            *_WRAPPED,
            "binary_expression",
            "identifier",
            "field_expression",
        ):
            yield from _of(scope, definition, value, depth + 1)
        elif name not in scope.known:
            yield name, value
    elif node.type == "field_expression":
        if (name := squeezed(node)) not in scope.known:
            yield name, value
    elif node.type == "binary_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = node.child_by_field_name("operator")
        if left is None or right is None or operator is None:
            return
        numbers = [_number(scope, side) for side in (left, right)]
        if numbers.count(None) != 1:
            return
        open_side, other = (left, numbers[1]) if numbers[0] is None else (right, numbers[0])
        wanted = _inverse(text(operator), value, other or 0, open_left=open_side is left)
        if wanted is not None:
            yield from _of(scope, open_side, wanted, depth + 1)


def _inverse(operator: str, value: int, other: int, *, open_left: bool) -> int | None:
    """The operand that gives `value` with the other one."""
    if operator == "*":
        return value // other if other > 0 and value % other == 0 else None
    if operator == "/":
        return value * other if open_left and other > 0 else None
    if operator == "+":
        return value - other
    if operator == "-":
        return value + other if open_left else other - value
    return None


def definition_of(scope: HostScope, node: Node) -> Node | None:
    """What a local of the host is declared with, where nothing else is assigned to it; None for other nodes."""
    if node.type != "identifier":
        return None
    try:
        found, fields = scope.local(text(node), node)
    except SourceError:
        return None
    return None if found is None or fields else found.value


def _number(scope: HostScope, node: Node) -> int | None:
    try:
        found = scope.number(node)
    except SourceError:
        return None
    return found if isinstance(found, int) else None
