"""Load and store several neighbouring elements at once in loops over segments, such as the rows of a sparse matrix.

A segment begins anywhere: vectors start at multiples of their size, and those that reach beyond the segment are taken element by element.
"""

from dataclasses import dataclass

from engine.cuda.syntax import operands, strip, text, walk
from engine.rewrite import Edit, Edits, Node, Proposals, Site, Span, merge, proposal
from engine.rules.idioms import StrideLoop, aligned, definition, pack_bytes, packs, widths, with_pragma
from engine.rules.rows import row_vectorize
from engine.rules.rows.row_vectorize import RowUse, VectorLoop

_LOOPS = frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"})


@dataclass(frozen=True)
class _Segment:
    """A loop in which the threads of a team go from `begin` on; `first` is a thread's number in the team ("": it is alone)."""

    loop: StrideLoop
    begin: str
    first: str


class SegmentVectorize:
    """Vector loads and stores in every loop of a kernel whose threads share the same segment."""

    name = "segment_vectorize"
    summary = "Vector loads and stores along a segment"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.pointers_distinct:
            return
        for order, segments in enumerate(row_vectorize.alike_loops(site, lambda loop: _segment(site, loop))):
            loops = [s.loop for s in segments]
            uses = row_vectorize.vector_uses(site, loops, together=segments[0].first != "")
            if uses is None:
                continue
            sizes = [u.size for listed in uses for u in listed]
            for rank, count in enumerate(widths(sizes)):
                yield from proposal(
                    self.name,
                    f"Vector loads and stores of {count} elements from {segments[0].begin} to {text(loops[0].bound)}",
                    _vectorized(site, segments, uses, count),
                    (0.45 if segments[0].first else 0.3) - 0.1 * rank - 0.05 * order,
                    width=count,
                    line=site.unit.line_of(loops[0].node.start_byte),
                )


def _segment(site: Site, loop: StrideLoop) -> _Segment | None:
    """The loop as one over a segment that a warp or a block shares, or that a thread has alone; None for others."""
    if any(n.type in _LOOPS for n in walk(loop.body)):
        return None
    terms = operands(strip(loop.start), "+")
    own = [t for t in terms if row_vectorize.shared_by(site, t, loop.step) in ("warp", "block")]
    rest = [t for t in terms if t not in own]
    if loop.step == "1" and not own and _loaded(site, loop.start) and _loaded(site, loop.bound):
        return _Segment(loop, text(strip(loop.start)), "")
    if len(own) != 1 or not rest:
        return None
    begin = text(strip(rest[0])) if len(rest) == 1 else " + ".join(text(t) for t in rest)
    return _Segment(loop, begin, text(own[0]))


def _loaded(site: Site, end: Node) -> bool:
    """Whether an end of a segment is an element of an array, or a variable that holds one."""
    node = strip(end)
    origin = definition(site, text(node)) if node.type == "identifier" else node
    return origin is not None and any(n.type == "subscript_expression" for n in walk(origin))


def _vectorized(site: Site, segments: list[_Segment], found: list[list[RowUse]], count: int) -> Edits | None:
    taken: list[str] = []

    def name_for(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    flat = [u for listed in found for u in listed]
    first = segments[0]
    kind, unit = first.loop.type, site.indent_unit
    vector, lane = name_for(f"{first.loop.variable}{count}"), name_for("k")
    begin, end, flag = name_for("begin"), name_for("end"), name_for("aligned")
    named = {key: name_for(f"{key[0]}_pack") for key in dict.fromkeys(u.key for u in flat)}
    kinds, edits = packs(site, [u.kind for u in flat], count, taken)
    condition = aligned(list(dict.fromkeys((u.address, pack_bytes(site, u.kind, count)) for u in flat)))
    shift = count.bit_length() - 1
    for number, (segment, uses) in enumerate(zip(segments, found, strict=True)):
        loop = segment.loop
        outer = site.indent_at(loop.node.start_byte)
        inner, deep = outer + unit, outer + 2 * unit
        lines = []
        if number == 0:
            lines = [
                f"const {kind} {begin} = {first.begin}, {end} = {text(loop.bound)};",
                f"{outer}const bool {flag} = {condition};",
            ]
        update = f"{vector} += {loop.step}" if segment.first else f"++{vector}"
        start = f"({begin} >> {shift}) + {segment.first}" if segment.first else f"{begin} >> {shift}"
        place = f"{vector} * {count}"
        lines += [
            f"{outer if lines else ''}for ({loop.type} {vector} = {start}; {place} < {end}; {update}) {{",
            f"{inner}if ({flag} && {place} >= {begin} && {place} + {count} <= {end}) {{",
            *row_vectorize.vector_body(site, loop, uses, VectorLoop(count, vector, lane, named, kinds), deep),
            f"{inner}}} else {{  // at an end of the segment",
            f"{deep}for ({loop.type} {loop.variable} = {place}; {loop.variable} < {place} + {count}; ++{loop.variable}) {{",
            f"{deep}{unit}if ({loop.variable} >= {begin} && {loop.variable} < {end}) {{",
            row_vectorize.loop_body(site, loop, [], deep + 2 * unit),
            f"{deep}{unit}}}",
            f"{deep}}}",
            f"{inner}}}",
            f"{outer}}}",
        ]
        edits = [*edits, Edit(Span(with_pragma(loop.node), loop.node.end_byte), "\n".join(lines))]
    return merge(site.in_file(*edits))
