"""Comparisons of a block's index with a parameter of its kernel, of which one outcome is impossible where that is the grid's extent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.cpu.settled_names import LOCAL, PARAMETER, below, node_text, settled

if TYPE_CHECKING:
    from tree_sitter import Node

_NEVER = {">=": True, "==": True, "<": False, "!=": False}  # of `index OP extent`
_TURNED = {"<=": ">=", ">": "<", "==": "==", "!=": "!="}  # of `extent OP index`: the same as `index OP extent`
_INTEGER = r"(?:size_t|u?int(?:32|64)_t|unsigned(?: int| long(?: long)?)?|int|long(?: long)?)"
_BLOCK = re.compile(rf"(?:\({_INTEGER}\) ?|static_cast<{_INTEGER}>\()?blockIdx\.(?P<axis>[xyz])\)?")
_TYPED = re.compile(rf"(?:const )?{_INTEGER}(?: const)?")


@dataclass(frozen=True)
class GridBound:
    """The outcome `never` does not occur where every launch of `function` has `parameter` blocks along `axis`."""

    function: str
    axis: str
    parameter: str
    never: bool


def grid_bound(node: Node, root: Node) -> GridBound | None:
    """What is impossible of a condition: of two whole numbers that nothing changes, in the only function of its name."""
    left, right, operator = (node.child_by_field_name(name) for name in ("left", "right", "operator"))
    if node.type != "binary_expression" or left is None or right is None or operator is None:
        return None
    for index, extent, how in ((left, right, operator.type), (right, left, _TURNED.get(operator.type, ""))):
        if how not in _NEVER or extent.type != "identifier":
            continue
        function = _function(node)
        name = _name(function)
        if (
            function is None
            or [_name(one) for one in below(root) if one.type == "function_definition"].count(name) != 1
        ):
            return None
        kept = settled(function)
        axis = _axis(index, function, kept)
        if axis and kept.get(node_text(extent)) == PARAMETER and _typed(node_text(extent), function):
            return GridBound(name, axis, node_text(extent), _NEVER[how])
    return None


def _axis(index: Node, function: Node, kept: dict[str, str]) -> str:
    """The axis of the block's index that an expression is; "" where it is none, or may be another."""
    value = node_text(index)
    if index.type == "identifier":
        if kept.get(value) != LOCAL or not _typed(value, function):
            return ""
        value = next(
            node_text(node.child_by_field_name("value"))
            for node in below(function)
            if node.type == LOCAL and node_text(node.child_by_field_name("declarator")) == value
        )
    match = _BLOCK.fullmatch(value)
    return match["axis"] if match and not re.search(r"\bblockIdx\b(?!\s*\.)", node_text(function)) else ""


def _typed(name: str, function: Node) -> bool:
    """Whether a name that the function declares once is a whole number of 32 bits or more."""
    for node in below(function):
        if node.type in (PARAMETER, "declaration"):
            for child in node.children_by_field_name("declarator"):
                declared = child.child_by_field_name("declarator") if child.type == LOCAL else child
                if node_text(declared) == name:
                    text = (node.text or b"")[
                        : node.children_by_field_name("declarator")[0].start_byte - node.start_byte
                    ]
                    return _TYPED.fullmatch(" ".join(text.decode(errors="replace").split())) is not None
    return False


def _function(node: Node) -> Node | None:
    """The function whose own code a condition is; None in a lambda."""
    above = node.parent
    while above is not None and above.type != "function_definition":
        if above.type == "lambda_expression":
            return None
        above = above.parent
    return above


def _name(function: Node | None) -> str:
    declarator = function.child_by_field_name("declarator") if function is not None else None
    while declarator is not None and declarator.type != "function_declarator":
        declarator = declarator.child_by_field_name("declarator")
    return node_text(declarator.child_by_field_name("declarator")) if declarator is not None else ""
