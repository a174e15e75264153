"""Threads walk along z: what lies above and below an element stays in registers from one plane to the next.

Source: Micikevicius, "3D Finite Difference Computation on GPUs using CUDA" (2009): the values of a thread's own column form a queue in
registers, and each step loads one of them. Neighbours along x and y come from the cache.
"""

from dataclasses import dataclass
from math import prod

from engine.cuda.questions import number
from engine.rewrite import Change, Edit, MatchedRule, Site, Space, Values, added, grouped_text
from engine.rules.idioms import AXES, Index, covered, fits_bounds
from engine.rules.stencil.stencil_form import BodyLoop, Read, Shape, Stencil, launched, may_repeat, repeated, stencils

# Our choice: whole warps along x, so that rows are read coalesced; steps to a thread; planes that are loaded before they are needed.
_CHOICES = ((32, 8, 8, 1), (32, 8, 4, 1), (32, 4, 8, 1), (64, 4, 16, 2), (32, 8, 16, 0))
_OPEN = {"bx": (16, 32, 64, 128), "by": (1, 2, 4, 8, 16), "steps": (2, 4, 8, 16, 32), "ahead": (0, 1, 2, 4)}
_MOST_UNROLLED = 16  # steps
_MOST_QUEUED = 24  # registers of one thread


@dataclass(frozen=True)
class Column:
    """An array of which a thread reads several elements of its own column, the loads that do, and their distances along z."""

    form: Stencil
    reads: tuple[Read, ...]
    low: int
    high: int


@dataclass(frozen=True)
class Marched:
    """A kernel with an element for each thread along x, y and z, of whose arrays at least one has a column."""

    site: Site
    index: Index
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class _MarchNames:
    """The index of the next element to load, the array's last index, the queue's last place; one level of indentation."""

    at: str
    end: str
    last: int
    unit: str


class StencilMarch(MatchedRule[Marched]):
    """Several elements along z for each thread, whose own column is a queue in registers."""

    name = "stencil_march"
    summary = "March along z with a register queue"

    def match(self, site: Site) -> Marched | None:
        """The kernel whose work may be repeated along z; None where a thread reads no column."""
        if not site.launch_visible:
            return None
        columns = tuple(c for c in map(_column, stencils(site)) if c is not None)
        before = site.configs_after({})
        if not columns or before is None:
            return None
        mapping = columns[0].form.map
        index = mapping.index("z")
        bounds = covered(site, mapping, before)
        if index is None or not index.alone or mapping.style == "none" or bounds is None or len(bounds) != len(AXES):
            return None
        return Marched(site, index, columns) if may_repeat(site) else None

    def space(self, match: Marched) -> Space:
        """The block along x and y, the steps of a thread, and the planes that are loaded ahead."""
        names = tuple(_OPEN)
        choices = [
            (dict(zip(names, values, strict=True)), 0.55 - 0.03 * order) for order, values in enumerate(_CHOICES)
        ]
        limit = match.site.target.max_threads_per_block
        conditions = ("bx * by >= 64", f"bx * by <= {limit}", "ahead < steps")
        return Space(choices, _OPEN, conditions, 0.55)

    def rewrite(self, match: Marched, values: Values) -> Change | None:
        """The work in a loop along z, with the queues in front of it."""
        site, index = match.site, match.index
        bx, by, steps, ahead = (int(values[name]) for name in _OPEN)
        shape = Shape((bx, by, 1), "z", steps, True)
        mapping = match.columns[0].form.map
        fixed = (i for i in mapping.indices if i.axis != "z")
        if any(i.extent not in (f"blockDim.{i.axis}", str(shape.threads(i.axis))) for i in fixed):
            return None
        queued = sum(c.high - c.low + 1 + ahead for c in match.columns)
        if queued > _MOST_QUEUED or not fits_bounds(site, prod(shape.block)):
            return None
        name = site.fresh_names()
        step = name("step")
        before, inside = [], []
        reads: dict[tuple[int, int], str] = {}
        for count, column in enumerate(match.columns):
            queue = name("column" if not count else f"column_{column.form.array}")
            plane = name("plane")
            names = _MarchNames(
                name(f"{queue}_at"), name(f"{queue}_end"), column.high - column.low + ahead, site.indent_unit
            )
            before += _fill(column, shape, queue, plane, names)
            inside += _advance(column, queue, plane, names)
            reads |= {(r.node.start_byte, r.node.end_byte): _place(column, queue, r) for r in column.reads}
        unroll = "#pragma unroll" if steps <= _MOST_UNROLLED else "#pragma unroll 4"
        edits: list[Edit] = repeated(site, shape, index, BodyLoop(step, before, [unroll], inside), reads)
        made = launched(site, match.columns[0].form, shape, edits)
        arrays = " and ".join(c.form.array for c in match.columns)
        summary = (
            f"March along z, {steps} planes per thread of a {bx} x {by} block, with the column of {arrays} in registers"
        )
        summary += f", loaded {ahead} {'plane' if ahead == 1 else 'planes'} ahead" if ahead else ""
        return Change(summary, made) if made is not None else None


