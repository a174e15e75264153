"""Text of code in another place, with the parentheses, comments and indentation that belong there."""

import re

from tree_sitter import Node

from engine.cuda.parse import walk
from engine.cuda.syntax import children, text

_PRIMARY = frozenset({
    "identifier", "number_literal", "parenthesized_expression", "call_expression", "subscript_expression",
    "field_expression", "char_literal", "true", "false",
})  # fmt: skip


def grouped(node: Node) -> str:
    """The expression's text, in parentheses unless it binds tightest already."""
    return text(node) if node.type in _PRIMARY else f"({text(node)})"


def is_plain(written_text: str) -> bool:
    """Whether the text is one name or number, which needs no parentheses."""
    return bool(re.fullmatch(r"[\w.]+", written_text.strip()))


def grouped_text(expression: str) -> str:
    """An expression as an operand: in parentheses, unless it is plain."""
    return expression if is_plain(expression) else f"({expression})"


def replace_name(node: Node, name: str, replacement: str) -> list[tuple[int, int, str]]:
    """Changes for `render` that put `replacement` wherever the variable `name` stands below the node."""
    return [(n.start_byte, n.end_byte, replacement) for n in walk(node) if n.type == "identifier" and text(n) == name]


def reindent(block: str, old: str, new: str) -> str:
    """The lines of `block` with the leading `old` of each replaced by `new` (the first too; blank lines stay blank)."""
    lines = []
    for line in block.split("\n"):
        bare = line.removeprefix(old) if line.startswith(old) else line.lstrip()
        lines.append((new + bare).rstrip() if bare.strip() else "")
    return "\n".join(lines)


def factor_text(node: Node) -> str:
    """The expression's text before a `/`: in parentheses unless it is a product or binds tighter."""
    sign = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    product = sign is not None and text(sign) in ("*", "/", "%")
    return text(node) if product else grouped(node)


def term_text(node: Node) -> str:
    """The expression's text as an operand of a comparison: in parentheses unless it is a sum or binds tighter."""
    sign = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    return text(node) if sign is not None and text(sign) in ("+", "-") else factor_text(node)


def addends(node: Node) -> list[Node]:
    """The terms of a sum as they stand in it: parentheses around sums are gone, casts are not."""
    while node.type == "parenthesized_expression" and len(children(node)) == 1:
        node = children(node)[0]
    sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
    if (
        node.type == "binary_expression"
        and sign is not None
        and left is not None
        and right is not None
        and text(sign) == "+"
    ):
        return [*addends(left), *addends(right)]
    return [node]


def with_comments(node: Node, after: int) -> int:
    """Where the comments begin that stand directly before the node and behind the offset `after`."""
    start, above = node.start_byte, node.prev_sibling
    while above is not None and above.type == "comment" and above.start_byte >= after:
        start, above = above.start_byte, above.prev_sibling
    return start


def added(term: str | int) -> str:
    """A term as it stands behind another one: ` + n`, ` - n`, and nothing for 0."""
    shown = str(term)
    return "" if shown == "0" else f" - {shown[1:]}" if shown.startswith("-") else f" + {shown}"


def ceil_div(expression: str, divisor: int) -> str:
    """`(expression + divisor - 1) / divisor` as a person writes it, for the host side."""
    if divisor == 1:
        return expression
    simple = re.fullmatch(r"[\w. *]+", expression)
    return f"({expression if simple else _wrap(expression)} + {divisor - 1}) / {divisor}"


def _wrap(written_text: str) -> str:
    return written_text if re.fullmatch(r"[\w.]+", written_text) else f"({written_text})"
