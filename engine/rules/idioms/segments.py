"""What the threads of a block do between two barriers, to be done by fewer threads in loops over those that they replace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.cuda.questions import assigned, called, children, compact, inside, is_unroll, names, strip, text, walk
from engine.rewrite import Declared, Edit, Edits, Node, Site, Span, merge, reindent
from engine.rules.idioms.blocks import is_barrier

_LOADS = ("subscript_expression", "call_expression", "pointer_expression", "assignment_expression", "update_expression")


@dataclass(frozen=True)
class _Value:
    """What a name stands for, to be written once more: `int row = …`."""

    declared: Declared
    value: Node


_NONE: Mapping[Node, str] = {}
# What the loops' earlier statements declare, by name; None where it cannot be written once more.
_Known = dict[str, _Value | None]


@dataclass
class BarrierSegment:
    """What a thread does between two barriers: the statements of the loop over its rows, and definitions made once more in front."""

    looped: list[Node] = field(default_factory=list)
    again: dict[str, _Value] = field(default_factory=dict)
    redefined: list[tuple[Node, Declared]] = field(default_factory=list)  # assignments that become declarations
    own: set[str] = field(default_factory=set)  # the names that the loop declares
    # Declarations that are the same for all rows move in front of the loop
    ahead: list[Node] = field(default_factory=list)


class NoSegments(Exception):
    pass


def segments_of(site: Site, axis: str, between: Sequence[Node] = ()) -> list[BarrierSegment]:
    """The work between two barriers of the block; `between` are statements that hold barriers of their own.

    Raises NoSegments where threads along the axis cannot be replaced by loops, or none differs from another.
    """
    body, scope = site.body, site.scope
    statements = children(body)
    barriers = [n for n in statements if is_barrier(site, n)]
    everywhere = [
        n
        for n in walk(body)
        if n.type == "call_expression" and "sync" in called(n) and not any(inside(n, held) for held in between)
    ]
    if not (barriers or between) or len(everywhere) != len(barriers) or not any(_is_own(n, axis) for n in walk(body)):
        raise NoSegments
    top = {d.name: d for found in scope.declared.values() for d in found if d.node in statements}
    if any(len(scope.declared[name]) > 1 for name in top):
        raise NoSegments
    changed = {text(strip(t)) for n in walk(body) if (t := assigned(n)) is not None and strip(t).type == "identifier"}
    moving = _moving(statements, top, axis)
    segments = [BarrierSegment()]
    known: _Known = {}
    for statement in statements:
        if is_unroll(statement) and statement.next_named_sibling in between:
            continue
        if is_barrier(site, statement) or statement in between:
            segments.append(BarrierSegment())
            continue
        segment = segments[-1]
        declared = [d for d in top.values() if d.node == statement]
        if declared and _stays(declared, changed, moving):
            if not segment.looped:
                continue
            if not names(statement) & segment.own:
                segment.ahead.append(statement)
                continue
        _take(site, segment, statement, declared, top, known)
    if not any(s.looped for s in segments):
        raise NoSegments
    return segments


def _moving(statements: Sequence[Node], top: dict[str, Declared], axis: str) -> set[str]:
    """The names whose values differ along the axis."""
    found: set[str] = set()
    while True:
        before = len(found)
        for statement in statements:
            for node in walk(statement):
                target = assigned(node)
                if target is None or strip(target).type != "identifier":
                    continue
                if any(_is_own(n, axis) for n in walk(node)) or names(node) & found:
                    found.add(text(strip(target)))
        for one in top.values():
            if one.value is not None and (any(_is_own(n, axis) for n in walk(one.value)) or names(one.value) & found):
                found.add(one.name)
        if len(found) == before:
            return found


def _stays(declared: Sequence[Declared], changed: set[str], moving: set[str]) -> bool:
    """Whether a declaration is as good once for all rows: the same for each, never changed, and nothing is loaded."""
    if any("__shared__" in text(d.node) for d in declared):
        return True
    return all(d.value is not None and d.name not in changed | moving and _plain(d.value) for d in declared)


def _plain(value: Node) -> bool:
    """Whether an expression is index arithmetic alone."""
    return not any(n.type in _LOADS for n in walk(value))


def _take(
    site: Site, segment: BarrierSegment, statement: Node, declared: Sequence[Declared], top: dict[str, Declared], known: _Known
) -> None:  # fmt: skip
    """Add a statement to the loop of a segment."""
    if not site.local_only(statement) or any(n.type == "return_statement" for n in walk(statement)):
        raise NoSegments
    whole, name, right = _assignment(statement)
    used = names(right) if right is not None else names(statement)
    for other in sorted((used & known.keys()) - segment.own - {d.name for d in declared}):
        _again(segment, other, known)
    for node in walk(statement):
        changes = assigned(node)
        if changes is None or strip(changes).type != "identifier" or node == whole:
            continue
        changed = text(strip(changes))
        # What one row's work leaves in a variable must not be there for another's.
        if changed in top and changed not in segment.own | segment.again.keys():
            raise NoSegments
        _define(known, changed, None)
    segment.looped.append(statement)
    if right is not None:
        if name not in top or name in names(right):
            raise NoSegments
        if name not in segment.own | segment.again.keys():
            segment.redefined.append((statement, top[name]))
            segment.own.add(name)
        _define(known, name, _Value(top[name], right) if _plain(right) and top[name].shape == "scalar" else None)
    for one in declared:
        if one.shape not in ("scalar", "pointer") or not one.alone:
            raise NoSegments
        segment.own.add(one.name)
        plain = one.value is not None and one.shape == "scalar" and _plain(one.value)
        _define(known, one.name, _Value(one, one.value) if plain and one.value is not None else None)


def _assignment(statement: Node) -> tuple[Node | None, str, Node | None]:
    """The expression of `name = value;`, the name and the value; None for other statements."""
    inner = children(statement)
    whole = inner[0] if statement.type == "expression_statement" and len(inner) == 1 else None
    if whole is None or whole.type != "assignment_expression":
        return None, "", None
    left, sign, right = (whole.child_by_field_name(f) for f in ("left", "operator", "right"))
    if left is None or left.type != "identifier" or sign is None or text(sign) != "=":
        return None, "", None
    return whole, text(left), right


def _define(known: _Known, name: str, value: _Value | None) -> None:
    """A name gets a value; what was made of its earlier one cannot be made once more."""
    for other, found in list(known.items()):
        if found is not None and name in names(found.value):
            known[other] = None
    known[name] = value


def _again(segment: BarrierSegment, name: str, known: _Known) -> None:
    """Have a name of an earlier segment defined once more in front of this one's rows. Raises NoSegments."""
    if name in segment.again or name in segment.own:
        return
    found = known[name]
    if found is None:
        raise NoSegments
    for other in sorted(names(found.value) & known.keys()):
        _again(segment, other, known)
    segment.again[name] = found


