"""Loops of preprocessed device code that run a number of times which no input decides: their conditions need no check."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from engine.cpu.settled_names import LOCAL, PARAMETER, below, changed_names, node_text

if TYPE_CHECKING:
    from tree_sitter import Node

_OPERATORS = frozenset({"<", "<=", ">", ">=", "!="})
_STEPS = frozenset({"+=", "-="})
_ARITHMETIC = frozenset({"binary_expression", "parenthesized_expression", "number_literal", "identifier"})
# Of the language itself: what a class's operators compare is anything.
_INTEGER = re.compile(r"(?:(?:unsigned|signed|int|long|short|char)\b ?)+")
_CONSTEXPR = re.compile(r"\bconstexpr\b")


def constants(root: Node) -> frozenset[str]:
    """The names that stand for whole numbers known to the compiler wherever the text declares them: constexpr, template parameters."""
    fixed: set[str] = set()
    others: set[str] = set()
    for node in below(root):
        if node.type not in ("declaration", PARAMETER):
            continue
        above = node.parent
        kept = _is_whole(node) and (
            (above is not None and above.type == "template_parameter_list")
            or any(_CONSTEXPR.fullmatch(node_text(child)) for child in node.children)
        )
        for declarator in node.children_by_field_name("declarator"):
            inner = declarator.child_by_field_name("declarator") if declarator.type == LOCAL else declarator
            for name in below(inner) if inner is not None else ():
                if name.type == "identifier":
                    (fixed if kept else others).add(node_text(name))
    return frozenset(fixed - others)


def is_counted(loop: Node, known: frozenset[str]) -> bool:
    """Whether a `for` declares a whole number with a constant, compares it with one, and steps by one, and nothing else changes it."""
    if loop.type != "for_statement":
        return False
    first, condition, step, body = (
        loop.child_by_field_name(name) for name in ("initializer", "condition", "update", "body")
    )
    if first is None or condition is None or step is None or body is None:
        return False
    declarators = first.children_by_field_name("declarator")
    if first.type != "declaration" or len(declarators) != 1 or declarators[0].type != LOCAL:
        return False
    if not _is_whole(first):
        return False
    counter = declarators[0].child_by_field_name("declarator")
    if counter is None or counter.type != "identifier":
        return False
    name = node_text(counter)
    return (
        _constant(declarators[0].child_by_field_name("value"), known)
        and _compares(condition, name, known)
        and _steps(step, name, known)
        and name not in changed_names(body)
    )


def _is_whole(declaration: Node) -> bool:
    return _INTEGER.fullmatch(node_text(declaration.child_by_field_name("type"))) is not None


def _constant(node: Node | None, known: frozenset[str]) -> bool:
    if node is None:
        return False
    return all(
        one.type in _ARITHMETIC and (one.type != "identifier" or node_text(one) in known)
        for one in below(node)
        if one.is_named
    )


def _compares(node: Node, name: str, known: frozenset[str]) -> bool:
    left, right, operator = (node.child_by_field_name(part) for part in ("left", "right", "operator"))
    return (
        node.type == "binary_expression"
        and operator is not None
        and operator.type in _OPERATORS
        and (
            (node_text(left) == name and _constant(right, known))
            or (node_text(right) == name and _constant(left, known))
        )
    )


def _steps(node: Node, name: str, known: frozenset[str]) -> bool:
    if node.type == "update_expression":
        return node_text(node.child_by_field_name("argument")) == name
    operator = node.child_by_field_name("operator")
    return (
        node.type == "assignment_expression"
        and operator is not None
        and operator.type in _STEPS
        and node_text(node.child_by_field_name("left")) == name
        and _constant(node.child_by_field_name("right"), known)
    )
