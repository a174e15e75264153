"""Names of preprocessed device code that keep one value: declared once, and never assigned, handed on whole or bound to a reference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

PARAMETER, LOCAL = "parameter_declaration", "init_declarator"
_DECLARATOR = re.compile(r"(?!init_)\w*declarator")
_HANDED_ON = frozenset(
    {
        "argument_list",
        "initializer_list",
        "gnu_asm_output_operand",
        "lambda_capture_specifier",
        "lambda_capture_initializer",
    }
)
_REFERENCE = re.compile(r"&|\bdecltype\b")


def settled(root: Node) -> dict[str, str]:
    """Each such name below a node, with the kind of its declaration: PARAMETER, LOCAL (with a value) or another."""
    declared: dict[str, list[str]] = {}
    for node in below(root):
        above = node.parent
        if node.type != "identifier" or above is None or above.type in _HANDED_ON:
            continue
        if above.child_by_field_name("declarator") == node or _DECLARATOR.fullmatch(above.type):
            declared.setdefault(node_text(node), []).append(above.type)
    changed = changed_names(root)
    return {name: places[0] for name, places in declared.items() if len(places) == 1 and name not in changed}


def changed_names(root: Node) -> set[str]:
    """The names below a node that are assigned, handed on whole or bound to a reference there."""
    changed: set[str] = set()
    for node in below(root):
        if node.type == "assignment_expression":
            changed |= _changed(node.child_by_field_name("left"))
        elif node.type in ("update_expression", "pointer_expression"):
            written = node.type == "update_expression" or node_text(node).startswith("&")
            changed |= _changed(node.child_by_field_name("argument")) if written else set()
        elif node.type == LOCAL and node.parent is not None and _REFERENCE.search(_before_value(node)):
            changed |= {node_text(name) for name in below(node) if name.type == "identifier"}
        elif node.type == "identifier" and node.parent is not None and node.parent.type in _HANDED_ON:
            changed.add(node_text(node))
    return changed


def _before_value(declarator: Node) -> str:
    """A declaration's text up to the value of one of its declarators."""
    assert declarator.parent is not None
    value = declarator.child_by_field_name("value")
    end = (value.start_byte if value is not None else declarator.end_byte) - declarator.parent.start_byte
    return (declarator.parent.text or b"")[:end].decode(errors="replace")


def _changed(node: Node | None) -> set[str]:
    """The names that are changed where this expression is: not those that say which element, or where a pointer points."""
    if node is None:
        return set()
    if node.type in ("subscript_expression", "field_expression"):
        return _changed(node.child_by_field_name("argument"))
    if node.type == "pointer_expression" and node_text(node).startswith("*"):
        return set()
    if node.type == "parenthesized_expression":
        return set().union(*map(_changed, node.named_children))
    return {node_text(name) for name in below(node) if name.type == "identifier"}


def below(node: Node) -> Iterator[Node]:
    """A node and every node in it."""
    stack = [node]
    while stack:
        one = stack.pop()
        yield one
        stack += one.children


def node_text(node: Node | None) -> str:
    """A node's text, with one blank for each gap; "" of none."""
    return " ".join((node.text or b"").decode(errors="replace").split()) if node is not None else ""
