"""Threads walk along z: what lies above and below an element stays in registers from one plane to the next.

Source: Micikevicius, "3D Finite Difference Computation on GPUs using CUDA" (2009): the values of a thread's own column form a queue in
registers, and each step loads one of them. Neighbours along x and y come from the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from engine.cuda.polynomial import Polynomial, number
from engine.rewrite import Change, Edit, MatchedRule, Site, Space, Values
from engine.rewrite.wording import is_plain
from engine.rules.coarsen import covered
from engine.rules.idioms.thread_index import AXES, Index
from engine.rules.rows.row_parallel import fits_bounds
from engine.rules.stencil.stencil_block import Loop, Shape, launched, may_repeat, repeated
from engine.rules.stencil.stencil_form import Read, Stencil, stencils

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
            first, own = name("plane"), name(f"{queue}_at")
            last = column.high - column.low + ahead
            before += _fill(column, shape, queue, own, first, last, site.indent_unit)
            inside += _advance(column, queue, own, (step, first), last, site.indent_unit)
            reads |= {(r.node.start_byte, r.node.end_byte): _place(column, queue, r) for r in column.reads}
        unroll = "#pragma unroll" if steps <= _MOST_UNROLLED else "#pragma unroll 4"
        edits: list[Edit] = repeated(site, shape, index, Loop(step, before, [unroll], inside), reads)
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


def _fill(column: Column, shape: Shape, queue: str, own: str, first: str, last: int, unit: str) -> list[str]:
    """The queue's declaration, and the loads of all but the first step's last element into the places that it moves on from."""
    form = column.form
    kind = "long long" if form.wide else "int"
    terms = []
    for axis in ("y", "x"):
        position = f"(static_cast<{kind}>(blockIdx.{axis}) * {shape.covers(axis)} + threadIdx.{axis})"  # type: ignore[arg-type]
        terms.append(_times(position, form.strides[axis]))  # type: ignore[index]
    lowest = f"(static_cast<{kind}>(blockIdx.z) * {shape.per}{_shift(column.low)})"
    terms.insert(0, _times(lowest, form.strides["z"]))
    if form.base.terms:
        terms.append(f"({form.base.render()})")
    at = f"{own} + {first} * {_stride(form.strides['z'])}"
    return [
        f"const {kind} {own} = {' + '.join(terms)};",
        f"{form.element} {queue}[{last + 1}];",
        "#pragma unroll",
        f"for (int {first} = 0; {first} < {last}; ++{first}) {{",
        *(unit + line for line in _load(form, f"{queue}[{first} + 1]", f"{queue}_element", at)),
        "}",
    ]


def _advance(column: Column, queue: str, own: str, counters: tuple[str, str], last: int, unit: str) -> list[str]:
    """The queue moves on by one plane and takes in its last element."""
    step, place = counters
    at = f"{own} + ({step} + {last}) * {_stride(column.form.strides['z'])}"
    return [
        "#pragma unroll",
        f"for (int {place} = 0; {place} < {last}; ++{place}) {{",
        f"{unit}{queue}[{place}] = {queue}[{place} + 1];",
        "}",
        *_load(column.form, f"{queue}[{last}]", f"{queue}_element", at),
    ]


def _load(form: Stencil, target: str, element: str, at: str) -> list[str]:
    """One element of the column, zero beyond the array."""
    kind = "long long" if form.wide else "int"
    size = form.size if is_plain(form.size) or all(c not in form.size for c in "+-") else f"({form.size})"
    size = f"static_cast<long long>(1) * {size}" if form.wide and not is_plain(size) else size
    zero = f"static_cast<{form.element}>(0)"
    return [
        f"const {kind} {element} = {at};",
        f"{target} = {element} >= 0 && {element} < {size} ? {form.array}[{element}] : {zero};",
    ]


def _place(column: Column, queue: str, read: Read) -> str:
    return f"{queue}[{read.distance['z'].plus(number(column.low), -1).render()}]"


def _stride(stride: Polynomial) -> str:
    shown = stride.render()
    return shown if is_plain(shown) else f"({shown})"


def _times(position: str, stride: Polynomial) -> str:
    return position if stride.constant == 1 else f"{position} * {_stride(stride)}"


def _shift(distance: int) -> str:
    return f" {'+' if distance > 0 else '-'} {abs(distance)}" if distance else ""


__all__ = ["StencilMarch"]
