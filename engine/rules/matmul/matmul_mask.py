"""Where the results of a matrix product are used: tiles that a mask empties need not be computed.

A condition that is linear in row and column is at its best in one corner of a tile. Where it is false there, no result of the tile is used.
"""

from collections.abc import Iterator

from engine.cuda.questions import Polynomial, declarators, pure, pure_value, variables, written
from engine.cuda.syntax import children, inside, names, operands, strip, text
from engine.rewrite import Node, Pattern, Scope, Site, grouped
from engine.rules.matmul.matmul_form import Corner, Mask, Product, is_fixed

_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_INSTEAD = Pattern("if ($m) $v = $e;")
_MOST_STATEMENTS = 8
_WHOLE = frozenset({"identifier", "binary_expression"})  # what stands beside `||` without parentheses
_SIGNED = frozenset({"int", "long", "long long", "int32_t", "int64_t", "auto"})


def masks(site: Site, form: Product) -> tuple[Mask, ...]:
    """Comparisons of row with column under which alone the product's results are used; () where none is known."""
    if form.alone or not {i.type for i in (form.row, form.column)} <= _SIGNED:
        return ()
    scope = Scope(site.unit, site.kernel, frozenset({form.row.name, form.column.name}))
    found: dict[Mask, None] = {}
    for condition, negated in (*_guards(form), *_path(form.loop.node, site.body), *_later(site, scope, form)):
        mask = _mask(site, scope, form, condition, negated)
        if mask is not None:
            found[mask] = None
    return tuple(found)


def _guards(form: Product) -> Iterator[tuple[Node, bool]]:
    for guard in form.map.guards:
        condition = guard.child_by_field_name("condition")
        if condition is not None:
            yield from _parts(condition, form.map.style == "return")


def _parts(condition: Node, negated: bool) -> Iterator[tuple[Node, bool]]:
    """The conditions that all hold where the condition does (or where it does not)."""
    condition = strip(condition)
    if condition.type == "unary_expression" and text(condition).startswith("!"):
        argument = condition.child_by_field_name("argument")
        if argument is not None:
            yield from _parts(argument, not negated)
        return
    parts = operands(condition, "||" if negated else "&&")
    if len(parts) == 1:
        yield condition, negated
        return
    for part in parts:
        yield from _parts(part, negated)


def _path(node: Node, top: Node) -> Iterator[tuple[Node, bool]]:
    """The conditions under which a node below `top` is reached."""
    while node != top and node.parent is not None:
        above = node.parent
        condition = above.child_by_field_name("condition")
        if above.type in ("if_statement", "conditional_expression") and condition is not None and node != condition:
            consequence = above.child_by_field_name("consequence")
            yield from _parts(condition, negated=node != consequence)
        node = above


def _later(site: Site, scope: Scope, form: Product) -> Iterator[tuple[Node, bool]]:
    """The conditions under which what follows the loop uses the sum."""
    loop = form.loop.node
    value, home, after = form.target, loop.parent, loop
    for _ in range(_MOST_STATEMENTS):
        declared = scope.lookup(value, after)
        if declared is None or declared.shape != "scalar" or home is None:
            return
        uses = [n for n in scope.same(declared, value, site.body) if n.start_byte >= after.end_byte]
        paths = [list(_path(use, home)) for use in uses]
        spelled = [{(text(c), negated) for c, negated in path} for path in paths]
        yield from (part for part in paths[0] if all((text(part[0]), part[1]) in s for s in spelled)) if paths else ()
        following = after.next_named_sibling
        while following is not None and following.type == "comment":
            following = following.next_named_sibling
        if following is None:
            return
        instead = _INSTEAD.match(following)
        if instead is not None and following.child_by_field_name("alternative") is None:
            if text(instead["v"]) == value and value not in names(instead["m"]) | names(instead["e"]):
                yield from _parts(instead["m"], negated=True)
            return
        moved = _moved(following, value)
        if moved is None or (moved != value and not all(inside(use, following) for use in uses)):
            return
        value, after = moved, following


def _moved(statement: Node, value: str) -> str | None:
    """The variable that holds what a statement makes of the value: a new one, or the same; None where it does something else."""
    if statement.type == "declaration":
        parts = declarators(statement)
        single = len(parts) == 1 and len(list(variables(statement))) == 1 and pure_value(statement)
        return parts[0][0] or None if single and value in names(statement) else None
    if statement.type != "expression_statement" or len(children(statement)) != 1:
        return None
    change = children(statement)[0]
    left, right = change.child_by_field_name("left"), change.child_by_field_name("right")
    if change.type != "assignment_expression" or left is None or right is None or not pure_value(right):
        return None
    return value if text(left) == value else None


def _mask(site: Site, scope: Scope, form: Product, condition: Node, negated: bool) -> Mask | None:
    """The condition as a mask: comparisons of row with column, or such or a flag; None where it is none."""
    corners, flags = [], []
    for part in operands(condition, "&&" if negated else "||"):
        if pure(part) and names(part) <= _scalars(site):
            flags.append(f"!{grouped(part)}" if negated else text(part) if part.type in _WHOLE else grouped(part))
            continue
        corner = _corner(site, scope, form, part, negated)
        if corner is None:
            return None
        corners.append(corner)
    return Mask(tuple(corners), tuple(flags)) if corners else None


def _scalars(site: Site) -> set[str]:
    """The kernel's parameters that are numbers and stay what they are."""
    return {p.name for p in site.kernel.parameters if not p.pointer} - written(site.body)


def _corner(site: Site, scope: Scope, form: Product, condition: Node, negated: bool) -> Corner | None:
    """The comparison with its likeliest corner; None where it is none of row with column, linear in both."""
    condition = strip(condition)
    operator, one, other = (condition.child_by_field_name(f) for f in ("operator", "left", "right"))
    if condition.type != "binary_expression" or operator is None or one is None or other is None:
        return None
    sign = _OPPOSITE.get(text(operator), "") if negated else text(operator)
    left, right = scope.index(one), scope.index(other)
    if sign not in _OPPOSITE or left is None or right is None:
        return None
    own = form.row.name, form.column.name
    if not {*own} <= left.names() | right.names():
        return None
    rest = right.plus(left, -1) if sign in ("<", "<=") else left.plus(right, -1)
    factors = []
    for name in own:
        parts = rest.split(name)
        factor = parts[0].constant if parts is not None else None
        if parts is None or factor is None:
            return None
        factors.append(factor)
        rest = parts[1]
    if rest.names() & {*own} or not _signed(site, rest) or not is_fixed(site, rest):
        return None
    return Corner(left, sign, right, factors[0] > 0, factors[1] > 0)


def _signed(site: Site, value: Polynomial) -> bool:
    """Whether no parameter in it is unsigned, which would make a difference below zero a large number."""
    return all(p.base in _SIGNED for p in site.kernel.parameters if p.name in value.names())
