"""Counted loops, as threads share them."""

from dataclasses import dataclass
from typing import Literal

from engine.cuda.questions import ancestors, assigned, declarators, declared_type, pure, pure_value, written
from engine.cuda.syntax import called, children, inside, is_integer_type, names, operands, root_name, strip, text, walk
from engine.rewrite import Declared, Node, Pattern, Scope


@dataclass(frozen=True)
class StrideLoop:
    """A counted loop that the threads of a warp, block or grid share: `for (int j = first; j < bound; j += step)`."""

    node: Node
    variable: str
    type: str
    start: Node
    bound: Node
    step: str
    body: Node


def stride_loop(node: Node, *, memory: bool = False) -> StrideLoop | None:
    """The `for` statement as a counted upward loop with an exclusive bound and a variable of its own.

    `memory` admits stores to elements whose array cannot be told, as through a cast pointer: they change no variable.
    """
    return _counted(node, "<", ">", memory=memory) if node.type == "for_statement" else None


def _counted(node: Node, below: str, above: str, *, memory: bool = False) -> StrideLoop | None:
    """The `for` statement as a counted upward loop that runs while its variable is `below` a bound, or the bound `above` it."""
    if node.type != "for_statement":
        return None
    parts = {f: node.child_by_field_name(f) for f in ("initializer", "condition", "update", "body")}
    initializer, condition, update, body = parts.values()
    if initializer is None or condition is None or update is None or body is None:
        return None
    if initializer.type != "declaration" or not is_integer_type(declared_type(initializer)):
        return None
    declared = declarators(initializer)
    if len(declared) != 1 or not declared[0][0] or declared[0][1] is None:
        return None
    name, start = declared[0]
    condition = strip(condition)
    sign, left, right = (condition.child_by_field_name(f) for f in ("operator", "left", "right"))
    if condition.type != "binary_expression" or sign is None or left is None or right is None:
        return None
    if text(sign) == below and text(strip(left)) == name:
        bound = right
    elif text(sign) == above and text(strip(right)) == name:
        bound = left
    else:
        return None
    step = _step(update, name)
    if (
        step is None
        or name in written(body)
        or name in names(bound)
        or start is None
        or not pure(start)
        or not pure(bound)
    ):
        return None
    if names(bound) & written(body) or ("" in written(body) and not (memory and _unknown_elements(body))):
        return None
    return StrideLoop(node, name, declared_type(initializer), start, bound, step, body)


def _unknown_elements(body: Node) -> bool:
    """Whether all that is assigned below the node, and cannot be told, are elements of cast pointers."""
    for node in walk(body):
        target = None
        if node.type in ("assignment_expression", "update_expression"):
            target = node.child_by_field_name("left") or node.child_by_field_name("argument")
        if target is None or root_name(target):
            continue
        base = target.child_by_field_name("argument") if target.type == "subscript_expression" else None
        if base is None or "reinterpret_cast" not in text(base)[:16]:
            return False
    return True


