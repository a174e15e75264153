"""Which element a thread works on: global indices, the guard around the work, grid-stride loops."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from engine.arith import ArithmeticError_, evaluate
from engine.rules.cases import all_cases
from engine.rules.common import (
    THREAD_NAMES,
    body_node,
    children,
    is_integer_type,
    names,
    operands,
    pure,
    root_name,
    strip,
    text,
    value_in,
    walk,
    written,
)
from engine.rules.model import Site, once

if TYPE_CHECKING:
    from tree_sitter import Node

Axis = Literal["x", "y", "z"]
AXES: tuple[Axis, Axis, Axis] = ("x", "y", "z")
_MAX_SUBSTITUTIONS = 8


@dataclass(frozen=True)
class Index:
    """A variable that numbers the threads of the whole grid along one axis.

    Its value is `blockIdx.axis * (extent * factor) + threadIdx.axis` . `extent` is `blockDim.axis` or the constant
    that stands for it.
    """

    name: str
    axis: Axis
    type: str
    extent: str
    factor: int
    declaration: Node
    alone: bool  # the only variable of its declaration

    def grid_stride(self, limit: str) -> str:
        """The head of a loop in which the grid's threads share out the elements below a limit; of an index along x, factor 1."""
        start, step = f"blockIdx.x * {self.extent} + threadIdx.x", f"{self.extent} * gridDim.x"
        return f"for ({self.type} {self.name} = {start}; {self.name} < {limit}; {self.name} += {step}) {{"


@dataclass(frozen=True)
class ThreadMap:
    """A kernel of the form: indices, plain declarations, guard, work.

    `invariant` are declarations before the guard that no index enters, `derived` those that one enters (in order).
    `style`: `wrap` is `if (i < n) { work }`, `return` is `if (i >= n) return; work`, `none` has no guard.
    `bounds` gives the exclusive upper bound of each guarded axis as a node of the guard.
    """

    indices: tuple[Index, ...]
    invariant: tuple[Node, ...]
    derived: tuple[Node, ...]
    style: Literal["wrap", "return", "none"]
    guards: tuple[Node, ...]
    bounds: Mapping[Axis, Node]
    work: tuple[Node, ...]

    def index(self, axis: Axis) -> Index | None:
        """The index of one axis."""
        return next((i for i in self.indices if i.axis == axis), None)


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


def declarators(declaration: Node) -> list[tuple[str, Node | None]]:
    """Name and initialiser of each variable in a declaration; the name is "" for pointers and arrays."""
    found: list[tuple[str, Node | None]] = []
    for child in declaration.children_by_field_name("declarator"):
        if child.type == "init_declarator":
            target, value = child.child_by_field_name("declarator"), child.child_by_field_name("value")
            plain = target is not None and target.type == "identifier"
            found.append((text(target) if plain and target is not None else "", value))
        else:
            found.append((text(child) if child.type == "identifier" else "", None))
    return found


def declared_type(declaration: Node) -> str:
    """The type of a declaration as written, without qualifiers such as const."""
    node = declaration.child_by_field_name("type")
    return text(node) if node is not None else ""


def global_axis(expression: Node) -> tuple[Axis, str, int] | None:
    """Axis, block extent and factor when the expression is `blockIdx.a * extent + threadIdx.a`, in any order."""
    terms = operands(expression, "+")
    if len(terms) != 2:
        return None
    for thread, offset in (terms, terms[::-1]):
        match = re.fullmatch(r"threadIdx\s*\.\s*([xyz])", text(thread))
        if not match:
            continue
        axis: Axis = match[1]  # type: ignore[assignment]
        factors = [text(f).replace(" ", "") for f in operands(offset, "*")]
        block = f"blockIdx.{axis}"
        if factors.count(block) != 1 or len(factors) not in (2, 3):
            return None
        factors.remove(block)
        numbers = [f for f in factors if re.fullmatch(r"\d+", f)]
        others = [f for f in factors if f not in numbers]
        if len(others) == 1 and re.fullmatch(rf"[A-Za-z_]\w*|blockDim\.{axis}", others[0]) and len(numbers) < 2:
            return axis, others[0], int(numbers[0]) if numbers else 1
        if not others and len(numbers) == 1:
            return axis, numbers[0], 1
    return None


@once
def thread_indices(site: Site) -> tuple[Index, ...]:
    """The global indices that the kernel declares at the top of its body and never changes."""
    found = []
    changed = written(body_node(site))
    for statement in children(body_node(site)):
        if statement.type != "declaration" or not is_integer_type(declared_type(statement)):
            continue
        parts = declarators(statement)
        for name, value in parts:
            shape = global_axis(value) if name and value is not None else None
            if shape is not None and name not in changed:
                found.append(
                    Index(name, shape[0], declared_type(statement), shape[1], shape[2], statement, len(parts) == 1)
                )
    return tuple(found)


