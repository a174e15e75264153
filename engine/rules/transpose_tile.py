"""Stage a transposed access through shared memory."""

from dataclasses import dataclass
from typing import Literal

from engine.cuda.questions import children, index_of, names, operands, strip, subscripts, text, walk
from engine.rewrite import Change, Edit, LaunchConfig, MatchedRule, Node, Site, Space, Span, Values, merge
from engine.rewrite.wording import ceil_div, reindent, term_text
from engine.rules.idioms import Grids, covered, covers, definition, element_size, packs
from engine.rules.idioms.thread_index import AXES, Axis, Index, ThreadMap, holds, thread_map, thread_uses_outside

# Edge of the square tile, rows of threads, whether elements are loaded as vectors: 32 columns fill a 128-byte line of floats, and a thread
# has four elements at least under way.
_PLANE = frozenset({"blockIdx.z"})  # a transpose in each of several planes
_SHAPES = ((64, 4, 1), (64, 8, 1), (32, 4, 1), (32, 8, 0), (64, 8, 0), (32, 4, 0), (64, 4, 0))


@dataclass(frozen=True)
class _Transposed:
    load: Node  # the subscript expression to stage
    array: str
    statement: Node
    along: Literal["x", "y"]  # the axis along which the load's neighbours stand side by side


@dataclass(frozen=True)
class _Staged:
    """A transposed load in a kernel whose threads may be laid out anew; `planes` blocks along z, where there are several."""

    site: Site
    mapping: ThreadMap
    found: _Transposed
    bounds: dict[Axis, str]
    before: tuple[LaunchConfig, ...]
    planes: str | None


@dataclass(frozen=True)
class _TileShape:
    """Edge of the tile, rows of threads (`edge` in each), elements of a vector that is loaded."""

    edge: int
    rows: int
    count: int


class TransposeTile(MatchedRule[_Staged]):
    """Read a square tile along its rows and write it along its columns, so that both sides are coalesced."""

    name = "transpose_tile"
    summary = "Stage a transposed access through a tile in shared memory"

    def match(self, site: Site) -> _Staged | None:
        if not site.sound or not site.launch_visible or not site.pointers_distinct or site.kernel.shared:
            return None
        mapping, before = thread_map(site), site.configs_after({})
        if mapping is None or before is None or mapping.style == "none":
            return None
        if {i.axis for i in mapping.indices} != {"x", "y"}:
            return None
        bounds, found = covered(site, mapping, before, frozenset({"z"})), _find(site, mapping)
        if bounds is None or found is None:
            return None
        planes = None
        if any(c.grid[2] != 1 for c in before):
            grids = Grids.of(site)
            planes = grids.times("z") if grids is not None else None
            if planes is None:
                return None
        return _Staged(site, mapping, found, bounds, before, planes)

    def space(self, match: _Staged) -> Space:
        target = match.site.target
        # A warp's store to 32 lines costs 32 sectors of which an eighth is used.
        vectors = _vector(match) > 1
        shapes = [shape for shape in _SHAPES if vectors or not shape[2]]
        choices = [
            ({"tile": edge, "rows": rows, "vector": vector}, 0.85 - 0.04 * rank)
            for rank, (edge, rows, vector) in enumerate(shapes)
        ]
        conditions = (
            f"tile * rows <= {target.max_threads_per_block} && tile * rows >= 32",
            f"tile * (tile + 1) * 8 <= {target.shared_per_block}",  # of the widest elements
        )
        figures = {"tile": (16, 32, 48, 64), "rows": (1, 2, 4, 8, 16, 32), "vector": (0, 1) if vectors else (0,)}
        return Space(choices, figures, conditions, 0.85)

    def rewrite(self, match: _Staged, values: Values) -> Change | None:
        site, before, edge, rows = match.site, match.before, int(values["tile"]), int(values["rows"])
        grid = [*(ceil_div(match.bounds[axis], edge) for axis in AXES[:2]), *([match.planes] if match.planes else [])]
        count = _vector(match) if values["vector"] else 1
        if count > 1 and edge % (rows * count):
            return None
        tiled = site.in_file(*_tiled(site, match.mapping, match.found, _TileShape(edge, rows, count)))
        edits = merge(tiled, site.launch_edits(grid=grid, block=[str(edge), str(rows)]))
        after = site.configs_after(edits) if edits is not None else None
        if edits is None or after is None or any(c.block != (edge, rows, 1) for c in after):
            return None
        if any(new.grid[2] != old.grid[2] for new, old in zip(after, before, strict=True)):
            return None
        for k, axis in enumerate(AXES[:2]):
            if not covers(site, match.bounds[axis], tuple((c.grid[k], edge) for c in after), 1):
                return None
        vectors = f", loaded as vectors of {count}" if count > 1 else ""
        return Change(f"Stage {match.found.array} through a {edge} x {edge} tile in shared memory{vectors}", edits)


