"""CUDA with holes, matched against the syntax tree.

`$name` matches any expression, type or (as `$name;`) statement, and the same text wherever it occurs again. Parentheses, integer
casts, qualifiers and the braces around a single statement are looked through, and so are spellings that mean the same: `a += b`
for `a = a + b`, `a >= b` for `b <= a`, `1` for `1u`. Conditions on the data flow stay in Python.

The idea of isomorphisms is that of Coccinelle (Padioleau et al., "Documenting and Automating Collateral Evolutions in Linux Device
Drivers", EuroSys 2008).
"""

import re
from collections.abc import Callable

from tree_sitter import Node

from engine.cuda.parse import once_a_node, parse
from engine.cuda.syntax import children, compact, strip, text

Match = dict[str, Node]
Condition = Callable[[Node], bool]
_MIRRORED = {">": "<", ">=": "<="}
_HOLES = ("identifier", "type_identifier")
_WHOLE = re.compile(r"(\d+)[uUlL]+")


class Pattern:
    """One statement or expression in any of the spellings given."""

    def __init__(self, *sources: str) -> None:
        self._forms = [_parsed(source) for source in sources]
        self._kinds = frozenset(form.type for form in self._forms)
        if any(_is_hole(form) for form in self._forms):
            raise ValueError("a pattern that is one hole matches everything")

    def match(self, node: Node | None, **where: Condition) -> Match | None:
        """The nodes in the holes, each of which satisfies its condition in `where`; None where the node has another form."""
        node = _plain(node) if node is not None else None
        if node is None or (node.type not in self._kinds and node.type != "assignment_expression"):
            return None
        for form in self._forms:
            found: Match = {}
            if _same(form, node, found) and all(where[hole](at) for hole, at in found.items() if hole in where):
                return found
        return None


def _parsed(source: str) -> Node:
    """The node of a statement, or of an expression (with or without a semicolon)."""
    # In parentheses, as `$x * $y;` would declare a pointer.
    statement = source if source.rstrip().endswith((";", "}")) else f"({source});"
    unit = parse(f"void f() {{ {statement} }}".encode())
    statements = children(unit.functions[0].block) if unit.functions and not unit.errors else []
    if len(statements) != 1:
        raise ValueError(f"not one statement or expression: {source}")
    (found,) = statements
    return _plain(children(found)[0]) if found.type == "expression_statement" else found


def _same(pattern: Node, node: Node, found: Match) -> bool:
    if pattern.type == "expression_statement" and _is_hole(children(pattern)[0]):
        return _bound(children(pattern)[0], node, found)
    pattern = _plain(pattern)
    if _is_hole(pattern):
        return _bound(pattern, node, found)
    node = _plain(node)
    kind, parts = _spellings(pattern)[0]
    for other, given in _spellings(node):
        if kind == other and len(parts) == len(given):
            trial = dict(found)
            if all(_same(p, n, trial) for p, n in zip(parts, given, strict=True)):
                found.update(trial)
                return True
    return False


@once_a_node
def _spellings(node: Node) -> list[tuple[str, list[Node]]]:
    """The kind of a node (with its operator, or the text of a leaf) and its parts: as written, and as it could be."""
    parts = [part for part in children(node) if part.type != "type_qualifier"]
    sign = node.child_by_field_name("operator")
    operator = text(sign) if sign is not None else _WHOLE.sub(r"\1", text(node)) if not parts else ""
    if operator in _MIRRORED:
        operator, parts = _MIRRORED[operator], parts[::-1]
    found = [(f"{node.type} {operator}", parts)]
    value = strip(parts[1]) if node.type == "assignment_expression" and operator == "=" else None
    if value is not None and value.type == "binary_expression":
        inner, sides = text(value.child_by_field_name("operator") or value), children(value)
        for own, other in (sides, sides[::-1]) if inner in ("+", "*") else (sides,):
            if compact(own) == compact(parts[0]):
                found.append((f"{node.type} {inner}=", [parts[0], other]))
    return found


@once_a_node
def _plain(node: Node) -> Node:
    """The node without parentheses, integer casts, braces around one statement, and the statement around an expression."""
    node = strip(node)
    while node.type in ("compound_statement", "expression_statement", "else_clause") and len(children(node)) == 1:
        node = strip(children(node)[0])
    return node


def _is_hole(node: Node) -> bool:
    return node.type in _HOLES and text(node).startswith("$")


def _bound(hole: Node, node: Node, found: Match) -> bool:
    first = found.setdefault(text(hole)[1:], node)
    return first is node or compact(strip(first)) == compact(strip(node))
