"""Recognises the work of a stencil's element that does not end early: a straight line behind tests of whole numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from engine.cuda.questions import children, declarators, inside, is_unroll, names, operands, pure, strip, text, walk
from engine.rewrite import Node, Site
from engine.rules.idioms import ThreadMap, covered, element_size, inclusive_loop, stride_loop
from engine.rules.stencil.stencil_form import Stencil, may_repeat, patches, stencils

VECTOR_BYTES = 16
_MOST_TURNS = 32  # of a loop over neighbours, which is unrolled
_MOST_READS = 128  # of one element
_BRANCHES = ("conditional_expression", "lambda_expression")


@dataclass(frozen=True)
class Exit:
    """A condition under which an element's work ends early; with `holds`, unless it holds."""

    condition: Node
    holds: bool


@dataclass(frozen=True)
class InnerLoop:
    """A test of a neighbour within loops over neighbours, which all elements inside pass (`holds`: where the condition holds).

    `counters` are the loops' variables with their first and last value, `before` what the loops declare before it, `drop` the text that
    goes where it is passed.
    """

    condition: Node
    holds: bool
    counters: Mapping[str, tuple[int, int]]
    before: tuple[Node, ...]
    drop: tuple[int, int]


@dataclass(frozen=True)
class Work:
    """What one element does, in order: its declarations and statements, and before which of them it may end early."""

    kept: tuple[Node, ...]
    exits: tuple[tuple[int, Exit], ...]  # with the number of `kept` before it
    inner: tuple[InnerLoop, ...] = ()


@dataclass(frozen=True)
class Packed:
    """A kernel with an element for each thread, the arrays that it reads beside its element, and the work of an element inside."""

    site: Site
    map: ThreadMap
    work: Work
    read: tuple[Stencil, ...]
    stored: tuple[Stencil, ...]
    count: int  # elements of a vector
    deep: int  # threads of a block along z


