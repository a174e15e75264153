"""Two loops over the same elements of which the second needs a result of the first: maximum and sum of exponentials,
mean and sum of squared deviations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.rules.common import body_node, called, children, names, sound, text, walk, written
from engine.rules.model import Site
from engine.rules.reduction import pure_value
from engine.rules.scope import Declared, Scope, assigned, inside, manageable, scope_of
from engine.rules.threads import declarators, declared_type

if TYPE_CHECKING:
    from tree_sitter import Node

Kind = Literal["exponentials", "squares"]
_EXPONENTIALS = frozenset({"expf", "exp", "__expf", "exp2f", "exp2", "hexp"})
_MAXIMA = frozenset({"fmaxf", "fmax", "max"})
_POWERS = frozenset({"powf", "pow", "__powf"})
_FLOATS = frozenset({"float", "double"})


@dataclass(frozen=True)
class Loop:
    """A counted `for` loop with one statement besides declarations, which adds to (or raises) one variable."""

    node: Node
    variable: str
    start: Node
    condition: Node
    update: Node
    statement: Node
    target: str
    declared: Declared
    operation: Literal["max", "sum"]
    value: Node  # what is combined into the target
    values: dict[str, Node]  # the variables that the body declares


@dataclass(frozen=True)
class Passes:
    """Loop `second` sums a function of each value and of `reference`, which is known only after loop `first`.

    `value` is the C text of an element in the first loop, `type` that of the sums. For exponentials, `function` and
    `scale` (with `@` for the difference) say what is summed, e.g. "expf" and "@ * 0.125f"; for squares `factor` is what
    each one is multiplied with ("" for 1, else " / cols"). `kept` says that the first loop's target is still unchanged
    where the second begins.
    """

    kind: Kind
    first: Loop
    second: Loop
    value: str
    type: str
    reference: str
    function: str
    scale: str
    factor: str
    kept: bool


def passes(site: Site) -> Iterator[Passes]:
    """Every such pair of loops that stand in one block, in order of text."""
    if not sound(site) or not manageable(site):
        return
    scope = scope_of(site)
    shared = {s.name for s in site.kernel.shared}
    for block in walk(body_node(site)):
        if block.type != "compound_statement":
            continue
        loops = [loop for child in children(block) if (loop := _loop(scope, child)) is not None]
        for k, first in enumerate(loops):
            for second in loops[k + 1 :]:
                found = _pair(scope, shared, first, second)
                if found is not None:
                    yield found
                    break


def _loop(scope: Scope, node: Node) -> Loop | None:
    parts = [node.child_by_field_name(f) for f in ("initializer", "condition", "update", "body")]
    if node.type != "for_statement" or any(p is None for p in parts):
        return None
    initializer, condition, update, body = (p for p in parts if p is not None)
    counters = declarators(initializer) if initializer.type == "declaration" else []
    if len(counters) != 1 or counters[0][1] is None or counters[0][0] in written(body):
        return None
    statements = children(body) if body.type == "compound_statement" else [body]
    if not statements or any(s.type != "declaration" or not pure_value(s) for s in statements[:-1]):
        return None
    values: dict[str, Node] = {}
    for statement in statements[:-1]:
        for name, value in declarators(statement):
            if not name or value is None or name in values or declared_type(statement) not in (*_FLOATS, "int", "auto"):
                return None
            values[name] = value
    combined = _combined(statements[-1])
    if combined is None or combined[0] in values or combined[0] in names(condition):
        return None
    target, operation, value = combined
    declared = scope.lookup(target, node)
    if declared is None or declared.shape != "scalar" or inside(declared.node, node):
        return None
    if declared.type not in _FLOATS or target in names(value):
        return None
    start = counters[0][1]
    return Loop(
        node, counters[0][0], start, condition, update, statements[-1], target, declared, operation, value, values
    )


def _combined(statement: Node) -> tuple[str, Literal["max", "sum"], Node] | None:
    """Target, operation and value of `s += v`, `s = s + v`, `s = fmaf(d, d, s)` and the spellings of a maximum."""
    if statement.type == "if_statement" and statement.child_by_field_name("alternative") is None:
        condition, inner = (statement.child_by_field_name(f) for f in ("condition", "consequence"))
        if inner is not None and inner.type == "compound_statement" and len(children(inner)) == 1:
            inner = children(inner)[0]
        change = _assignment(inner) if inner is not None else None
        if change is None or condition is None or change[1] != "=":
            return None
        target, _, value = change
        return (target, "max", value) if _greater(_bare(condition), value, target) else None
    change = _assignment(statement)
    if change is None or not pure_value(change[2]):
        return None
    target, sign, value = change
    if sign == "+=":
        return target, "sum", value
    if sign != "=":
        return None
    value = _bare(value)
    left, right, operator = (value.child_by_field_name(f) for f in ("left", "right", "operator"))
    if value.type == "binary_expression" and left is not None and right is not None and operator is not None:
        for this, other in ((left, right), (right, left)):
            if text(operator) == "+" and text(_bare(this)) == target:
                return target, "sum", other
    if value.type == "call_expression" and called(value) in _MAXIMA:
        given = _arguments(value)
        for this, other in (given, given[::-1]) if len(given) == 2 else ():
            if text(_bare(this)) == target:
                return target, "max", other
    if value.type == "conditional_expression":
        condition, then, other_ = (value.child_by_field_name(f) for f in ("condition", "consequence", "alternative"))
        if condition is not None and then is not None and other_ is not None and text(_bare(other_)) == target:
            return (target, "max", then) if _greater(_bare(condition), then, target) else None
    return None


def _assignment(statement: Node) -> tuple[str, str, Node] | None:
    inner = children(statement)
    if statement.type != "expression_statement" or len(inner) != 1 or inner[0].type != "assignment_expression":
        return None
    left, sign, right = (inner[0].child_by_field_name(f) for f in ("left", "operator", "right"))
    if left is None or sign is None or right is None or left.type != "identifier":
        return None
    return text(left), text(sign), right


def _greater(condition: Node, value: Node, target: str) -> bool:
    """Whether the condition says that the value is greater than the target."""
    left, sign, right = (condition.child_by_field_name(f) for f in ("left", "operator", "right"))
    if condition.type != "binary_expression" or left is None or sign is None or right is None:
        return False
    for this, other, signs in ((left, right, (">", ">=")), (right, left, ("<", "<="))):
        if text(sign) in signs and text(_bare(other)) == target and text(_bare(this)) == text(_bare(value)):
            return True
    return False


def _bare(node: Node) -> Node:
    while node.type in ("parenthesized_expression", "condition_clause") and len(children(node)) == 1:
        node = children(node)[0]
    return node


def _arguments(call: Node) -> list[Node]:
    given = call.child_by_field_name("arguments")
    return children(given) if given is not None else []


def _pair(scope: Scope, shared: set[str], first: Loop, second: Loop) -> Passes | None:
    if second.operation != "sum" or first.declared == second.declared:
        return None
    if _header(scope, first) != _header(scope, second):
        return None
    starts = [_canonical(scope, loop, loop.start) for loop in (first, second)]
    if starts[0] != starts[1] and not (first.operation == "max" and _one_later(scope, first, second)):
        return None
    between = _between(first.node, second.node)
    if _stores(between, shared):
        return None
    changed = {n for s in between for n in written(s)}
    needed = names(first.node) - {first.variable, first.target, *first.values}
    if needed & changed or any(
        scope.lookup(n, first.node) != scope.lookup(n, second.node) for n in needed & names(second.node)
    ):
        return None
    value = _canonical(scope, first, first.value)
    if "[" not in value and "element" not in value:
        return None
    spelled = _spelled(first, first.value)
    matched = _summed(scope, second, value)
    if matched is None or (matched[0] == "exponentials") != (first.operation == "max"):
        return None
    kind, reference, function, scale, factor = matched
    known = scope.lookup(reference, second.node)
    if known is None or known.shape != "scalar" or reference == second.target or spelled is None:
        return None
    for part in (scale, factor):
        used = {w for w in part.replace("@", " ").replace("(", " ").replace(")", " ").split() if w.isidentifier()}
        # What scales the difference must be the same, and known, before the first loop.
        if used & changed or any(scope.lookup(w, first.node) != scope.lookup(w, second.node) for w in used):
            return None
    kept = first.target not in changed
    return Passes(kind, first, second, spelled, first.declared.type, reference, function, scale, factor, kept)


def _between(first: Node, second: Node) -> list[Node]:
    found = []
    node = first.next_named_sibling
    while node is not None and node != second:
        found.append(node)
        node = node.next_named_sibling
    return found


def _stores(statements: list[Node], shared: set[str]) -> bool:
    """Whether the statements may change an array in global memory."""
    for statement in statements:
        for node in walk(statement):
            target = assigned(node)
            target = _bare(target) if target is not None else None
            if target is None or target.type == "identifier":
                continue
            base = target.child_by_field_name("argument")
            if target.type != "subscript_expression" or base is None or text(base) not in shared:
                return True
    return False


def _header(scope: Scope, loop: Loop) -> tuple[str, str]:
    update = text(loop.update).replace(" ", "").replace(loop.variable, "#")
    update = "#++" if update in ("++#", "#+=1") else update
    return _canonical(scope, loop, loop.condition), update


def _one_later(scope: Scope, first: Loop, second: Loop) -> bool:
    """Whether the first loop leaves out the element that its target starts from."""
    a, b = scope.index(first.start), scope.index(second.start)
    return a is not None and b is not None and a.plus(b, -1).constant == 1


def _canonical(scope: Scope, loop: Loop, node: Node) -> str:
    """The expression in one spelling: the counter as `#`, the body's variables by their values, elements by number."""
    node = _bare(node)
    if node.type == "identifier":
        name = text(node)
        if name == loop.variable:
            return "#"
        return _canonical(scope, loop, loop.values[name]) if name in loop.values else name
    if node.type == "subscript_expression":
        origin = scope.element(node)
        if origin is not None and origin[1] is not None and not set(loop.values) & origin[1].names():
            return f"element({origin[0]}, {origin[1].renamed(loop.variable, '#').render()})"
    left, sign, right = (node.child_by_field_name(f) for f in ("left", "operator", "right"))
    if node.type == "binary_expression" and left is not None and sign is not None and right is not None:
        return f"({_canonical(scope, loop, left)} {text(sign)} {_canonical(scope, loop, right)})"
    if not node.children:
        return text(node)
    return " ".join(_canonical(scope, loop, c) for c in node.children if c.type != "comment")


