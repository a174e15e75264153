"""Single accesses `array[index]`: where they stand, and whether every run reaches them."""

from __future__ import annotations

from tree_sitter import Node

from engine.cuda.parse import walk
from engine.cuda.syntax import children, text

_BRANCHES = frozenset(
    {"if_statement", "conditional_expression", "switch_statement", "for_statement", "while_statement", "do_statement"}
)
_JUMPS = frozenset({"continue_statement", "break_statement", "return_statement"})


def subscripts(node: Node, array: str) -> list[Node] | None:
    """The accesses `array[index]` below the node; None where the array is used in another way."""
    found = []
    for n in walk(node):
        if n.type != "identifier" or text(n) != array:
            continue
        parent = n.parent
        if parent is None or parent.type != "subscript_expression" or parent.child_by_field_name("argument") != n:
            return None
        above = parent.parent
        if above is not None and above.type == "pointer_expression" and text(above).startswith("&"):
            return None
        found.append(parent)
    return found


def index_of(access: Node) -> Node | None:
    """The index of a subscript expression with one index."""
    listed = access.child_by_field_name("indices")
    parts = children(listed) if listed is not None else []
    return parts[0] if len(parts) == 1 else None


def is_target(access: Node) -> bool:
    """Whether the access is assigned to or updated."""
    parent = access.parent
    while parent is not None and parent.type == "parenthesized_expression":
        parent = parent.parent
    if parent is None:
        return False
    if parent.type == "assignment_expression":
        left = parent.child_by_field_name("left")
        return left is not None and left.start_byte <= access.start_byte < left.end_byte
    return parent.type == "update_expression"


def unconditional(access: Node, body: Node) -> bool:
    """Whether every run of `body` reaches the access below it: under no condition and behind no jump.

    Only then is there an element for every index, and one that may be stored: what a condition keeps from an access can be
    the end of the array, or an element that another thread stores.
    """
    if any(n.type in _JUMPS and n.start_byte < access.start_byte for n in walk(body)):
        return False
    node = access
    while node != body:
        above = node.parent
        if above is None:
            return False
        if above.type in _BRANCHES and above.child_by_field_name("condition") != node:
            return False
        sign = above.child_by_field_name("operator") if above.type == "binary_expression" else None
        if sign is not None and text(sign) in ("&&", "||") and above.child_by_field_name("right") == node:
            return False
        node = above
    return True