def packed(site: Site) -> Packed | None:
    """The kernel whose elements inside have straight-line work; None for other kernels."""
    if not site.launch_visible or not stencils(site):
        return None
    found = patches(site)
    mapping = found.read[0].map
    sizes = {element_size(site, s.element) for s in (*found.read, *found.stored)}
    size = sizes.pop() if len(sizes) == 1 else None
    if not found.whole or not found.stored or size is None or VECTOR_BYTES // size < 2 or not may_repeat(site):
        return None
    if any(not i.alone for i in mapping.indices) or any(s.low[a] or s.high[a] for s in found.stored for a in s.axes):
        return None
    work = _work(site, mapping)
    if work is None or covered(site, mapping, site.configs_after({}) or ()) is None:
        return None
    read = tuple(s for s in found.read if any(inside(r.node, part) for r in s.reads for part in work.kept))
    deep = {c.block[2] for c in site.configs}
    match = Packed(site, mapping, work, read, found.stored, VECTOR_BYTES // size, max(deep))
    return match if len(deep) == 1 and _plain(match) else None


def _work(site: Site, mapping: ThreadMap) -> Work | None:
    """The work of an element that does not end early; None where it is no straight line."""
    kept: list[Node] = []
    exits: list[tuple[int, Exit]] = []
    inner: list[InnerLoop] = []
    drop = {i.declaration for i in mapping.indices}

    def take(statements: Sequence[Node]) -> bool:
        for k, statement in enumerate(statements):
            condition, then, other = (
                statement.child_by_field_name(f) for f in ("condition", "consequence", "alternative")
            )
            if statement in drop:
                continue
            if statement.type == "if_statement" and condition is not None and then is not None:
                if other is None and _leaves(then):
                    exits.append((len(kept), Exit(condition, holds=False)))
                    continue
                if k + 1 < len(statements):
                    return False
                # Of two branches the border's has fewer accesses.
                border = children(other)[0] if other is not None and other.type == "else_clause" else other
                holds = border is None or _accesses(then) >= _accesses(border)
                exits.append((len(kept), Exit(condition, holds)))
                branch = then if holds or border is None else border
                return take(children(branch) if branch.type == "compound_statement" else [branch])
            if is_unroll(statement):
                continue
            looped = _loop(site, statement, {}, ()) if statement.type == "for_statement" else []
            if looped is None or statement.type not in ("declaration", "expression_statement", "for_statement"):
                return False
            inner.extend(looped)
            kept.append(statement)
        return True

    if not take(children(site.body)):
        return None
    # Nothing is done before the last early end but to declare.
    last = exits[-1][0] if exits else 0
    if any(part.type != "declaration" for part in kept[:last]):
        return None
    return Work(tuple(kept), tuple(exits), tuple(inner))


def _loop(
    site: Site, statement: Node, counters: Mapping[str, tuple[int, int]], before: tuple[Node, ...]
) -> list[InnerLoop] | None:
    """The tests within a loop whose first and last value are numbers; None where its body is more than tests of neighbours and sums."""
    exclusive = stride_loop(statement)
    loop = exclusive or inclusive_loop(statement)
    first, last = (site.constant(loop.start), site.constant(loop.bound)) if loop is not None else (None, None)
    if loop is None or loop.step != "1" or first is None or last is None or last - first > _MOST_TURNS:
        return None
    return _tests(site, _statements(loop.body), {**counters, loop.variable: (first, last - bool(exclusive))}, before)


def _tests(
    site: Site, statements: Sequence[Node], counters: Mapping[str, tuple[int, int]], before: tuple[Node, ...]
) -> list[InnerLoop] | None:
    found: list[InnerLoop] = []
    for statement in statements:
        condition, then = statement.child_by_field_name("condition"), statement.child_by_field_name("consequence")
        inner: list[InnerLoop] | None = []
        if statement.type == "declaration":
            before = (*before, statement)
        elif statement.type == "for_statement":
            inner = _loop(site, statement, counters, before)
        elif statement.type == "if_statement" and condition is not None and then is not None:
            ends = [n.type for n in _statements(then)] == ["continue_statement"]
            if statement.child_by_field_name("alternative") is not None or not _convex(condition, not ends):
                return None
            drop = (statement.start_byte, statement.end_byte if ends else then.start_byte)
            found.append(InnerLoop(condition, not ends, counters, before, drop))
            inner = [] if ends else _tests(site, _statements(then), counters, before)
        elif statement.type != "expression_statement" and not is_unroll(statement):
            return None
        if inner is None:
            return None
        found += inner
    return found


def _statements(body: Node) -> list[Node]:
    return children(body) if body.type == "compound_statement" else [body]


def _convex(condition: Node, holds: bool) -> bool:
    """Whether what holds at the ends of the loops holds between them: all of some comparisons of sums, or none of some."""
    parts = operands(
        strip(children(condition)[0] if condition.type == "condition_clause" else condition), "&&" if holds else "||"
    )
    for part in (strip(p) for p in parts):
        sign = part.child_by_field_name("operator")
        if part.type != "binary_expression" or sign is None or text(sign) not in ("<", "<=", ">", ">="):
            return False
        if any(
            n.type == "binary_expression" and text(n.child_by_field_name("operator") or n) not in "+-"
            for side in children(part)
            for n in walk(side)
        ):
            return False
    return True


def _accesses(statement: Node) -> int:
    return sum(n.type == "subscript_expression" for n in walk(statement))


def _leaves(statement: Node) -> bool:
    final = children(statement)[-1] if statement.type == "compound_statement" and children(statement) else statement
    return final.type == "return_statement"


def _plain(match: Packed) -> bool:
    """Whether early ends depend on whole numbers alone, each array is stored once, and no branch decides on a load."""
    reads = [r for s in match.read for r in s.reads if any(inside(r.node, part) for part in match.work.kept)]
    if any(z.constant is None for r in reads for axis, z in r.distance.items() if axis == "z"):
        return False
    if sum(prod(b - a + 1 for a, b in r.ranges.values()) for r in reads) > _MOST_READS:
        return False
    for s in match.stored:
        mine = [r.node for r in s.reads if any(inside(r.node, part) for part in match.work.kept)]
        if len(mine) != 1 or not _statement_of(mine[0], match.work):
            return False
    for read in reads:
        above = read.node.parent
        while above is not None and above not in match.work.kept:
            sign = above.child_by_field_name("operator")
            if above.type in _BRANCHES or (sign is not None and text(sign) in ("&&", "||")):
                return False
            above = above.parent
    if any(inner_conditions(match, test) is None for test in match.work.inner):
        return False
    return all(conditions(match, number) is not None for number in range(len(match.work.exits)))


def _statement_of(target: Node, work: Work) -> bool:
    """Whether the access is what one of the statements assigns to, by `=`."""
    parent = target.parent
    sign = parent.child_by_field_name("operator") if parent is not None else None
    if parent is None or parent.type != "assignment_expression" or sign is None or text(sign) != "=":
        return False
    return parent.child_by_field_name("left") == target and parent.parent in work.kept


def conditions(match: Packed, number: int) -> list[Node] | None:
    """The declarations that an early end's condition needs, in order; None where it needs more than whole numbers."""
    before, end = match.work.exits[number]
    return _needed(end.condition, match.work.kept[:before])


def inner_conditions(match: Packed, test: InnerLoop) -> list[Node] | None:
    """The same of a test within loops."""
    return _needed(test.condition, (*match.work.kept, *test.before))


def _needed(condition: Node, before: Sequence[Node]) -> list[Node] | None:
    if not pure(condition) or _loads(condition):
        return None
    wanted = names(condition)
    needed = []
    for part in reversed(before):
        if part.type == "declaration" and wanted & {name for name, _ in declarators(part)}:
            if _loads(part) or not pure(part):
                return None
            wanted |= names(part)
            needed.append(part)
    return needed[::-1]


def _loads(node: Node) -> bool:
    return any(n.type in ("subscript_expression", "pointer_expression", "call_expression") for n in walk(node))