def _spelled(loop: Loop, value: Node) -> str | None:
    return text(value) if pure_value(value) else None


def _summed(scope: Scope, loop: Loop, value: str) -> tuple[Kind, str, str, str, str] | None:
    """(kind, reference, function, scale, factor) of what the loop adds; None where it is neither kind."""
    node = _value_of(loop, loop.value)
    factor = ""
    squares = _squares(scope, loop, node, value)
    left, sign, right = (node.child_by_field_name(f) for f in ("left", "operator", "right"))
    product = node.type == "binary_expression" and sign is not None and text(sign) in ("/", "*")
    scaled = product and right is not None and right.type != "binary_expression" and _outside(loop, right)
    if squares is None and scaled and left is not None and sign is not None and right is not None:
        factor = f" {text(sign)} {text(right)}"
        squares = _squares(scope, loop, _value_of(loop, left), value)
    if squares is not None:
        return "squares", squares, "", "@", factor
    if node.type != "call_expression" or called(node) not in _EXPONENTIALS or len(_arguments(node)) != 1:
        return None
    inner = _value_of(loop, _arguments(node)[0])
    reference = _deviation(scope, loop, inner, value)
    if reference is not None:
        return "exponentials", reference, text(node.child_by_field_name("function") or node), "@", ""
    left, sign, right = (inner.child_by_field_name(f) for f in ("left", "operator", "right"))
    if inner.type != "binary_expression" or left is None or sign is None or right is None:
        return None
    for this, other, shown in ((left, right, "@ {} {}"), (right, left, "{1} {0} @")):
        reference = _deviation(scope, loop, _value_of(loop, this), value)
        if reference is None or not _outside(loop, other) or other.type == "binary_expression":
            continue
        if text(sign) == "*" or (text(sign) == "/" and this == left):
            function = text(node.child_by_field_name("function") or node)
            return "exponentials", reference, function, shown.format(text(sign), text(other)), ""
    return None


