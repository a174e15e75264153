"""Text of expressions in another place, with the parentheses and comments that belong there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.rules.common import grouped, text

if TYPE_CHECKING:
    from tree_sitter import Node


def factor_text(node: Node) -> str:
    """The expression's text before a `/`: in parentheses unless it is a product or binds tighter."""
    sign = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    product = sign is not None and text(sign) in ("*", "/", "%")
    return text(node) if product else grouped(node)


def term_text(node: Node) -> str:
    """The expression's text as an operand of a comparison: in parentheses unless it is a sum or binds tighter."""
    sign = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    return text(node) if sign is not None and text(sign) in ("+", "-") else factor_text(node)


def with_comments(node: Node, after: int) -> int:
    """Where the comments begin that stand directly before the node and behind the offset `after`."""
    start, above = node.start_byte, node.prev_sibling
    while above is not None and above.type == "comment" and above.start_byte >= after:
        start, above = above.start_byte, above.prev_sibling
    return start
