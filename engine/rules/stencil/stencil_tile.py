"""A block loads its elements and their halo into shared memory once; neighbours are then read from there.

Source: Micikevicius, "3D Finite Difference Computation on GPUs using CUDA" (2009); CUDA C++ Best Practices Guide,
"Shared Memory".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from engine.cuda.questions import Polynomial, children, number, walk
from engine.rewrite import Edit, Edits, Proposals, Site, Span, added, grouped_text, is_plain, merge, proposal
from engine.rewrite.wording import ceil_div, reindent
from engine.rules.idioms import AXES, Axis, Index, covered, element_size, fits_bounds
from engine.rules.stencil.stencil_form import Read, Stencil, least, may_repeat, stencils


@dataclass(frozen=True)
class Shape:
    """Threads of a block by axis; how many elements along `along` each computes."""

    block: tuple[int, int, int]
    along: Axis
    per: int
    moved: bool  # whether the launch changes

    def threads(self, axis: Axis) -> int:
        return self.block[AXES.index(axis)]

    def covers(self, axis: Axis) -> int:
        return self.threads(axis) * (self.per if axis == self.along else 1)


# Threads along x, y, z and elements per thread along the last axis: whole warps along x.
_SHAPES: dict[int, tuple[tuple[tuple[int, int, int], int], ...]] = {
    1: (((256, 1, 1), 1), ((512, 1, 1), 1), ((128, 1, 1), 1)),
    2: (((32, 4, 1), 8), ((32, 8, 1), 4), ((32, 8, 1), 1), ((64, 4, 1), 4), ((64, 4, 1), 8), ((32, 16, 1), 2)),
    3: (((32, 4, 2), 4), ((32, 8, 1), 8), ((32, 4, 4), 1), ((32, 8, 1), 4)),
}


class StencilTile:
    """Shared-memory tiles with a halo for arrays of which threads read constant-distance neighbours."""

    name = "stencil_tile"
    summary = "Tile with halo in shared memory"

    def propose(self, site: Site) -> Proposals:
        if not site.launch_visible:
            return
        for form in stencils(site)[:2]:
            for order, shape in enumerate(_shapes(site, form)):
                edits = _rewrite(site, form, shape)
                if edits is None:
                    continue
                size = " x ".join(str(shape.covers(a)) for a in form.axes)
                yield from proposal(
                    self.name,
                    f"Tile of {size} elements of {form.array} with halo in shared memory"
                    + (f", {shape.per} results per thread" if shape.per > 1 else ""),
                    edits,
                    max(0.2, min(0.85, 0.45 + 0.02 * form.points) - 0.04 * order),
                    array=form.array,
                    block="x".join(str(b) for b in shape.block),
                    per=shape.per,
                )


def _shapes(site: Site, form: Stencil) -> Iterator[Shape]:
    before = site.configs_after({})
    if before is None:
        return
    bounds = covered(site, form.map, before)
    known = {c.block for c in before}
    last = form.axes[-1]
    found = []
    if bounds is not None and set(form.axes) == {i.axis for i in form.map.indices}:
        index = form.map.index(last)
        loopable = index is not None and index.alone and form.map.style != "none" and may_repeat(site)
        for block, per in _SHAPES[len(form.axes)]:
            if (per == 1 or loopable) and all(
                i.extent in (f"blockDim.{i.axis}", str(block[AXES.index(i.axis)])) or (i.axis == last and per > 1)
                for i in form.map.indices
            ):
                found.append(Shape(block, last, per, True))
    if len(known) == 1:
        own = next(iter(known))
        if not any(s.block == own and s.per == 1 for s in found) and own[0] >= 8:
            found.append(Shape(own, last, 1, False))
    for shape in found:
        bytes_used = prod(shape.covers(a) + form.high[a] - form.low[a] for a in form.axes)
        bytes_used *= element_size(site, form.element) or 8
        if bytes_used <= site.target.shared_per_block and fits_bounds(site, prod(shape.block)):
            yield shape


def _rewrite(site: Site, form: Stencil, shape: Shape) -> Edits | None:
    body = site.body
    statements = children(body)
    indent, unit = site.indent_at(statements[0].start_byte), site.indent_unit
    if statements[0].start_point[0] == body.start_point[0]:
        return None  # no line of its own to stand before
    taken: list[str] = []

    def name(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    tile, at, element, step = name("tile"), name("tile_at"), name("element"), name("step")
    load = _load(form, shape, tile, at, element, unit)
    reads = {(r.node.start_byte, r.node.end_byte): _place(form, shape, r, tile, step) for r in form.reads}
    if shape.per == 1:
        edits = [Edit(Span(a, b), place) for (a, b), place in reads.items()]
        first = Span(body.start_byte + 1, body.start_byte + 1)
        edits.append(Edit(first, "\n" + "\n".join(indent + line for line in load)))
    else:
        index = form.map.index(shape.along)
        if index is None:
            return None
        edits = _repeated(site, shape, index, step, load, reads)
    return _launched(site, form, shape, edits)


def _repeated(
    site: Site, shape: Shape, index: Index, step: str, before: Sequence[str], reads: Mapping[tuple[int, int], str]
) -> list[Edit]:
    """The body in a loop over the thread's elements along one axis, with the text of its reads replaced by span."""
    body = site.body
    indent, unit = site.indent_at(children(body)[0].start_byte), site.indent_unit
    axis, threads = shape.along, shape.threads(shape.along)
    own = f" + threadIdx.{axis} + {step} * {threads}" if threads > 1 else f" + {step}"
    first = f"blockIdx.{axis} * {shape.covers(axis)}{own}"
    drop = site.line_span(index.declaration)
    declarator = index.declaration.child_by_field_name("declarator") or index.declaration
    declared = site.render(index.declaration.start_byte, declarator.start_byte)
    start = body.start_byte + 1
    start += len(site.unit.data[start:].split(b"\n", 1)[0]) + 1  # from the next line
    end = children(body)[-1].end_byte
    changes = [(a, b, place) for (a, b), place in reads.items()]
    changes += [(n.start_byte, n.end_byte, "continue;") for n in walk(body) if n.type == "return_statement"]
    changes.append((drop.start, drop.end, ""))
    inner = reindent(site.render(start, end, changes), indent, indent + unit)
    lines = [
        *(indent + line for line in before),
        f"{indent}for (int {step} = 0; {step} < {shape.per}; ++{step}) {{",
        f"{indent}{unit}{declared}{index.name} = {first};",
        inner,
        f"{indent}}}",
    ]
    return [Edit(Span(start, end), "\n".join(lines))]