def _squares(scope: Scope, loop: Loop, node: Node, value: str) -> str | None:
    """The reference of a squared deviation."""
    left, sign, right = (node.child_by_field_name(f) for f in ("left", "operator", "right"))
    product = node.type == "binary_expression" and sign is not None and text(sign) == "*"
    if product and left is not None and right is not None:
        found = {_deviation(scope, loop, _value_of(loop, side), value) for side in (left, right)}
        return found.pop() if len(found) == 1 else None
    if node.type == "call_expression" and called(node) in _POWERS and len(_arguments(node)) == 2:
        base, exponent = _arguments(node)
        if text(exponent).rstrip("fF") in ("2", "2.0", "2."):
            return _deviation(scope, loop, _value_of(loop, base), value)
    return None


def _value_of(loop: Loop, node: Node) -> Node:
    node = _bare(node)
    steps = 0
    while node.type == "identifier" and text(node) in loop.values and steps < 8:
        node, steps = _bare(loop.values[text(node)]), steps + 1
    return node


def _deviation(scope: Scope, loop: Loop, node: Node, value: str) -> str | None:
    """The name subtracted from the element: `m` of `x[i] - m`."""
    left, sign, right = (node.child_by_field_name(f) for f in ("left", "operator", "right"))
    if node.type != "binary_expression" or left is None or sign is None or right is None or text(sign) != "-":
        return None
    reference = _bare(right)
    if reference.type != "identifier" or text(reference) in loop.values or text(reference) == loop.variable:
        return None
    return text(reference) if _canonical(scope, loop, left) == value else None


def _outside(loop: Loop, node: Node) -> bool:
    return (
        pure_value(node)
        and not names(node) & {loop.variable, *loop.values}
        and not any(n.type in ("call_expression", "subscript_expression") for n in walk(node))
    )
