"""Which output a thread computes, where its number is taken apart: `x = i % width; y = i / width % height; ...`."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine.cuda.questions import Polynomial, number, pure, variables, written
from engine.cuda.syntax import THREAD_NAMES, children, inside, names, operands, strip, text, walk
from engine.rewrite import Node, Scope, Site
from engine.rules.idioms.coverage import Grids
from engine.rules.idioms.thread_index import AXES, Axis

ONE = number(1)


@dataclass(frozen=True)
class Digit:
    """`(root / over) % modulo`, where the root is the number of a thread along an axis of the grid, or of a block.

    Without `modulo` it is the root's last digit.
    """

    axis: Axis
    threads: bool
    over: Polynomial
    modulo: Polynomial | None

    @property
    def root(self) -> tuple[Axis, bool]:
        """The number that it is a digit of."""
        return self.axis, self.threads


@dataclass
class Decoded:
    """What the statements before the work make of the thread's number.

    `digits` are the values of variables, `types` their types; `plain` are declarations that are the same for all threads,
    `moved` the statements that the digits are made by, `bounds` the guards' exclusive bounds by variable.
    """

    digits: dict[str, Digit] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    plain: list[Node] = field(default_factory=list)
    moved: list[Node] = field(default_factory=list)
    bounds: dict[str, Polynomial] = field(default_factory=dict)


def quotient(value: Polynomial, divisor: Polynomial) -> Polynomial | None:
    """The value over a divisor of one product, where that leaves nothing; None else."""
    if len(divisor.terms) != 1:
        return None
    ((product, factor),) = divisor.terms.items()
    found: dict[tuple[str, ...], int] = {}
    for own, count in value.terms.items():
        if count % factor or Counter(product) - Counter(own):
            return None
        found[tuple(sorted((Counter(own) - Counter(product)).elements()))] = count // factor
    return Polynomial(found)


def decoded(site: Site, work: Node) -> Decoded | None:
    """The digits that the statements before `work`, in the blocks around it, make; None where the thread's number is used otherwise."""
    found = Decoded()
    changed = written(site.body)
    keep = _sums(site, changed)
    scope = Scope(site.unit, site.kernel, keep)
    varying: set[str] = {"threadIdx", "blockIdx"}
    for statement in _before(site, work):
        condition = statement.child_by_field_name("condition")
        if statement.type == "if_statement":
            if condition is not None and pure(condition):
                _bound(scope, found, condition, negated=not _holds(statement, work))
            continue
        for name, kind, value in _assignments(statement):
            digit = _digit(site, scope, found, value)
            if digit is not None:
                found.digits[name] = digit
                found.types.setdefault(name, kind)
                if not found.moved or found.moved[-1] != statement:
                    found.moved.append(statement)
            elif name in found.digits:
                return None
        if statement.type == "declaration" and (not found.moved or found.moved[-1] != statement):
            own = {v.name for v in variables(statement)}
            if names(statement) & (varying | found.digits.keys()) or not pure(statement) or own & changed:
                varying |= own
            else:
                found.plain.append(statement)
    for statement in found.moved:
        if statement.type == "declaration" and any(v.name not in found.digits for v in variables(statement)):
            return None
    return found if _thread_is_moved(site, found) else None


def _thread_is_moved(site: Site, found: Decoded) -> bool:
    """Whether nothing but what is moved uses a thread's number; declarations that serve nothing else are moved, too."""

    def others() -> Iterator[Node]:
        return (n for n in walk(site.body) if n.type == "identifier" and not any(inside(n, m) for m in found.moved))

    for statement in reversed(children(site.body)):
        if (
            statement.type == "declaration"
            and names(statement) & THREAD_NAMES
            and pure(statement)
            and statement not in found.moved
        ):
            own = {v.name for v in variables(statement)}
            if not any(text(n) in own and not inside(n, statement) for n in others()):
                found.moved.append(statement)
    return not any(text(n) in THREAD_NAMES for n in others())


def _sums(site: Site, changed: frozenset[str]) -> frozenset[str]:
    """Locals that stay names in polynomials: those that are sums, such as the extent of an output."""
    scope = site.scope
    known = (
        {p.name for p in site.kernel.parameters if not p.pointer} - changed
        | set(site.unit.macros)
        | set(site.unit.constants)
    )
    kept = set()
    for name, same in scope.declared.items():
        value = same[0].value if len(same) == 1 and name not in changed else None
        found = scope.index(value) if value is not None else None
        if (
            found is not None
            and found.names() <= known
            and (len(found.terms) != 1 or any("(" in a for p in found.terms for a in p))
        ):
            kept.add(name)
    return frozenset(kept)


def kept_names(site: Site) -> frozenset[str]:
    """The names that `decoded` keeps in polynomials."""
    return _sums(site, written(site.body))


def _before(site: Site, work: Node) -> Iterator[Node]:
    """The statements before the work and the conditions around it, outermost first."""
    path = [work]
    while path[-1] != site.body and path[-1].parent is not None:
        path.append(path[-1].parent)
    for outer, inner in zip(path[:0:-1], path[-2::-1], strict=False):
        if outer.type == "compound_statement":
            for statement in children(outer):
                if statement == inner:
                    break
                yield statement
        elif outer.type == "if_statement":
            yield outer


def _holds(statement: Node, work: Node) -> bool:
    return statement.start_byte <= work.start_byte and work.end_byte <= statement.end_byte


