"""A kernel in which one thread works on one row (or column): its loops, its scalar stores, who depends on whom."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.cuda.questions import Polynomial, assigned, children, inside, names, pure_value, strip, text, walk
from engine.rewrite import ElementAccess, Node, Scope, Site
from engine.rules.idioms import Index, ThreadMap, in_parameters, thread_map, thread_uses_outside
from engine.rules.idioms.strided_loop import Reduction, StrideLoop, inclusive_loop, reductions, stride_loop

_PLACE = "loop variable"  # no C name, so it cannot collide


@dataclass(frozen=True)
class SharedLoop:
    """A loop that several threads may share, and what its iterations combine into scalars."""

    loop: StrideLoop
    reductions: tuple[Reduction, ...]


@dataclass(frozen=True)
class RowWork:
    """One thread's work on one row.

    `extent` is the number of rows in terms of the kernel's parameters. `stores` are the statements that one thread of
    a team has to do alone. `along` counts accesses in loops whose neighbours in memory are neighbours in the loop,
    `across` those whose neighbours are neighbouring rows.
    """

    index: Index
    map: ThreadMap
    guard: Node
    extent: str
    loops: tuple[SharedLoop, ...]
    stores: tuple[Node, ...]
    along: int
    across: int


class _Other(Exception):
    """The kernel has another form."""


@dataclass
class _RowReader:
    site: Site
    scope: Scope
    types: frozenset[str]
    loops: list[SharedLoop] = field(default_factory=list)
    stores: list[Node] = field(default_factory=list)

    def statements(self, found: Sequence[Node]) -> None:
        for statement in found:
            self.statement(statement)

    def statement(self, node: Node) -> None:
        match node.type:
            case "compound_statement":
                self.statements(children(node))
            case "declaration":
                if not pure_value(node):
                    raise _Other
            case "expression_statement":
                self.expression(node)
            case "if_statement":
                self.branch(node)
            case "for_statement":
                self.loop(node)
            case _ if node.type.startswith("preproc"):
                return  # an unroll pragma: nothing else passes `sound`
            case _:
                raise _Other

    def expression(self, node: Node) -> None:
        parts = children(node)
        if not parts:
            return
        target = assigned(parts[0])
        value = parts[0].child_by_field_name("right")
        if len(parts) != 1 or target is None or (value is not None and not pure_value(value)) or not pure_value(target):
            raise _Other
        target = strip(target)
        while target.type == "field_expression":
            target = strip(target.child_by_field_name("argument") or target.children[0])
        if target.type == "identifier":
            if self.scope.lookup(text(target), node) is None:
                raise _Other
        elif target.type in ("subscript_expression", "pointer_expression"):
            if node.parent is None or node.parent.type != "compound_statement":
                raise _Other
            self.stores.append(node)
        else:
            raise _Other

    def branch(self, node: Node) -> None:
        condition, then = node.child_by_field_name("condition"), node.child_by_field_name("consequence")
        other = node.child_by_field_name("alternative")
        if condition is None or then is None or not pure_value(condition):
            raise _Other
        self.statement(then)
        if other is not None:
            self.statements(children(other) if other.type == "else_clause" else [other])

    def loop(self, node: Node) -> None:
        loop = stride_loop(node) or inclusive_loop(node)
        if loop is None or loop.step != "1" or node.parent is None or node.parent.type != "compound_statement":
            raise _Other
        found = reductions(self.scope, loop, self.types)
        if found is None or names(loop.bound) & {r.name for r in found}:
            raise _Other
        self.loops.append(SharedLoop(loop, tuple(found)))


def row_work(site: Site) -> RowWork | None:
    """The kernel as one thread per row; None where it has another form, or where threads could not share a row."""
    if not site.sound or not site.manageable:
        return None
    form = thread_map(site)
    if form is None or len(form.indices) != 1 or form.indices[0].axis != "x" or form.indices[0].factor != 1:
        return None
    index = form.indices[0]
    bound = form.bounds.get("x")
    extent = in_parameters(site, bound) if bound is not None else None
    if extent is None or len(form.guards) != 1 or thread_uses_outside(site, form.indices):
        return None
    scope = Scope(site.unit, site.kernel, frozenset({index.name}))
    if not site.local_only(scope.body, site.type_names):
        return None
    if any(d.shape in ("array", "reference") for same in scope.declared.values() for d in same):
        return None
    if any(n.type == "type_qualifier" and text(n) == "volatile" for n in walk(site.kernel.node)):
        return None
    reader = _RowReader(site, scope, site.type_names)
    try:
        reader.statements(form.work)
    except _Other:
        return None
    if not reader.loops or not site.pointers_distinct:
        return None
    votes = _independent(scope, reader.loops, reader.stores, index.name)
    if votes is None:
        return None
    return RowWork(index, form, form.guards[0], extent, tuple(reader.loops), tuple(reader.stores), *votes)


def _independent(scope: Scope, loops: Sequence[SharedLoop], stores: Sequence[Node], row: str) -> tuple[int, int] | None:
    """(along, across) of `RowWork`; None where a thread of the team could read what another one writes."""
    everything = scope.uses(scope.body)
    if everything is None:
        return None
    changed = {u.array for u in everything if u.writes}
    along = across = 0
    seen: dict[str, set[tuple[Polynomial, Polynomial | None]]] = {}
    alone: set[str] = set()
    for use in everything:
        home = next((s.loop for s in loops if inside(use.node, s.loop.node)), None)
        store = next((s for s in stores if inside(use.node, s)), None)
        if home is not None and use.index is not None:
            along += _neighbours(use.index, home.variable)
            across += _neighbours(use.index, row)
        if use.array not in changed:
            continue
        if home is None:
            if store is None:
                return None  # every thread of the team would read what one of them writes
            alone.add(use.array)
            continue
        at = _own_element(scope, use, home)
        if at is None:
            return None
        seen.setdefault(use.array, set()).add(at)
    if any(len(found) != 1 for found in seen.values()) or alone & set(seen):
        return None
    return along, across


def _neighbours(index: Polynomial, name: str) -> int:
    parts = index.split(name)
    return int(parts is not None and parts[0].constant == 1)


def _own_element(scope: Scope, use: ElementAccess, loop: StrideLoop) -> tuple[Polynomial, Polynomial | None] | None:
    """The element that one iteration uses for itself alone, and where the loop starts; None where others may use it."""
    if use.index is None:
        return None
    parts = use.index.split(loop.variable)
    if parts is None or not parts[0].terms:
        return None
    local = {n for d in scope.declared.values() for n in (x.name for x in d if inside(x.node, loop.node))}
    outer = {
        n
        for d in scope.declared.values()
        for n in (x.name for x in d if not inside(x.node, loop.node) and scope.changed(x))
    }
    # A variable that changes inside or between loops would make equal spellings different elements.
    if (use.index.names() - {loop.variable}) & (local | outer) or "[" in use.index.render() or "(" in parts[0].render():
        return None
    return use.index.renamed(loop.variable, _PLACE), scope.index(loop.start)