def _launched(site: Site, form: Stencil, shape: Shape, edits: list[Edit]) -> Edits | None:
    """The kernel's edits with the launch that the shape needs; None where it cannot be written or does not come out so."""
    launch = None
    if shape.moved:
        bounds = covered(site, form.map, site.configs_after({}) or ())
        if bounds is None:
            return None
        grid = [ceil_div(least(bounds[a]), shape.covers(a)) for a in AXES if a in bounds]
        launch = site.launch_edits(grid=grid, block=[str(shape.threads(a)) for a in AXES if a in bounds])
        if launch is None:
            return None
    merged = merge(site.in_file(*edits), launch or {})
    after = site.configs_after(merged) if merged is not None else None
    return merged if after is not None and {c.block for c in after} == {shape.block} else None


def _extent(form: Stencil, shape: Shape, axis: Axis) -> int:
    return shape.covers(axis) + form.high[axis] - form.low[axis]


def _load(form: Stencil, shape: Shape, tile: str, at: str, element: str, unit: str) -> list[str]:
    """The tile's declaration and the loop in which all threads of the block fill it."""
    extents = {a: _extent(form, shape, a) for a in form.axes}
    shown = "".join(f"[{extents[a]}]" for a in reversed(form.axes))
    rank, count = "", 1
    for axis in AXES:
        if shape.threads(axis) > 1:
            rank = f"threadIdx.{axis}" + (f" * {count}" if count > 1 else "") + (f" + {rank}" if rank else "")
            count *= shape.threads(axis)
    kind = "long long" if form.wide else "int"
    places, inner = {}, 1
    for axis in form.axes:
        place = at if inner == 1 else f"{at} / {inner}"
        places[axis] = place if axis == form.axes[-1] else f"{place} % {extents[axis]}"
        inner *= extents[axis]
    terms = []
    for axis in reversed(form.axes):
        start = f"static_cast<{kind}>(blockIdx.{axis}) * {shape.covers(axis)}"
        position = f"{start} + {places[axis]}{added(form.low[axis])}"
        stride = form.strides[axis].render()
        terms.append(f"({position})" + (f" * {grouped_text(stride)}" if form.strides[axis].constant != 1 else ""))
    if form.base.terms:
        terms.append(f"({form.base.render()})")
    size = form.size if is_plain(form.size) or all(c not in form.size for c in "+-") else f"({form.size})"
    size = f"static_cast<long long>(1) * {size}" if form.wide and not is_plain(size) else size
    zero = f"static_cast<{form.element}>(0)"
    return [
        f"__shared__ {form.element} {tile}{shown};",
        "#pragma unroll 8",
        f"for (int {at} = {rank or '0'}; {at} < {inner}; {at} += {count}) {{",
        f"{unit}const {kind} {element} = {' + '.join(terms)};",
        f"{unit}{tile}{''.join(f'[{places[a]}]' for a in reversed(form.axes))} =",
        f"{unit}{unit}{element} >= 0 && {element} < {size} ? {form.array}[{element}] : {zero};",
        "}",
        "__syncthreads();",
    ]


def _place(form: Stencil, shape: Shape, read: Read, tile: str, step: str) -> str:
    """The element of the tile that a load becomes."""
    parts = []
    for axis in reversed(form.axes):
        distance: Polynomial = read.distance[axis].plus(number(form.low[axis]), -1)
        own = f"threadIdx.{axis}"
        if shape.per > 1 and axis == shape.along:
            own += f" + {step} * {shape.threads(axis)}" if shape.threads(axis) > 1 else f" + {step}"
        parts.append(f"[{own}{added(distance.render())}]")
    return tile + "".join(parts)