def bounds_of(condition: Node, indices: tuple[Index, ...], *, negated: bool) -> dict[Axis, Node]:
    """The exclusive upper bound that the guard sets on each index.

    `negated` is for `if (i >= n || …) return;`: then the disjuncts count. Bounds that an index enters are left out.
    """
    found: dict[Axis, Node] = {}
    condition = strip(condition)
    if condition.type == "unary_expression" and text(condition).startswith("!"):
        inner = condition.child_by_field_name("argument")
        return bounds_of(inner, indices, negated=not negated) if inner is not None else {}
    inside, outside = (">=", "<=") if negated else ("<", ">")
    for part in operands(condition, "||" if negated else "&&"):
        sign, left, right = (part.child_by_field_name(f) for f in ("operator", "left", "right"))
        if part.type != "binary_expression" or sign is None or left is None or right is None:
            continue
        for index in indices:
            for this, other, operator in ((left, right, inside), (right, left, outside)):
                if text(sign) != operator or text(strip(this)) != index.name or index.axis in found:
                    continue
                if not names(other) & ({i.name for i in indices} | THREAD_NAMES):
                    found[index.axis] = other
    return found


@once
def thread_map(site: Site) -> ThreadMap | None:
    """The kernel as indices, declarations, guard and work; None where it has another form."""
    indices = thread_indices(site)
    if not indices or len({i.axis for i in indices}) != len(indices):
        return None
    statements = children(body_node(site))
    last_guard = -1
    for k, statement in enumerate(statements):
        if statement.type == "declaration":
            continue
        if _returns(statement) and pure(statement.child_by_field_name("condition") or statement):
            last_guard = k
            continue
        break
    dependent = {i.name for i in indices}
    invariant, derived, guards = [], [], []
    bounds: dict[Axis, Node] = {}

    def declare(statement: Node) -> bool:
        if "__shared__" in text(statement) or not pure(statement):
            return False
        if statement in [i.declaration for i in indices]:
            return True
        if names(statement) & dependent:
            derived.append(statement)
            dependent.update(name for name, _ in declarators(statement))
        else:
            invariant.append(statement)
        return "" not in {name for name, _ in declarators(statement)} or statement not in derived

    if last_guard >= 0:
        for statement in statements[: last_guard + 1]:
            if statement.type == "declaration":
                if not declare(statement):
                    return None
            else:
                guards.append(statement)
                condition = statement.child_by_field_name("condition")
                if condition is not None:
                    bounds = {**bounds_of(condition, indices, negated=True), **bounds}
        return ThreadMap(
            indices,
            tuple(invariant),
            tuple(derived),
            "return",
            tuple(guards),
            bounds,
            tuple(statements[last_guard + 1 :]),
        )
    final = statements[-1]
    if final.type == "if_statement" and final.child_by_field_name("alternative") is None:
        if all(s.type == "declaration" and declare(s) for s in statements[:-1]):
            condition, inner = final.child_by_field_name("condition"), final.child_by_field_name("consequence")
            if condition is not None and inner is not None and pure(condition):
                bounds = bounds_of(condition, indices, negated=False)
                work = tuple(children(inner)) if inner.type == "compound_statement" else (inner,)
                return ThreadMap(indices, tuple(invariant), tuple(derived), "wrap", (final,), bounds, work)
        return None
    declarations = [s for s in statements if s in [i.declaration for i in indices]]
    rest = tuple(s for s in statements if s not in declarations)
    return ThreadMap(indices, (), (), "none", (), {}, rest)


def _returns(statement: Node) -> bool:
    if statement.type != "if_statement" or statement.child_by_field_name("alternative") is not None:
        return False
    inner = statement.child_by_field_name("consequence")
    if inner is not None and inner.type == "compound_statement" and len(children(inner)) == 1:
        inner = children(inner)[0]
    return inner is not None and inner.type == "return_statement"


def thread_uses_outside(site: Site, indices: tuple[Index, ...], allowed: frozenset[str] = frozenset()) -> bool:
    """Whether the kernel uses threadIdx, blockIdx, blockDim or gridDim anywhere but to declare its global indices.

    `allowed` are uses that do not count, such as "blockIdx.z".
    """
    ranges = [(i.declaration.start_byte, i.declaration.end_byte) for i in indices]
    for node in walk(body_node(site)):
        inside = any(low <= node.start_byte < high for low, high in ranges)
        if not inside and node.type == "identifier" and text(node) in THREAD_NAMES:
            if node.parent is not None and "".join(text(node.parent).split()) in allowed:
                continue
            return True
    return False