def _step(update: Node, name: str) -> str | None:
    if update.type == "update_expression":
        return (
            "1"
            if "++" in text(update) and root_name(update.child_by_field_name("argument") or update) == name
            else None
        )
    if update.type != "assignment_expression":
        return None
    sign, left, right = (update.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or left is None or right is None or text(left) != name or not pure(right):
        return None
    if text(sign) == "+=":
        return text(right) if name not in names(right) else None
    if text(sign) == "=":
        terms = operands(right, "+")
        if len(terms) == 2 and name in (text(t) for t in terms):
            other = terms[0] if text(terms[1]) == name else terms[1]
            return text(other) if name not in names(other) else None
    return None


def inclusive_loop(node: Node) -> StrideLoop | None:
    """`for (int j = first; j <= last; ++j)` as a counted loop; its `bound` is the last value."""
    loop = _counted(node, "<=", ">=")
    return loop if loop is not None and loop.step == "1" else None


def runs(loop: StrideLoop) -> str:
    """The condition under which the loop runs at least once. The start keeps the loop variable's type."""
    start = text(loop.start)
    if not start.isdigit():
        start = f"static_cast<{loop.type}>({start})"
    bound = text(loop.bound)
    return f"{start} < {bound}"


def with_pragma(loop: Node) -> int:
    """Where the loop begins, a pragma right above it included."""
    before = loop.prev_sibling
    pragma = before is not None and before.type == "preproc_call" and text(before)[1:].lstrip().startswith("pragma")
    return before.start_byte if before is not None and pragma else loop.start_byte


def changed_names(loop: Node, *, declarations: bool = True) -> set[str]:
    """The variables that the code assigns, and with `declarations` those that it declares."""
    changed = set()
    for node in walk(loop):
        target = assigned(node)
        if target is not None and strip(target).type == "identifier":
            changed.add(text(strip(target)))
        elif declarations and node.type == "declaration":
            for part in node.children_by_field_name("declarator"):
                changed |= names(part.child_by_field_name("declarator") or part)
    return changed


Operation = Literal["sum", "product", "max", "min", "and", "or", "xor"]
_COMPOUND: dict[str, Operation] = {
    "+=": "sum", "-=": "sum", "*=": "product", "&=": "and", "|=": "or", "^=": "xor",
}  # fmt: skip
_BINARY: dict[str, Operation] = {"+": "sum", "*": "product", "&": "and", "|": "or", "^": "xor"}
_FUNCTIONS: dict[str, Operation] = {
    "fmaxf": "max", "fmax": "max", "max": "max", "fminf": "min", "fmin": "min", "min": "min",
}  # fmt: skip
_FUSED_NAMES = ("fmaf", "fma", "__fmaf_rn", "__fma_rn")
_ASSIGNED = Pattern("$s = $v")
_CALL, _FUSED = Pattern("$f($s, $v)", "$f($v, $s)"), Pattern("$f($x, $y, $s)")
_GUARDS: dict[Operation, Pattern] = {
    "max": Pattern("if ($v > $s) $s = $v;", "if ($v >= $s) $s = $v;"),
    "min": Pattern("if ($v < $s) $s = $v;", "if ($v <= $s) $s = $v;"),
}
_CHOICES: dict[Operation, Pattern] = {
    "max": Pattern("$v > $s ? $v : $s", "$v >= $s ? $v : $s", "$v < $s ? $s : $v", "$v <= $s ? $s : $v"),
    "min": Pattern("$v < $s ? $v : $s", "$v <= $s ? $v : $s", "$v > $s ? $s : $v", "$v >= $s ? $s : $v"),
}
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
        loops = [n for n in ancestors(use) if n.type == "for_statement"]
        outermost = next((n for n in reversed(loops) if inside(n, variable.scope)), loops[0] if loops else None)
        body = outermost.child_by_field_name("body") if outermost is not None else None
        if body is None or body.type != "compound_statement" or not _assigned_first(scope, variable, body):
            return False
    return True


def _assigned_first(scope: Scope, variable: Declared, body: Node) -> bool:
    for statement in children(body):
        uses = scope.same(variable, variable.name, statement)
        if uses:
            return len(uses) == 1 and _ASSIGNED.match(statement, s=lambda n: text(n) == variable.name) is not None
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
    if _count(right, name) == 0:
        return _guarded(statement, name)
    value, where = strip(right), {"s": lambda n: text(n) == name, "v": lambda n: _count(n, name) == 0}
    if value.type == "binary_expression":
        return _chain(value, name, statement)
    call = _CALL.match(value, **where)
    if call is not None and called(value) in _FUNCTIONS:
        return _FUNCTIONS[called(value)], called(value), statement
    if _FUSED.match(value, **where) is not None and called(value) in _FUSED_NAMES and _count(value, name) == 1:
        return "sum", "", statement
    for operation, pattern in _CHOICES.items():
        if pattern.match(value, **where) is not None:
            return operation, "", statement
    return None


def _chain(value: Node, name: str, statement: Node) -> tuple[Operation, str, Node] | None:
    """`s = s + a + b`, `s = a * s`, `s = s - a`: the variable once, at the top of the chain."""
    sign, left, right = (value.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or left is None or right is None or _count(value, name) != 1:
        return None
    operator = "+" if text(sign) == "-" and _count(left, name) == 1 else text(sign)
    if operator not in _BINARY:
        return None
    inner = strip(left) if _count(left, name) else strip(right)
    if text(inner) == name:
        return _BINARY[operator], "", statement
    found = _chain(inner, name, statement) if inner.type == "binary_expression" else None
    return found if found is not None and found[0] == _BINARY[operator] else None


def _guarded(statement: Node, name: str) -> tuple[Operation, str, Node] | None:
    """`if (v > s) s = v;` and `if (v > s) { s = v; }`."""
    outer = statement.parent
    if outer is not None and outer.type == "compound_statement" and len(children(outer)) == 1:
        outer = outer.parent
    for operation, pattern in _GUARDS.items():
        found = pattern.match(outer, s=lambda n: text(n) == name, v=lambda n: _count(n, name) == 0 and pure_value(n))
        if outer is not None and found is not None:
            return operation, "", outer
    return None


def _count(node: Node, name: str) -> int:
    return sum(1 for n in walk(node) if n.type == "identifier" and text(n) == name)
