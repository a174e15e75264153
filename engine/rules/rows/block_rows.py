"""Let each thread of a block that shares a tile do the work of several rows of threads.

Source of the method: G. Ruetsch and P. Micikevicius, "Optimizing Matrix Transpose in CUDA" (2009): a tile of 32 x 32 elements by 32 x 8
threads. Fewer threads wait at each barrier, their index arithmetic is shared, and each has several loads in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.cuda.effects import assigned
from engine.cuda.syntax import called, children, names, strip, text, walk
from engine.rewrite import Declared, Edit, Edits, Node, Proposal, Site, Span, merge, proposal
from engine.rewrite.wording import reindent
from engine.rules.idioms.blocks import WARP, is_barrier

_FACTORS = (4, 2, 8)
_LEAST_THREADS = 64
_ROW = "threadIdx.y"
_LOADS = ("subscript_expression", "call_expression", "pointer_expression", "assignment_expression", "update_expression")


@dataclass(frozen=True)
class _Value:
    """What a name stands for, to be written once more: `int row = …`."""

    declared: Declared
    value: Node


# What the loops' earlier statements declare, by name; None where it cannot be written once more.
_Known = dict[str, _Value | None]


@dataclass
class _Segment:
    """What a thread does between two barriers: the statements of the loop over its rows, and definitions made once more in front."""

    looped: list[Node] = field(default_factory=list)
    again: dict[str, _Value] = field(default_factory=dict)
    redefined: list[tuple[Node, Declared]] = field(default_factory=list)  # assignments that become declarations
    own: set[str] = field(default_factory=set)  # the names that the loop declares


class _Refused(Exception):
    pass


class BlockRows:
    """Blocks of fewer rows of threads, each thread looping over the rows between any two barriers."""

    name = "block_rows"
    summary = "Let each thread do the work of several rows of its block"

    def propose(self, site: Site) -> Iterator[Proposal]:
        if not site.sound or not site.launch_visible or not site.manageable or not site.kernel.shared:
            return
        shapes = {c.block for c in site.configs_after({}) or ()}
        if len(shapes) != 1:
            return
        ((columns, rows, deep),) = shapes
        if deep != 1 or rows == 1:
            return
        try:
            segments = _segments(site)
        except _Refused:
            return
        for rank, factor in enumerate(_FACTORS):
            threads = columns * rows // factor
            if rows % factor or threads < _LEAST_THREADS or threads % WARP:
                continue
            yield from proposal(
                self.name,
                f"Let each thread do the work of {factor} rows of its block, {columns} x {rows // factor} threads",
                _edits(site, segments, columns, rows, factor),
                0.42 - 0.05 * rank,
                factor=factor,
            )


def _segments(site: Site) -> list[_Segment]:
    """Raises _Refused."""
    body, scope = site.body, site.scope
    statements = children(body)
    barriers = [n for n in statements if is_barrier(site, n)]
    everywhere = [n for n in walk(body) if n.type == "call_expression" and "sync" in called(n)]
    if not barriers or len(everywhere) != len(barriers) or "".join(text(body).split()).count("blockDim.y"):
        raise _Refused
    if not any(_is_row(n) for n in walk(body)):
        raise _Refused
    top = {d.name: d for found in scope.declared.values() for d in found if d.node in statements}
    if any(len(scope.declared[name]) > 1 for name in top):
        raise _Refused
    changed = {text(strip(t)) for n in walk(body) if (t := assigned(n)) is not None and strip(t).type == "identifier"}
    moving = _moving(statements, top)
    segments = [_Segment()]
    known: _Known = {}
    for statement in statements:
        if is_barrier(site, statement):
            segments.append(_Segment())
            continue
        segment = segments[-1]
        declared = [d for d in top.values() if d.node == statement]
        if declared and _stays(declared, changed, moving) and not segment.looped:
            continue
        _take(site, segment, statement, declared, top, known)
    if not any(s.looped for s in segments):
        raise _Refused
    return segments


def _moving(statements: Sequence[Node], top: dict[str, Declared]) -> set[str]:
    """The names whose values differ between the rows of a block."""
    found: set[str] = set()
    while True:
        before = len(found)
        for statement in statements:
            for node in walk(statement):
                target = assigned(node)
                if target is None or strip(target).type != "identifier":
                    continue
                if any(_is_row(n) for n in walk(node)) or names(node) & found:
                    found.add(text(strip(target)))
        for one in top.values():
            if one.value is not None and (any(_is_row(n) for n in walk(one.value)) or names(one.value) & found):
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
    site: Site, segment: _Segment, statement: Node, declared: Sequence[Declared], top: dict[str, Declared], known: _Known
) -> None:  # fmt: skip
    """Add a statement to the loop of a segment."""
    if not site.local_only(statement) or any(n.type == "return_statement" for n in walk(statement)):
        raise _Refused
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
            raise _Refused
        _define(known, changed, None)
    segment.looped.append(statement)
    if right is not None:
        if name not in top or name in names(right):
            raise _Refused
        if name not in segment.own | segment.again.keys():
            segment.redefined.append((statement, top[name]))
            segment.own.add(name)
        _define(known, name, _Value(top[name], right) if _plain(right) and top[name].shape == "scalar" else None)
    for one in declared:
        if one.shape not in ("scalar", "pointer") or not one.alone:
            raise _Refused
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


def _again(segment: _Segment, name: str, known: _Known) -> None:
    """Have a name of an earlier segment defined once more in front of this one's rows. Raises _Refused."""
    if name in segment.again or name in segment.own:
        return
    found = known[name]
    if found is None:
        raise _Refused
    for other in sorted(names(found.value) & known.keys()):
        _again(segment, other, known)
    segment.again[name] = found


def _is_row(node: Node) -> bool:
    return node.type == "field_expression" and "".join(text(node).split()) == _ROW


def _rows_as(name: str, node: Node) -> list[tuple[int, int, str]]:
    return [(n.start_byte, n.end_byte, name) for n in walk(node) if _is_row(n)]


def _edits(site: Site, segments: Sequence[_Segment], columns: int, rows: int, factor: int) -> Edits | None:
    unit, edits = site.indent_unit, list[Edit]()
    first = site.fresh("first")
    line = site.fresh("line", (first,))
    for segment in segments:
        if not segment.looped:
            continue
        begin, end = segment.looped[0].start_byte, segment.looped[-1].end_byte
        outer = site.indent_at(begin)
        again = "".join(
            f"{outer}{unit}{one.declared.type} {name} = "
            f"{site.render(one.value.start_byte, one.value.end_byte, _rows_as(line, one.value))};\n"
            for name, one in segment.again.items()
        )
        changes = [change for statement in segment.looped for change in _rows_as(line, statement)]
        for statement, declared in segment.redefined:
            changes.append((statement.start_byte, statement.start_byte, declared.type.removeprefix("const ") + " "))
        work = reindent(outer + site.render(begin, end, changes), outer, outer + unit)
        loop = (
            f"#pragma unroll\n{outer}for (int {first} = 0; {first} < {rows}; {first} += {rows // factor}) {{\n"
            f"{outer}{unit}const int {line} = {first} + {_ROW};\n{again}{work}\n{outer}}}"
        )
        edits.append(Edit(Span(begin, end), loop))
    return merge(site.in_file(*edits), site.launch_edits(block=[str(columns), str(rows // factor)]))
