"""Single accesses `array[index]`: where they stand, and whether every run reaches them."""

from collections.abc import Sequence

from tree_sitter import Node

from engine.cuda.parse import walk
from engine.cuda.syntax import ancestors, children, inside, names, text

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


def always(accesses: Sequence[Node], body: Node) -> bool:
    """Whether every run of `body` reaches one of the accesses below it: one that is under no condition, or one in each arm of an `if`."""

    def reached(node: Node) -> bool:
        mine = [a for a in accesses if node.start_byte <= a.start_byte < node.end_byte]
        if not mine or any(n.type in _JUMPS for n in walk(node)):
            return False
        if any(unconditional(a, node) for a in mine):
            return True
        if node.type in ("compound_statement", "else_clause"):
            return any(reached(c) for c in children(node))
        then, other = (node.child_by_field_name(f) for f in ("consequence", "alternative"))
        return then is not None and other is not None and reached(then) and reached(other)

    before = max((a.start_byte for a in accesses), default=0)
    jumps = any(n.type in _JUMPS and n.start_byte < before for n in walk(body))
    return any(unconditional(a, body) for a in accesses) or (not jumps and reached(body))


def in_other_arm(one: Node, other: Node) -> bool:
    """Whether the two stand in different arms of an `if`, of which a run takes one."""
    for above in ancestors(one):
        then = above.child_by_field_name("consequence") if above.type == "if_statement" else None
        if then is not None and inside(other, above) and inside(one, then) != inside(other, then):
            return True
    return False


def only_stored(accesses: Sequence[Node], array: str) -> bool:
    """Whether each of the accesses is the target of a plain `=` whose value does not name the array."""
    for access in accesses:
        above = access.parent
        if above is None or above.type != "assignment_expression" or above.child_by_field_name("left") != access:
            return False
        sign, right = above.child_by_field_name("operator"), above.child_by_field_name("right")
        if sign is None or right is None or text(sign) != "=" or array in names(right):
            return False
    return True


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