def _vector(match: _Staged) -> int:
    """Elements of a vector of 16 bytes of what is staged; 1 for types of unknown size."""
    size = element_size(match.site, _kind(match.site, match.found))
    return 16 // size if size is not None and size < 16 else 1


def _kind(site: Site, found: _Transposed) -> str:
    return next(p.base for p in site.kernel.parameters if p.name == found.array)


def _find(site: Site, mapping: ThreadMap) -> _Transposed | None:
    """The one load whose neighbours run along another axis than those of the one store."""
    x, y = mapping.index("x"), mapping.index("y")
    if x is None or y is None or thread_uses_outside(site, mapping.indices, _PLANE) or len(mapping.work) != 1:
        return None
    if not x.alone or not y.alone or x.factor != 1 or y.factor != 1:
        return None
    statement = mapping.work[0]
    inner = children(statement)
    if statement.type != "expression_statement" or len(inner) != 1 or inner[0].type != "assignment_expression":
        return None
    if not site.local_only(statement) or not all(site.local_only(d) for d in mapping.derived):
        return None
    left, right = inner[0].child_by_field_name("left"), inner[0].child_by_field_name("right")
    if left is None or right is None or left.type != "subscript_expression":
        return None
    if any(n.type in ("assignment_expression", "update_expression") for n in walk(right)):
        return None
    target, index = left.child_by_field_name("argument"), index_of(left)
    pointers = {p.name for p in site.kernel.parameters if p.pointer}
    if target is None or index is None or text(target) not in pointers or text(target) in names(right):
        return None
    stored = _unit_axis(site, index, x, y)
    if stored is None:
        return None
    found = []
    for array in sorted(pointers & names(right)):
        uses = subscripts(right, array)
        if uses is None or any(array in names(d) for d in mapping.derived):
            return None
        for use in uses:
            place = index_of(use)
            axis = _unit_axis(site, place, x, y) if place is not None else None
            if axis is not None and axis != stored:
                found.append(_Transposed(use, array, statement, axis))
    return found[0] if len(found) == 1 else None


def _unit_axis(site: Site, index: Node, x: Index, y: Index) -> Literal["x", "y"] | None:
    """The axis whose index is a bare term of the array index, the other being multiplied."""
    node = strip(index)
    if node.type == "identifier" and text(node) not in (x.name, y.name):
        local = definition(site, text(node))
        if local is None:
            return None
        node = strip(local)
    terms = operands(node, "+")
    bare = [text(t) for t in terms if text(t) in (x.name, y.name)]
    others = [t for t in terms if text(t) not in (x.name, y.name)]
    if len(bare) != 1 or any(bare[0] in names(t) for t in others):
        return None
    other = y.name if bare[0] == x.name else x.name
    holders = [t for t in others if other in names(t)]
    # `y * cols`, or with planes before it `(plane * rows + y) * cols`.
    factors = operands(holders[0], "*") if len(holders) == 1 else []
    if not any(other in [text(t) for t in operands(f, "+")] for f in factors):
        return None
    return "x" if bare[0] == x.name else "y"