def _is_own(node: Node, axis: str) -> bool:
    return node.type == "field_expression" and compact(node) == f"threadIdx.{axis}"


def thread_changes(node: Node, values: Mapping[str, str]) -> list[tuple[int, int, str]]:
    """Changes for `render` that put values for CUDA's own, as `threadIdx.y`, below the node."""
    fields = (n for n in walk(node) if n.type == "field_expression" and compact(n) in values)
    return [(n.start_byte, n.end_byte, values[compact(n)]) for n in fields]


def looped(
    site: Site, found: Sequence[BarrierSegment], loop: str, values: Mapping[str, str], put: Mapping[Node, str] = _NONE
) -> list[Edit]:
    """Each segment's work in a loop that begins with the lines `loop`, with values for CUDA's own in it, and for the nodes `put`."""
    unit, edits = site.indent_unit, list[Edit]()
    for segment in found:
        if not segment.looped:
            continue
        begin, end = segment.looped[0].start_byte, segment.looped[-1].end_byte
        outer = site.indent_at(begin)
        again = "".join(
            f"{outer}{unit}{one.declared.type} {name} = "
            f"{site.render(one.value.start_byte, one.value.end_byte, thread_changes(one.value, values))};\n"
            for name, one in segment.again.items()
        )
        changes = [
            change
            for statement in segment.looped
            for change in thread_changes(statement, values)
            if not any(node.start_byte <= change[0] < node.end_byte for node in put)
        ]
        moved = [n for n in segment.ahead if n.end_byte <= end]
        other = [(n.start_byte, n.end_byte, by) for n, by in put.items() if begin <= n.start_byte < end]
        changes += [c for c in other if not any(n.start_byte <= c[0] < n.end_byte for n in moved)]
        changes += [(site.line_span(n).start, site.line_span(n).end, "") for n in moved]
        inner = ([c for c in other if n.start_byte <= c[0] < n.end_byte] for n in moved)
        above = "".join(
            f"{site.render(n.start_byte, n.end_byte, own)}\n{outer}" for n, own in zip(moved, inner, strict=True)
        )
        for statement, declared in segment.redefined:
            changes.append((statement.start_byte, statement.start_byte, declared.type.removeprefix("const ") + " "))
        work = reindent(outer + site.render(begin, end, changes), outer, outer + unit)
        first, second = loop.split("\n")
        edits.append(
            Edit(
                Span(begin, end),
                f"{above}#pragma unroll\n{outer}{first}\n{outer}{unit}{second}\n{again}{work}\n{outer}}}",
            )
        )
    return edits


def fewer_threads(
    site: Site, found: Sequence[BarrierSegment], threads: int, items: int, between: Sequence[Edit],
    put: Mapping[Node, str] = _NONE,
) -> Edits | None:  # fmt: skip
    """Blocks of so many threads, each with `items` elements of the segments' work; `between` are the edits of what stands between them.

    `put` are nodes around it that get another text, which may use the loops' variables (`first` and `item` as `Site.fresh` names them).
    None where a launch would get another grid or other shared memory, which may be made of the block's size.
    """
    elements = str(threads * items)
    first = site.fresh("first")
    item = site.fresh("item", (first,))
    loop = f"for (int {first} = 0; {first} < {elements}; {first} += {threads}) {{\nconst int {item} = {first} + threadIdx.x;"
    values = {"threadIdx.x": item, "blockDim.x": elements}
    edits = [*looped(site, found, loop, values, put), *between]
    spans = [(Span(node.start_byte, node.end_byte), by) for node, by in put.items()]
    edits += [Edit(at, by) for at, by in spans if not any(edit.span.contains(at) for edit in edits)]
    edits += [
        Edit(Span(begin, end), written)
        for begin, end, written in thread_changes(site.body, {"blockDim.x": elements})
        if not any(edit.span.contains(Span(begin, end)) for edit in edits)
    ]
    merged = merge(site.in_file(*edits), site.launch_edits(block=[str(threads)]))
    before, after = site.configs_after({}), site.configs_after(merged) if merged is not None else None
    if before is None or after is None:
        return None
    alike = [(c.grid, c.shared_bytes) for c in before] == [(c.grid, c.shared_bytes) for c in after]
    return merged if alike else None
