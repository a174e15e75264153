"""What has to hold where host code stands: the conditions of the branches around it."""

import re
from collections.abc import Iterator

from tree_sitter import Node

from engine.cuda.parse import parse, text

_POINTER = r"[A-Za-z_][\w.\[\]]*(?:(?:->|::)[\w.\[\]]+)*"
# A condition under which something optional is there.
_THERE = re.compile(
    rf"\(?\s*(?:{_POINTER}\s*!=\s*(?:nullptr|NULL)|(?:nullptr|NULL)\s*!=\s*{_POINTER}|{_POINTER}\.(?:has_value|defined)\(\))\s*\)?"
)
_EQUAL = re.compile(r"([^=!<>&|?]+)==([^=!<>&|?]+)")


def conditions_at(data: bytes, path: str, at: int) -> tuple[str, ...]:
    """The conditions of the `if`s and `case`s around a byte of a file that hold there, in its own words; those of its function alone."""
    found: list[str] = []
    node: Node | None = parse(data, path).root.descendant_for_byte_range(at, at + 1)
    while node is not None and node.type != "function_definition":
        above = node.parent
        if above is not None and above.type == "if_statement" and node == above.child_by_field_name("consequence"):
            condition = above.child_by_field_name("condition")
            found.append(_inside(condition) if condition is not None else "")
        elif node.type == "case_statement" and above is not None and (value := node.child_by_field_name("value")):
            switch = above.parent if above.parent is not None and above.parent.type == "switch_statement" else None
            asked = switch.child_by_field_name("condition") if switch is not None else None
            if asked is not None:
                found.append(f"{_inside(asked)} == {text(value)}")
        node = above
    return tuple(found)


def equalities(condition: str) -> Iterator[tuple[str, str]]:
    """The two sides of each `==` that a condition is, or of those that its `&&` joins."""
    for part in condition.split("&&") if "||" not in condition else ():
        match = _EQUAL.fullmatch(_unwrapped(part.strip()))
        if match:
            yield match[1].strip(), match[2].strip()


def asks_for_optional(condition: str) -> bool:
    """Whether a condition is that a pointer is not null, or something optional is there."""
    return _THERE.fullmatch(condition.strip()) is not None


def _inside(node: Node) -> str:
    return _unwrapped(text(node))


def _unwrapped(written: str) -> str:
    """A text without the parentheses around all of it."""
    written = written.strip()
    while written.startswith("(") and written.endswith(")"):
        depth = [0]
        for char in written:
            depth.append(depth[-1] + (char == "(") - (char == ")"))
        if 0 in depth[1:-1]:
            break
        written = written[1:-1].strip()
    return written
