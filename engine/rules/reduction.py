"""Loops whose iterations may run on different threads: what each adds up into scalars, what each keeps to itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.rules.common import called, children, strip, text, walk
from engine.rules.scope import Declared, Scope, assigned, inside
from engine.rules.threads import StrideLoop

if TYPE_CHECKING:
    from tree_sitter import Node

Operation = Literal["sum", "product", "max", "min", "and", "or", "xor"]
_COMPOUND: dict[str, Operation] = {
    "+=": "sum", "-=": "sum", "*=": "product", "&=": "and", "|=": "or", "^=": "xor",
}  # fmt: skip
_BINARY: dict[str, Operation] = {"+": "sum", "*": "product", "&": "and", "|": "or", "^": "xor"}
_FUNCTIONS: dict[str, Operation] = {
    "fmaxf": "max", "fmax": "max", "max": "max", "fminf": "min", "fmin": "min", "min": "min",
}  # fmt: skip
_INTEGERS = frozenset({
    "int", "unsigned", "unsigned int", "long", "unsigned long", "long long", "unsigned long long", "long long int",
    "unsigned long long int", "size_t", "int32_t", "uint32_t", "int64_t", "uint64_t", "uint",
})  # fmt: skip
_FLOATS = frozenset({"float", "double"})
_HALVES = frozenset({"half", "__half", "__nv_bfloat16", "nv_bfloat16"})
_JUMPS = frozenset({"break_statement", "continue_statement", "return_statement", "goto_statement", "switch_statement"})


@dataclass(frozen=True)
class Reduction:
    """A scalar into which every iteration of a loop combines a value.

    `function` is the function the author combines with ("fmaxf"), "" for operators and comparisons.
    """

    name: str
    operation: Operation
    type: str  # without const
    function: str
    declared: Declared

    @property
    def idempotent(self) -> bool:
        """Whether combining a value twice changes nothing, so that every thread may start from the same one."""
        return self.operation in ("max", "min", "and", "or")

    def identity(self, kind: str = "") -> str:
        """The value that changes nothing, in type `kind` (default: its own); only for what is not idempotent."""
        return neutral(kind or self.type, self.operation)


def neutral(kind: str, operation: Operation) -> str:
    """The value of a type that an operation which is not idempotent starts from."""
    digits = "1" if operation == "product" else "0"
    plain = {"int": digits, "double": f"{digits}.0", "float": f"{digits}.0f"}
    return plain.get(kind, f"static_cast<{kind}>({digits})")


def reductions(scope: Scope, loop: StrideLoop, template_types: frozenset[str] = frozenset()) -> list[Reduction] | None:
    """The loop's reductions; None where an iteration depends on another one in any other way, or may leave the loop.

    Array elements are not looked at here.
    """
    found: dict[str, list[tuple[Operation, str, Node]]] = {}
    declared: dict[str, Declared] = {}
    for node in walk(loop.body):
        if node.type in _JUMPS or node.type in ("while_statement", "do_statement", "comma_expression"):
            return None
        target = assigned(node)
        if target is None:
            continue
        target = strip(target)
        while target.type == "field_expression":
            target = strip(target.child_by_field_name("argument") or target.children[0])
        if target.type in ("subscript_expression", "pointer_expression"):
            continue
        if target.type != "identifier":
            return None
        name = text(target)
        variable = scope.lookup(name, node)
        if variable is None:
            return None
        if inside(variable.node, loop.node):
            continue
        declared[name] = variable
        update = _update(node, name)
        found.setdefault(name, []).append(update or ("sum", "", node))
        if update is None and not _private(scope, variable, loop):
            return None
    result = []
    for name, updates in found.items():
        variable = declared[name]
        if _private(scope, variable, loop):
            continue
        uses = scope.same(variable, name, loop.node)
        if any(not any(inside(use, cover) for _, _, cover in updates) for use in uses):
            return None
        operations = {(operation, function) for operation, function, _ in updates}
        kind = _scalar_type(variable, template_types)
        if len(operations) != 1 or kind is None or variable.shape != "scalar":
            return None
        operation, function = operations.pop()
        if not _combines(operation, kind):
            return None
        result.append(Reduction(name, operation, kind, function, variable))
    return result


def _combines(operation: Operation, kind: str) -> bool:
    if operation in ("and", "or", "xor"):
        return kind in _INTEGERS
    return operation in ("sum", "product") or kind not in _HALVES


def _scalar_type(variable: Declared, template_types: frozenset[str]) -> str | None:
    words = [w for w in variable.type.split() if w not in ("const", "static", "register", "volatile")]
    if len(words) != len(variable.type.split()):
        return None
    kind = " ".join(words).removeprefix("std::")
    return kind if kind in _INTEGERS | _FLOATS | _HALVES | template_types else None


def _private(scope: Scope, variable: Declared, loop: StrideLoop) -> bool:
    """Whether each iteration gives the variable a value before it reads it, and nothing after the loop reads it."""
    if variable.shape != "scalar":
        return False
    for use in scope.same(variable, variable.name, variable.scope):
        if inside(use, variable.node):
            continue
        home: Node | None = use
        while home is not None and home.type != "for_statement":
            home = home.parent
        outermost = home
        while home is not None:
            if home.type == "for_statement" and inside(home, variable.scope):
                outermost = home
            home = home.parent
        body = outermost.child_by_field_name("body") if outermost is not None else None
        if body is None or body.type != "compound_statement" or not _assigned_first(scope, variable, body):
            return False
    return True


def _assigned_first(scope: Scope, variable: Declared, body: Node) -> bool:
    for statement in children(body):
        uses = scope.same(variable, variable.name, statement)
        if not uses:
            continue
        node = children(statement)[0] if statement.type == "expression_statement" and children(statement) else None
        if node is None or node.type != "assignment_expression" or len(uses) != 1:
            return False
        left, sign = node.child_by_field_name("left"), node.child_by_field_name("operator")
        return left is not None and sign is not None and text(left) == variable.name and text(sign) == "="
    return False


def _update(node: Node, name: str) -> tuple[Operation, str, Node] | None:
    """Operation, function and the statement that is the whole update of `name`; None for another kind of change."""
    statement = node.parent
    if statement is None or statement.type != "expression_statement":
        return None
    if node.type == "update_expression":
        return "sum", "", statement
    sign, right = node.child_by_field_name("operator"), node.child_by_field_name("right")
    if sign is None or right is None or not pure_value(right):
        return None
    if text(sign) in _COMPOUND:
        return (_COMPOUND[text(sign)], "", statement) if _count(right, name) == 0 else None
    if text(sign) != "=":
        return None
    value = strip(right)
    if _count(value, name) == 0:
        return _guarded(statement, name, value)
    if value.type == "binary_expression":
        return _chain(value, name, statement)
    if value.type == "call_expression":
        return _call(value, name, statement)
    if value.type == "conditional_expression":
        parts = [value.child_by_field_name(f) for f in ("condition", "consequence", "alternative")]
        if any(p is None for p in parts) or _count(value, name) != 2:
            return None
        condition, then, other = (strip(p) for p in parts if p is not None)
        larger = _larger(condition, name)
        if larger is None:
            return None
        candidate, prefers_candidate = larger
        if text(other) == name and tokens(then) == tokens(candidate):
            return ("max" if prefers_candidate else "min"), "", statement
        if text(then) == name and tokens(other) == tokens(candidate):
            return ("min" if prefers_candidate else "max"), "", statement
    return None


def _chain(value: Node, name: str, statement: Node) -> tuple[Operation, str, Node] | None:
    """`s = s + a + b`, `s = a * s`, `s = s - a`: the variable once, at the top of the chain."""
    sign, left, right = (value.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or left is None or right is None or _count(value, name) != 1:
        return None
    operator = text(sign)
    if operator == "-" and _count(left, name) == 1:
        inner = strip(left)
        if text(inner) == name:
            return "sum", "", statement
        found = _chain(inner, name, statement) if inner.type == "binary_expression" else None
        return found if found and found[0] == "sum" else None
    if operator not in _BINARY:
        return None
    inner = strip(left) if _count(left, name) else strip(right)
    if text(inner) == name:
        return _BINARY[operator], "", statement
    found = _chain(inner, name, statement) if inner.type == "binary_expression" else None
    return found if found is not None and found[0] == _BINARY[operator] else None


def _call(value: Node, name: str, statement: Node) -> tuple[Operation, str, Node] | None:
    function = called(value)
    arguments = value.child_by_field_name("arguments")
    parts = [strip(c) for c in children(arguments)] if arguments is not None else []
    if _count(value, name) != 1:
        return None
    if function in _FUNCTIONS and len(parts) == 2 and name in (text(parts[0]), text(parts[1])):
        return _FUNCTIONS[function], function, statement
    if function in ("fmaf", "fma", "__fmaf_rn", "__fma_rn") and len(parts) == 3 and text(parts[2]) == name:
        return "sum", "", statement
    return None


def _guarded(statement: Node, name: str, value: Node) -> tuple[Operation, str, Node] | None:
    """`if (v > s) s = v;` and `if (v > s) { s = v; }`."""
    outer = statement.parent
    if outer is not None and outer.type == "compound_statement" and len(children(outer)) == 1:
        outer = outer.parent
    if outer is None or outer.type != "if_statement" or outer.child_by_field_name("alternative") is not None:
        return None
    condition = outer.child_by_field_name("condition")
    larger = _larger(strip(condition), name) if condition is not None else None
    if larger is None or tokens(larger[0]) != tokens(value):
        return None
    return ("max" if larger[1] else "min"), "", outer


def _larger(condition: Node, name: str) -> tuple[Node, bool] | None:
    """From a comparison of the variable with a candidate: the candidate, and whether it holds for larger candidates."""
    sign, left, right = (condition.child_by_field_name(f) for f in ("operator", "left", "right"))
    if condition.type != "binary_expression" or sign is None or left is None or right is None:
        return None
    left, right = strip(left), strip(right)
    if text(sign) not in ("<", ">", "<=", ">=") or _count(condition, name) != 1 or not pure_value(condition):
        return None
    if text(left) == name:
        return right, text(sign)[0] == "<"
    return (left, text(sign)[0] == ">") if text(right) == name else None


def pure_value(node: Node) -> bool:
    """Whether the expression changes nothing that the rules can see (calls were checked for the whole kernel)."""
    return not any(assigned(n) is not None or n.type in ("comma_expression", "lambda_expression") for n in walk(node))


def tokens(node: Node) -> str:
    """The node's tokens with single spaces, comments left out."""
    if not node.children:
        return text(node)
    return " ".join(tokens(c) for c in node.children if c.type != "comment")


def _count(node: Node, name: str) -> int:
    return sum(1 for n in walk(node) if n.type == "identifier" and text(n) == name)


__all__ = ["Operation", "Reduction", "pure_value", "reductions", "tokens"]
