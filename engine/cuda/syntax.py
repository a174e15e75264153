"""Questions about nodes of the syntax tree: their text, what they name, what they change."""

import re
from collections.abc import Iterator

from tree_sitter import Node

from engine.cuda.parse import span as span
from engine.cuda.parse import text as text
from engine.cuda.parse import walk as walk

THREAD_NAMES = frozenset({"threadIdx", "blockIdx", "blockDim", "gridDim", "warpSize"})
CASTS = frozenset({"static_cast", "reinterpret_cast", "const_cast", "saturate_cast"})  # the last one is OpenCV's


def names(node: Node) -> set[str]:
    """Every identifier below the node that may name a variable, function or macro (field names are left out)."""
    return {text(n) for n in walk(node) if n.type == "identifier"}


def children(node: Node) -> list[Node]:
    """The node's named children without comments."""
    return [c for c in node.named_children if c.type != "comment"]


def strip(node: Node) -> Node:
    """The expression inside parentheses and casts to integer types."""
    while True:
        if node.type in ("parenthesized_expression", "condition_clause") and len(children(node)) == 1:
            node = children(node)[0]
        elif node.type == "cast_expression" and _integer_type(node.child_by_field_name("type")):
            value = node.child_by_field_name("value")
            if value is None:
                return node
            node = value
        elif node.type == "call_expression":
            function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
            if function is None or arguments is None or len(children(arguments)) != 1:
                return node
            if function.type == "template_function":
                name, types = function.child_by_field_name("name"), function.child_by_field_name("arguments")
                if name is None or text(name) != "static_cast" or not _integer_type(types):
                    return node
            elif function.type != "primitive_type" or not _integer_type(function):
                return node
            node = children(arguments)[0]
        else:
            return node


_INTEGER = re.compile(
    r"<?\s*(?:const\s+)?(?:(?:std::)?(?:size_t|ptrdiff_t|u?int(?:32|64)_t)|uint|(?:unsigned|signed|long|int|\s)+)\s*>?\s*"
)


def _integer_type(node: Node | None) -> bool:
    return node is not None and bool(_INTEGER.fullmatch(text(node)))


def is_integer_type(written: str) -> bool:
    """Whether a type as written is an integer of at least 32 bits."""
    return bool(_INTEGER.fullmatch(written.strip()))


def operands(node: Node, operator: str) -> list[Node]:
    """The operands of a chain of one operator, parentheses and integer casts removed: `a + (b + c)` has three."""
    node = strip(node)
    if node.type == "binary_expression":
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is not None and left is not None and right is not None and text(sign) == operator:
            return operands(left, operator) + operands(right, operator)
    return [node]


def root_name(node: Node) -> str:
    """The variable that an lvalue belongs to: `a` for `a[i].x`, `*a`, `(a)`; "" where it cannot be told."""
    while node.type != "identifier":
        if node.type == "parenthesized_expression" and len(children(node)) == 1:
            node = children(node)[0]
        elif node.type in ("subscript_expression", "field_expression", "pointer_expression"):
            inner = node.child_by_field_name("argument")
            if inner is None:
                return ""
            node = inner
        else:
            return ""
    return text(node)


def called(node: Node) -> str:
    """The name of the function that a call expression calls; "" where it is no plain name."""
    function = node.child_by_field_name("function")
    if function is None:
        return ""
    if function.type == "template_function":
        function = function.child_by_field_name("name") or function
    if function.type in ("identifier", "primitive_type", "qualified_identifier"):
        return text(function).removeprefix("std::").removeprefix("::")
    return ""


def compact(node: Node | None) -> str:
    """The text without white space; "" for no node."""
    return re.sub(r"\s+", "", text(node)) if node is not None else ""


def tokens(node: Node) -> str:
    """The node's tokens with single spaces, comments left out."""
    if not node.children:
        return text(node)
    return " ".join(tokens(c) for c in node.children if c.type != "comment")


def ancestors(node: Node, top: Node | None = None) -> Iterator[Node]:
    """The nodes above a node, the nearest first, up to `top` and without it."""
    above = node.parent
    while above is not None and above != top:
        yield above
        above = above.parent


def inside(node: Node, outer: Node) -> bool:
    """Whether the first node stands within the second (or is it)."""
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def in_unnamed_namespace(node: Node) -> bool:
    """Whether only its own file sees what is declared there."""
    spaces = (above for above in ancestors(node) if above.type == "namespace_definition")
    return any(space.child_by_field_name("name") is None for space in spaces)


def is_unroll(node: Node) -> bool:
    while node.type != "preproc_call":
        if node.parent is None or not node.type.startswith("preproc"):
            return False
        node = node.parent
    return bool(re.match(r"#\s*pragma\s+(?:GCC\s+)?unroll\b", text(node)))
