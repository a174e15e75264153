"""Which element a thread works on: global indices, the guard around the work, grid-stride loops."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.cuda.questions import compact, declarators, declared_type, inside, names, pure, strip, text, walk, written
from engine.cuda.syntax import THREAD_NAMES, children, is_integer_type, operands
from engine.rewrite import Node, Site, once

Axis = Literal["x", "y", "z"]
AXES: tuple[Axis, Axis, Axis] = ("x", "y", "z")


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

    @property
    def block(self) -> str:
        """The block's number, in 64 bits where the index has them: it counts more elements than there are threads."""
        return f"({self.type}) blockIdx.{self.axis}" if is_wide(self.type) else f"blockIdx.{self.axis}"

    def grid_stride(self, site: Site, limit: Node) -> list[str]:
        """The opening lines of a loop in which the grid's threads share out the elements below a limit; of an index along x, factor 1.

        The counter holds the limit's largest value and a step of the grid: an `int` would pass 2^31, and go on below zero.
        """
        of, bound, before = self.extent, text(limit), ""
        if is_wide(self.type):
            kind, before = self.type, f"({self.type}) "
        elif is_unsigned(self.type):
            kind = "unsigned long long"
            before = f"({kind}) "
        else:
            kind = "unsigned int"
            bound = bound if {n.type for n in walk(limit)} <= _NEVER_NEGATIVE else f"max({bound}, 0)"
        own = kind != self.type and not self._only_numbers_elements(site, limit)
        at = site.fresh(f"{self.name}0") if own else self.name
        head = (
            f"{kind} {at} = {before}blockIdx.x * {of} + threadIdx.x; {at} < {bound}; {at} += {before}{of} * gridDim.x"
        )
        return [f"for ({head}) {{", *([f"{site.indent_unit}const {self.type} {self.name} = {at};"] if own else [])]

    def _only_numbers_elements(self, site: Site, limit: Node) -> bool:
        """Whether it is used as the whole index of an element, and beside the limit, alone: its type may then be another."""
        for node in walk(site.body):
            above = node.parent
            if node.type != "identifier" or text(node) != self.name or inside(node, self.declaration) or above is None:
                continue
            compared = above.type == "binary_expression" and compact(above) in (
                f"{self.name}<{compact(limit)}", f"{self.name}>={compact(limit)}",
            )  # fmt: skip
            element = above.type == "subscript_argument_list" and len(children(above)) == 1
            if not compared and not element:
                return False
        return True


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


# Of a size where there is a launch for it: a name, and products of such.
_NEVER_NEGATIVE = frozenset(
    {"identifier", "number_literal", "binary_expression", "*", "parenthesized_expression", "(", ")"}
)


def is_unsigned(kind: str) -> bool:
    """Whether a type of whole numbers, as written, has no negative values."""
    return any(word in kind for word in ("unsigned", "uint", "size_t"))


def is_wide(kind: str) -> bool:
    """Whether a type of whole numbers, as written, has 64 bits."""
    return any(word in kind for word in ("64", "long", "size_t", "ptrdiff_t"))


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
    changed = written(site.body)
    for statement in children(site.body):
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
    return map_of(site, thread_indices(site))


def map_of(site: Site, indices: tuple[Index, ...]) -> ThreadMap | None:
    """The kernel as declarations, guard and work around given indices; None where it has another form."""
    if not indices or len({i.axis for i in indices}) != len(indices):
        return None
    statements = children(site.body)
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
    for node in walk(site.body):
        inside = any(low <= node.start_byte < high for low, high in ranges)
        if not inside and node.type == "identifier" and text(node) in THREAD_NAMES:
            if node.parent is not None and "".join(text(node.parent).split()) in allowed:
                continue
            return True
    return False


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
