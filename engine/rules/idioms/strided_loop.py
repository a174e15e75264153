"""Counted loops, as threads share them."""

from __future__ import annotations

from dataclasses import dataclass

from engine.cuda.declarations import declarators, declared_type
from engine.cuda.effects import pure, written
from engine.cuda.syntax import is_integer_type, names, operands, root_name, strip, text, walk
from engine.rewrite import Node


@dataclass(frozen=True)
class StrideLoop:
    """A counted loop that the threads of a warp, block or grid share: `for (int j = first; j < bound; j += step)`."""

    node: Node
    variable: str
    type: str
    start: Node
    bound: Node
    step: str
    body: Node


def stride_loop(node: Node, *, memory: bool = False) -> StrideLoop | None:
    """The `for` statement as a counted upward loop with an exclusive bound and a variable of its own.

    `memory` admits stores to elements whose array cannot be told, as through a cast pointer: they change no variable.
    """
    if node.type != "for_statement":
        return None
    parts = {f: node.child_by_field_name(f) for f in ("initializer", "condition", "update", "body")}
    initializer, condition, update, body = parts.values()
    if initializer is None or condition is None or update is None or body is None:
        return None
    if initializer.type != "declaration" or not is_integer_type(declared_type(initializer)):
        return None
    declared = declarators(initializer)
    if len(declared) != 1 or not declared[0][0] or declared[0][1] is None:
        return None
    name, start = declared[0]
    condition = strip(condition)
    sign, left, right = (condition.child_by_field_name(f) for f in ("operator", "left", "right"))
    if condition.type != "binary_expression" or sign is None or left is None or right is None:
        return None
    if text(sign) == "<" and text(strip(left)) == name:
        bound = right
    elif text(sign) == ">" and text(strip(right)) == name:
        bound = left
    else:
        return None
    step = _step(update, name)
    if (
        step is None
        or name in written(body)
        or name in names(bound)
        or start is None
        or not pure(start)
        or not pure(bound)
    ):
        return None
    if names(bound) & written(body) or ("" in written(body) and not (memory and _unknown_elements(body))):
        return None
    return StrideLoop(node, name, declared_type(initializer), start, bound, step, body)


def _unknown_elements(body: Node) -> bool:
    """Whether all that is assigned below the node, and cannot be told, are elements of cast pointers."""
    for node in walk(body):
        target = None
        if node.type in ("assignment_expression", "update_expression"):
            target = node.child_by_field_name("left") or node.child_by_field_name("argument")
        if target is None or root_name(target):
            continue
        base = target.child_by_field_name("argument") if target.type == "subscript_expression" else None
        if base is None or "reinterpret_cast" not in text(base)[:16]:
            return False
    return True


def _step(update: Node, name: str) -> str | None:
    if update.type == "update_expression":
        return (
            "1"
            if "++" in text(update) and root_name(update.child_by_field_name("argument") or update) == name
            else None
        )
    if update.type != "assignment_expression":
        return None
    sign, left, right = (update.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or left is None or right is None or text(left) != name or not pure(right):
        return None
    if text(sign) == "+=":
        return text(right) if name not in names(right) else None
    if text(sign) == "=":
        terms = operands(right, "+")
        if len(terms) == 2 and name in (text(t) for t in terms):
            other = terms[0] if text(terms[1]) == name else terms[1]
            return text(other) if name not in names(other) else None
    return None
