"""Where a local of host code gets the value that it has at one place: the statements before it, in the blocks around it."""

from collections.abc import Callable
from dataclasses import dataclass

from tree_sitter import Node

from engine import arith
from engine.cuda.definitions import declarators
from engine.cuda.kernel import Span
from engine.cuda.parse import once_a_node, span, text, walk
from engine.errors import SourceError

_BLOCKS = ("compound_statement", "translation_unit", "declaration_list")
_LOOPS = ("for_statement", "while_statement", "do_statement", "for_range_loop")


@dataclass(frozen=True)
class Definition:
    """Where a name gets its value: the node of the value, or None where it is declared without one."""

    name: str
    value: Node | None
    span: Span | None  # of the value's text, where it can be rewritten
    path: str
    statement: Span
    declaration: bool = True


@dataclass(frozen=True)
class LocalDefinition:
    """The definition of a local that holds at one node.

    `evaluate` gives the condition of an `if` its value (raises SourceError); `unknown` makes the error for what cannot be followed.
    """

    path: str
    name: str
    at: Node
    evaluate: Callable[[Node], arith.Number]
    unknown: Callable[[Node, str, str], SourceError]

    def find(self) -> tuple[Definition | None, list[tuple[str, Node]]]:
        """The definition, and later assignments to its .x, .y, .z, in order. Raises what `unknown` makes."""
        name, at = self.name, self.at
        fields: list[tuple[str, Node]] = []
        current: Node | None = at
        while current is not None:
            parent = current.parent
            if current.type == "declaration":  # one of several declared at once
                for declared, value in declarators(current):
                    if declared == name and value is not None and value.end_byte <= at.start_byte:
                        return Definition(name, value, span(value), self.path, span(current)), []
            if parent is not None and parent.type in _BLOCKS:
                for statement in reversed([c for c in parent.children if c.end_byte <= current.start_byte]):
                    found = self._in_statement(statement, fields)
                    if found is not None:
                        if found.value is None and not found.declaration:
                            raise self.unknown(at, name, f"'{name}' is changed in an unsupported way")
                        return found, list(reversed(fields))
            looped = parent is not None and parent.type in _LOOPS and name in _assigned_names(parent)
            if looped and parent is not None and not self._declared_inside(parent):
                raise self.unknown(at, name, f"it is in a loop that changes '{name}'")
            current = parent
            if current is not None and current.type == "function_definition":
                break
        return None, []

    def _declared_inside(self, loop: Node) -> bool:
        body = loop.child_by_field_name("body")
        return body is not None and any(
            n.type == "declaration"
            and n.end_byte <= self.at.start_byte
            and any(d[0] == self.name for d in declarators(n))
            for n in walk(body)
        )

    def _in_statement(self, statement: Node, fields: list[tuple[str, Node]]) -> Definition | None:
        name = self.name
        if statement.type == "declaration":
            for declared, value in declarators(statement):
                if declared == name:
                    place = span(value) if value is not None else None
                    return Definition(name, value, place, self.path, span(statement))
            return None
        if statement.type == "expression_statement" and statement.named_children:
            inner = statement.named_children[0]
            if inner.type == "assignment_expression":
                left, right = inner.child_by_field_name("left"), inner.child_by_field_name("right")
                operator = inner.child_by_field_name("operator")
                if left is not None and right is not None:
                    plain = operator is None or text(operator) == "="
                    if text(left) == name:
                        if not plain:
                            return Definition(name, None, None, self.path, span(statement), False)
                        return Definition(name, right, span(right), self.path, span(statement), False)
                    if left.type == "field_expression":
                        base, part = left.child_by_field_name("argument"), left.child_by_field_name("field")
                        if (
                            base is not None
                            and part is not None
                            and text(base) == name
                            and text(part) in ("x", "y", "z")
                        ):
                            if not plain:
                                return Definition(name, None, None, self.path, span(statement), False)
                            if not any(f == text(part) for f, _ in fields):
                                fields.append((text(part), right))
                            return None
        if name in _assigned_names(statement):
            if statement.type == "if_statement":
                return self._in_branch(statement, fields)
            return Definition(name, None, None, self.path, span(statement), False)
        return None

    def _in_branch(self, statement: Node, fields: list[tuple[str, Node]]) -> Definition | None:
        """The assignment in the branch of an `if` that is taken; a definition without a value where that cannot be told."""
        name = self.name
        unclear = Definition(name, None, None, self.path, span(statement), False)
        clause = statement.child_by_field_name("condition")
        try:
            taken = self.evaluate(only(clause)) if clause is not None else None
        except SourceError:
            return unclear
        branch = statement.child_by_field_name("consequence" if taken else "alternative")
        if branch is not None and branch.type == "else_clause":
            branch = only(branch)
        if branch is None:
            return None
        for inner in reversed(uncommented(branch) if branch.type == "compound_statement" else [branch]):
            if inner.type == "declaration" and any(declared == name for declared, _ in declarators(inner)):
                return unclear  # another variable of the name
            found = self._in_statement(inner, fields)
            if found is not None:
                return found
        return None


@once_a_node
def _assigned_names(node: Node) -> frozenset[str]:
    """The locals that something below the node assigns, has a member assigned, or whose address is taken."""
    found: set[str] = set()
    for part in walk(node):
        target = None
        if part.type == "assignment_expression":
            target = part.child_by_field_name("left")
        elif part.type == "update_expression" or (part.type == "pointer_expression" and text(part)[:1] == "&"):
            target = part.child_by_field_name("argument")
        if target is not None:
            found.update((text(target), text(target).partition(".")[0]))
    return frozenset(found)


def uncommented(node: Node) -> list[Node]:
    """The named children of a node but comments."""
    return [n for n in node.named_children if n.type != "comment"]


def only(node: Node) -> Node:
    """The first of them: what stands in parentheses."""
    return uncommented(node)[0]