def _tiled(site: Site, mapping: ThreadMap, found: _Transposed, shape: _TileShape) -> list[Edit]:
    x, y = mapping.index("x"), mapping.index("y")
    if x is None or y is None:
        return []
    kind, edge, rows, count = _kind(site, found), shape.edge, shape.rows, shape.count
    outer, unit = site.indent_at(x.declaration.start_byte), site.indent_unit
    inner, deep, deepest = outer + unit, outer + unit * 2, outer + unit * 3
    taken: list[str] = []

    def name_for(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    tile, k = name_for("tile"), name_for("k")

    # Counted from a constant the loop unrolls: all loads of a thread are under way at once.
    loop = [f"{outer}for (int {k} = threadIdx.y; {k} < {edge}; {k} += {rows}) {{"]
    if edge % rows == 0:
        first = name_for("first")
        loop = [
            f"{outer}for (int {first} = 0; {first} < {edge}; {first} += {rows}) {{",
            f"{inner}const int {k} = {first} + threadIdx.y;",
        ]

    def derived(margin: str) -> list[str]:
        return [
            reindent(site.render(d.start_byte, d.end_byte), site.indent_at(d.start_byte), margin)
            for d in mapping.derived
        ]

    def phase(along: str, action: str) -> list[str]:
        """A pass over the tile whose lanes run along one axis."""
        lane, step = (x, y) if along == "x" else (y, x)
        return [
            *loop,
            f"{inner}const {lane.type} {lane.name} = blockIdx.{lane.axis} * {edge} + threadIdx.x;",
            f"{inner}const {step.type} {step.name} = blockIdx.{step.axis} * {edge} + {k};",
            *derived(inner),
            f"{inner}if ({holds(mapping)}) {{",
            action,
            f"{inner}}}",
            f"{outer}}}",
        ]

    def place(along: str, row: str = k, lane: str = "threadIdx.x") -> str:
        """The tile is indexed by (y, x), so one of the two passes walks down its columns."""
        return f"{tile}[{row}][{lane}]" if along == "x" else f"{tile}[{lane}][{row}]"

    def vectors(along: str, pack: str) -> list[str]:
        """The pass that fills the tile, by vectors where all of one exists at an aligned address."""
        lane, step = (x, y) if along == "x" else (y, x)
        at, row, n, j, own = (name_for(base) for base in ("at", "row", "n", "j", "packs"))
        load, columns, passes = text(found.load), edge // count, edge // (rows * count)
        thread = f"(threadIdx.y * {edge} + threadIdx.x)"
        start, here = f"blockIdx.{lane.axis} * {edge} + {at}", f"{n} * {rows * count} + {row}"
        condition = holds(mapping)
        both = f"({condition})" if "||" in condition or "?" in condition else condition
        whole = f"{lane.name} + {count - 1} < {term_text(mapping.bounds[lane.axis])}"
        return [
            f"{outer}const int {at} = {thread} % {columns} * {count}, {row} = {thread} / {columns};",
            f"{outer}{pack} {own}[{passes}] = {{}};",
            f"{outer}#pragma unroll",
            f"{outer}for (int {n} = 0; {n} < {passes}; ++{n}) {{",
            f"{inner}const {step.type} {step.name} = blockIdx.{step.axis} * {edge} + {here};",
            f"{inner}const {lane.type} {lane.name} = {start};",
            *derived(inner),
            f"{inner}if ({both} && {whole} && reinterpret_cast<size_t>(&{load}) % 16 == 0) {{",
            f"{deep}{own}[{n}] = *reinterpret_cast<const {pack}*>(&{load});",
            f"{inner}}} else {{",
            f"{deep}for (int {j} = 0; {j} < {count}; ++{j}) {{",
            f"{deepest}const {lane.type} {lane.name} = {start} + {j};",
            *derived(deepest),
            f"{deepest}if ({condition}) {{",
            f"{deepest}{unit}{own}[{n}].at[{j}] = {load};",
            f"{deepest}}}",
            f"{deep}}}",
            f"{inner}}}",
            f"{outer}}}",
            f"{outer}#pragma unroll",
            f"{outer}for (int {n} = 0; {n} < {passes}; ++{n}) {{",
            f"{inner}for (int {j} = 0; {j} < {count}; ++{j}) {{",
            f"{deep}{place(along, here, f'{at} + {j}')} = {own}[{n}].at[{j}];",
            f"{inner}}}",
            f"{outer}}}",
        ]

    other = "y" if found.along == "x" else "x"
    start, end = found.statement.start_byte, found.statement.end_byte
    stored = site.render(start, end, [(found.load.start_byte, found.load.end_byte, place(other))])
    kinds, edits = packs(site, [kind], count, taken) if count > 1 else ({}, [])
    filled = (
        vectors(found.along, kinds[kind])
        if count > 1
        else phase(found.along, f"{deep}{place(found.along)} = {text(found.load)};")
    )
    lines = [
        # The extra column puts the elements of a column into different banks.
        f"{outer}__shared__ {kind} {tile}[{edge}][{edge} + 1];",
        *filled,
        f"{outer}__syncthreads();",
        *phase(other, reindent(stored, site.indent_at(start), deep)),
    ]
    guard, last = mapping.guards[0], children(site.body)[-1]
    begin = site.unit.data.rfind(b"\n", 0, guard.start_byte) + 1
    return [
        *edits,
        Edit(site.line_span(x.declaration), ""),
        Edit(site.line_span(y.declaration), ""),
        *(Edit(site.line_span(d), "") for d in mapping.derived if d.start_byte < guard.start_byte),
        Edit(Span(begin, last.end_byte), "\n".join(lines)),
    ]