def _column(form: Stencil) -> Column | None:
    """The column of one array; None where its threads read a single plane of it, or at distances that vary."""
    if form.axes != AXES:
        return None
    reads, places = [], []
    for read in form.reads:
        across = [read.distance[a].constant for a in ("x", "y")]
        along = read.distance["z"].constant
        if across == [0, 0] and along is not None:
            reads.append(read)
            places.append(along)
    return Column(form, tuple(reads), min(places), max(places)) if len(set(places)) > 1 else None


def _fill(column: Column, shape: Shape, queue: str, first: str, names: _MarchNames) -> list[str]:
    """The queue's declaration, and the loads of all but the first step's last element into the places that it moves on from."""
    form = column.form
    kind = "long long" if form.wide else "int"
    terms = []
    for axis in reversed(AXES):
        own = added(column.low) if axis == "z" else f" + threadIdx.{axis}"
        position = f"(static_cast<{kind}>(blockIdx.{axis}) * {shape.covers(axis)}{own})"
        stride = form.strides[axis]
        terms.append(position if stride.constant == 1 else f"{position} * {grouped_text(stride.render())}")
    if form.base.terms:
        terms.append(f"({form.base.render()})")
    return [
        f"{kind} {names.at} = {' + '.join(terms)};",
        f"const {kind} {names.end} = {f'static_cast<{kind}>(1) * ' if form.wide else ''}{form.size} - 1;",
        f"{form.element} {queue}[{names.last + 1}];",
        "#pragma unroll",
        f"for (int {first} = 0; {first} < {names.last}; ++{first}) {{",
        *(names.unit + line for line in _load(form, f"{queue}[{first} + 1]", names)),
        "}",
    ]


def _advance(column: Column, queue: str, place: str, names: _MarchNames) -> list[str]:
    """The queue moves on by one plane and takes in its last element."""
    return [
        "#pragma unroll",
        f"for (int {place} = 0; {place} < {names.last}; ++{place}) {{",
        f"{names.unit}{queue}[{place}] = {queue}[{place} + 1];",
        "}",
        *_load(column.form, f"{queue}[{names.last}]", names),
    ]


def _load(form: Stencil, target: str, names: _MarchNames) -> list[str]:
    """One element of the column. Beyond the array, of which the kernel uses nothing, its first or last: that takes no branch."""
    zero = "0ll" if form.wide else "0"
    return [
        f"{target} = {form.array}[min(max({names.at}, {zero}), {names.end})];",
        f"{names.at} += {form.strides['z'].render()};",
    ]


def _place(column: Column, queue: str, read: Read) -> str:
    return f"{queue}[{read.distance['z'].plus(number(column.low), -1).render()}]"