def definition(site: Site, name: str) -> Node | None:
    """The initialiser of a local that is declared once in the kernel and never changed."""
    found = []
    for node in walk(body_node(site)):
        if node.type == "declaration":
            found += [value for declared, value in declarators(node) if declared == name]
            if any(text(n) == name for n in walk(node) if n.type == "identifier" and _declares(n)):
                found += [None] if not any(d == name for d, _ in declarators(node)) else []
    return found[0] if len(found) == 1 and name not in written(body_node(site)) else None


def _declares(node: Node) -> bool:
    parent = node.parent
    return parent is not None and parent.type in ("array_declarator", "pointer_declarator", "reference_declarator")


def in_parameters(site: Site, expression: Node) -> str | None:
    """The integer expression in terms of the kernel's scalar parameters and numbers; None where that cannot be.

    Locals that are defined once are replaced by their definitions, constants and macros by their values.
    """
    count = 0

    def write(node: Node) -> str | None:
        nonlocal count
        node = strip(node)
        if node.type == "number_literal":
            return text(node) if re.fullmatch(r"\d+[uUlL]*|0[xX][0-9a-fA-F]+", text(node)) else None
        if node.type == "identifier":
            name = text(node)
            for parameter in site.kernel.parameters:
                if parameter.name == name:
                    changed = name in written(body_node(site))
                    return name if not parameter.pointer and is_integer_type(parameter.base) and not changed else None
            constant = site.unit.macros.get(name, site.unit.constants.get(name))
            if constant is not None and not any(name == p.split()[-1] for p in site.kernel.template_parameters):
                try:
                    value = evaluate(constant, {})
                except ArithmeticError_:
                    return None
                return str(value) if isinstance(value, int) else None
            count += 1
            local = definition(site, name)
            return write(local) if local is not None and count <= _MAX_SUBSTITUTIONS else None
        if node.type == "binary_expression":
            sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
            if sign is None or left is None or right is None or text(sign) not in ("+", "-", "*", "/"):
                return None
            a, b = write(left), write(right)
            if a is None or b is None:
                return None
            return f"{_wrap(a)} {text(sign)} {_wrap(b)}"
        return None

    return write(expression)


def _wrap(written_text: str) -> str:
    return written_text if re.fullmatch(r"\w+", written_text) else f"({written_text})"


def ceil_div(expression: str, divisor: int) -> str:
    """`(expression + divisor - 1) / divisor` as a person writes it, for the host side."""
    if divisor == 1:
        return expression
    simple = re.fullmatch(r"[\w *]+", expression)
    return f"({expression if simple else _wrap(expression)} + {divisor - 1}) / {divisor}"


def covers(site: Site, bound: str, configs: tuple[tuple[int, int], ...], factor: int) -> bool:
    """Whether the launch covers the bound in every case; `configs` holds (grid, block) of one axis."""
    for case, (grid, block) in zip(all_cases(site), configs, strict=True):
        value = value_in(site, bound, case)
        if value is None or value > grid * block * factor:
            return False
    return True


def stride_loop(node: Node, *, memory: bool = False) -> StrideLoop | None:
    """The `for` statement as a counted upward loop with an exclusive bound and a variable of its own.

    `memory` admits stores to elements whose array cannot be told, as through a cast pointer: they change no variable.
    """
    parts = {f: node.child_by_field_name(f) for f in ("initializer", "condition", "update", "body")}
    initializer, condition, update, body = parts.values()
    if node.type != "for_statement" or initializer is None or condition is None or update is None or body is None:
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
    if text(sign) == "<" and text(strip(left)) == name:
        bound = right
    elif text(sign) == ">" and text(strip(right)) == name:
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


def holds(mapping: ThreadMap) -> str:
    """The condition under which a thread works, as text without outer parentheses."""
    parts = []
    for guard in mapping.guards:
        condition = guard.child_by_field_name("condition")
        if condition is not None:
            inner = children(condition)[0] if condition.type == "condition_clause" else condition
            parts.append(text(inner) if mapping.style == "wrap" else _negation(inner))
    return " && ".join(parts)


_OPPOSITE = {">=": "<", "<=": ">", "<": ">=", ">": "<=", "==": "!=", "!=": "=="}


def _negation(node: Node) -> str:
    """The opposite of a condition without floating-point comparisons, as a person would write it."""
    while node.type == "parenthesized_expression":
        node = children(node)[0]
    sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
    if node.type == "binary_expression" and sign is not None and left is not None and right is not None:
        if text(sign) == "||":
            return f"{_negation(left)} && {_negation(right)}"
        # Indices and sizes are integers, for which the opposite comparison is the negation.
        if text(sign) in _OPPOSITE:
            return f"{text(left)} {_OPPOSITE[text(sign)]} {text(right)}"
    return f"!({text(node)})"