def _assignments(statement: Node) -> Iterator[tuple[str, str, Node]]:
    """Name, type and value of what a declaration or an assignment sets; `t /= n` counts as `t = t / n`."""
    if statement.type == "declaration":
        for variable in variables(statement):
            if variable.shape == "scalar" and variable.value is not None:
                yield variable.name, variable.type.replace("const", "").strip(), variable.value
    elif statement.type == "expression_statement" and children(statement):
        inner = children(statement)[0]
        left = inner.child_by_field_name("left")
        if inner.type == "assignment_expression" and left is not None and left.type == "identifier":
            yield text(left), "int", inner


def _digit(site: Site, scope: Scope, found: Decoded, node: Node) -> Digit | None:
    node = strip(node)
    if node.type == "identifier" and text(node) in found.digits:
        return found.digits[text(node)]
    sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is not None and left is not None and right is not None:
        operator = text(sign)
        if node.type == "assignment_expression":
            if operator == "=":
                return _digit(site, scope, found, right)
            operator = operator.removesuffix("=")
        if operator in ("/", "%"):
            inner, by = _digit(site, scope, found, left), scope.index(right)
            return _part(inner, operator, by) if inner is not None and by is not None else None
    return _root(site, scope.index(node)) if node.type != "assignment_expression" else None


def _part(inner: Digit, operator: str, by: Polynomial) -> Digit | None:
    rest = quotient(inner.modulo, by) if inner.modulo is not None else None
    if inner.modulo is not None and rest is None:
        return None
    if operator == "/":
        return Digit(inner.axis, inner.threads, inner.over.times(by), rest)
    return Digit(inner.axis, inner.threads, inner.over, by)


def _root(site: Site, value: Polynomial | None) -> Digit | None:
    if value is None:
        return None
    for k, axis in enumerate(AXES):
        block = f"blockIdx.{axis}"
        if value == Polynomial({(block,): 1}):
            return Digit(axis, False, ONE, None)
        split = value.split(block)
        if split is None or not split[0].terms or split[1] != Polynomial({(f"threadIdx.{axis}",): 1}):
            continue
        extent = split[0]
        given = {c.block[k] for c in site.configs_after({}) or ()}
        if extent == Polynomial({(f"blockDim.{axis}",): 1}):
            return Digit(axis, True, ONE, None)
        written_extent = next(iter(extent.terms)) if len(extent.terms) == 1 else ()
        constant = extent.constant
        if constant is None and len(written_extent) == 1 and re.fullmatch(r"\w+", written_extent[0]):
            named = site.unit.macros.get(written_extent[0], site.unit.constants.get(written_extent[0], ""))
            constant = int(named) if named.strip().isdigit() else None
        if given == {constant}:
            return Digit(axis, True, ONE, None)
    return None


def _bound(scope: Scope, found: Decoded, condition: Node, *, negated: bool) -> None:
    inside, outside = (">=", "<=") if negated else ("<", ">")
    for part in operands(condition, "||" if negated else "&&"):
        sign, left, right = (part.child_by_field_name(f) for f in ("operator", "left", "right"))
        if part.type != "binary_expression" or sign is None or left is None or right is None:
            continue
        for this, other, operator in ((left, right, inside), (right, left, outside)):
            name, bound = text(strip(this)), scope.index(other)
            if text(sign) == operator and name in found.digits and bound is not None:
                found.bounds.setdefault(name, bound)


def extents(site: Site, found: Decoded, grids: Grids | None) -> Mapping[str, Polynomial | None]:
    """The number of values of each digit: its modulus, else from a guard or the grid; None where none is known."""
    totals: dict[tuple[Axis, bool], Polynomial] = {}
    for name, bound in found.bounds.items():
        digit = found.digits[name]
        if digit.modulo is None:
            totals.setdefault(digit.root, bound.times(digit.over))
    known: dict[str, Polynomial | None] = {}
    for name, digit in found.digits.items():
        if digit.modulo is not None:
            known[name] = digit.modulo
        elif digit.root in totals:
            known[name] = quotient(totals[digit.root], digit.over)
        elif not digit.threads and grids is not None:
            known[name] = _blocks(grids, digit)
        else:
            known[name] = None
    return known


def _blocks(grids: Grids, digit: Digit) -> Polynomial | None:
    shared = grids.times(digit.axis, digit.over.render())
    if shared is None or "/" in shared:
        return None
    return Polynomial({tuple(sorted(p for p in shared.split(" * ") if p != "1")): 1})


def complete(found: Decoded, chosen: Sequence[str]) -> bool:
    """Whether the chosen variables are all digits of the numbers that they are made of, each once."""
    by_root: dict[tuple[Axis, bool], list[Digit]] = {}
    for name in chosen:
        by_root.setdefault(found.digits[name].root, []).append(found.digits[name])
    used = {digit.root for digit in found.digits.values()}
    if set(by_root) != used:
        return False
    for own in by_root.values():
        at = ONE
        ordered = sorted(own, key=lambda d: sum(len(p) for p in d.over.terms))
        for k, digit in enumerate(ordered):
            if digit.over != at or (digit.modulo is None) != (k == len(ordered) - 1):
                return False
            at = at.times(digit.modulo) if digit.modulo is not None else at
    return True


def composed(found: Decoded, name: str, chosen: Sequence[str]) -> str | None:
    """A variable as a sum of the chosen ones of the same number; None where it is no whole number of them."""
    wanted = found.digits[name]
    parts = []
    for other in chosen:
        digit = found.digits[other]
        if digit.root != wanted.root:
            continue
        weight = quotient(digit.over, wanted.over)
        if weight is None:
            continue
        if wanted.modulo is not None and quotient(digit.over, wanted.over.times(wanted.modulo)) is not None:
            continue
        shown = weight.render()
        parts.append(other if shown == "1" else f"{other} * ({shown})")
    return " + ".join(parts) or None
