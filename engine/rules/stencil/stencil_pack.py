"""Several results along x and y for each thread of a stencil, whose neighbours are loaded once, as vectors.

Source: P. Micikevicius, "3D Finite Difference Computation on GPUs using CUDA" (2009), for the reuse of what a thread has in registers;
CUDA C++ Programming Guide, "Device Memory Accesses", for vectors of 16 bytes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

from engine.cuda.brackets import closing
from engine.cuda.questions import Polynomial, children, declarators, inside, is_unroll, number, pure, strip, text, walk
from engine.rewrite import Change, Edit, Edits, LaunchConfig, MatchedRule, Node, Site, Space, Span, Values, merge
from engine.rewrite.wording import added, ceil_div, grouped_text, reindent
from engine.rules.idioms import AXES, Axis, aligned, covered, covers, fits_bounds, packs
from engine.rules.stencil.pack_form import VECTOR_BYTES, InnerLoop, Packed, conditions, inner_conditions, packed
from engine.rules.stencil.stencil_form import Stencil, least

# Our choice: blocks whose warps read whole lines along x; rows to a thread.
_CHOICES = {
    "x": ((256, 1, 1), (128, 1, 1)),
    "xy": ((64, 2, 2), (128, 1, 4), (32, 4, 4), (32, 4, 2)),
    "xyz": ((16, 1, 2), (16, 1, 4), (32, 1, 2)),
}
_OPEN = {"bx": (16, 32, 64, 128, 256), "by": (1, 2, 4, 8), "rows": (1, 2, 4, 8)}
_MOST_LOADED = 96  # elements in one thread's registers
_WORD = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class _Plane:
    """The elements of one array at one distance along z that a thread with `rows` results along y has in registers."""

    form: Stencil
    z: int
    needed: Mapping[int, frozenset[int]]  # places along x by place along y
    name: str
    pack: str

    @property
    def first(self) -> tuple[int, int]:
        """The least place along x and along y."""
        return min(min(at) for at in self.needed.values()), min(self.needed)

    @property
    def extents(self) -> tuple[int, int]:
        """Rows and columns."""
        columns = max(max(at) for at in self.needed.values()) - self.first[0] + 1
        return max(self.needed) - self.first[1] + 1, columns


class StencilPack(MatchedRule[Packed]):
    """A vector's length of results along x, and several rows of them, for each thread. Elements at a border take the author's code."""

    name = "stencil_pack"
    summary = "Several results of a stencil per thread, with vector loads"

    def match(self, site: Site) -> Packed | None:
        """The kernel whose elements inside have straight-line work; None for other kernels."""
        return packed(site)

    def space(self, match: Packed) -> Space:
        """The block along x and y, and the rows of a thread."""
        axes = "".join(a for a in AXES if match.map.index(a) is not None)
        choices = [
            (dict(zip(_OPEN, values, strict=True)), 0.6 - 0.03 * order)
            for order, values in enumerate(_CHOICES.get(axes, ()))
        ]
        single: Mapping[str, tuple[int, ...]] = {} if "y" in axes else {"by": (1,), "rows": (1,)}
        limit, deep = match.site.target.max_threads_per_block, match.deep
        conditions = (f"bx * by * {deep} >= 64", f"bx * by * {deep} <= {limit}")
        return Space(choices, {**_OPEN, **single}, conditions, 0.6)

    def rewrite(self, match: Packed, values: Values) -> Change | None:
        """The patch of results in registers where all are inside, else the author's code for each."""
        bx, by, rows = (int(values[name]) for name in _OPEN)
        site, block = match.site, (bx, by, match.deep)
        for index in match.map.indices:
            if index.extent not in (f"blockDim.{index.axis}", str(block[AXES.index(index.axis)])):
                return None
        if not fits_bounds(site, prod(block)):
            return None
        made = _PackWriter(match, rows).edits()
        edits = _launched(match, block, rows, made) if made is not None else None
        said = f"{match.count} x {rows} results per thread of a {bx} x {by} block, with vector loads of {match.count} elements"
        return Change(said, edits) if edits is not None else None


class _PackWriter:
    """The new body for so many rows of a thread."""

    def __init__(self, match: Packed, rows: int) -> None:
        self.match, self.site, self.rows = match, match.site, rows
        name = self.name = match.site.fresh_names()
        self.x, self.y = match.map.index("x"), match.map.index("y")
        self.k, self.line, self.row, self.within = (name(n) for n in ("k", "line", "row", "inside"))
        self.unit = match.site.indent_unit
        self.starts = {index.name: name(f"{index.name}0") for index in (self.x, self.y) if index is not None}
        kinds = [s.element for s in (*match.read, *match.stored)]
        self.packs, self.definitions = packs(match.site, kinds, match.count, tuple(self.starts.values()))
        self.at: dict[tuple[tuple[tuple[Axis, Polynomial], ...], Polynomial], str] = {}

    def edits(self) -> list[Edit] | None:
        """The kernel's edits; None where rows are loaded in more ways than can be written, or too many."""
        site, body = self.site, self.site.body
        planes = [p for s in self.match.read for p in self._planes(s)]
        loaded = sum(prod(p.extents) for p in planes)
        if loaded > _MOST_LOADED:
            return None
        places = list(self._places())
        fills = [self._fill(plane) for plane in planes]
        if any(fill is None for fill in fills):
            return None
        outer = site.indent_at(children(body)[0].start_byte)
        lines = [
            *self._first(),
            *self._test(),
            f"if ({self.within}) {{",
            *(self.unit + line for line in places),
            *(self.unit + line for fill in fills for line in fill or ()),
            *(self.unit + line for line in self._results(planes)),
            "} else {",
            *(self.unit + line for line in self._each(self._original(), unroll="#pragma unroll 1")),
            "}",
        ]
        start = body.start_byte + 1
        start += len(site.unit.data[start:].split(b"\n", 1)[0]) + 1  # from the next line
        written = "\n".join(outer + line if line else line for part in lines for line in part.split("\n"))
        return [*self.definitions, Edit(Span(start, children(body)[-1].end_byte), written)]

    def _first(self) -> Iterator[str]:
        """The indices of a thread's first element, and those that stay."""
        for index in self.match.map.indices:
            count = self.match.count if index is self.x else self.rows if index is self.y else 0
            own = f"blockIdx.{index.axis} * {index.extent} + threadIdx.{index.axis}"
            if not count:
                yield f"const {index.type.removeprefix('const ')} {index.name} = {own};"
            else:
                times = f"({own}) * {count}" if count > 1 else own
                yield f"const {index.type.removeprefix('const ')} {self.starts[index.name]} = {times};"

    def _indices(self, lines: Sequence[str]) -> list[str]:
        """The indices of one element, as far as the lines use them."""
        used = set(_WORD.findall("\n".join(lines)))
        return [
            f"const {index.type.removeprefix('const ')} {index.name} = {self.starts[index.name]} + {step};"
            for index, step in ((self.x, self.k), (self.y, self.line))
            if index is not None and index.name in used
        ]

    def _each(
        self,
        inner: Sequence[str],
        before: Sequence[str] = (),
        after: Sequence[str] = (),
        unroll: str = "#pragma unroll",
    ) -> list[str]:
        """Lines for each of a thread's elements; `before` and `after` for each of its rows."""
        loop = [
            unroll,
            f"for (int {self.k} = 0; {self.k} < {self.match.count}; ++{self.k}) {{",
            *(self.unit + line for line in (*self._indices(inner), *inner)),
            "}",
        ]
        return [
            unroll,
            f"for (int {self.line} = 0; {self.line} < {self.rows}; ++{self.line}) {{",
            *(self.unit + line for line in (*before, *loop, *after)),
            "}",
        ]

    def _test(self) -> list[str]:
        """Whether vectors are aligned and no element ends early."""
        forms = (*self.match.read, *self.match.stored)
        # An index starts at a multiple of the vector's length, so that strides decide.
        odd = dict.fromkeys(
            text_
            for form in forms
            for value in (form.base, *(form.strides[a] for a in form.axes if a != "x"))
            if (text_ := _not_multiple(value, self.match.count)) is not None
        )
        pointers = dict.fromkeys((form.array, VECTOR_BYTES) for form in forms)
        begin = " && ".join([aligned(list(pointers)), *(f"{value} % {self.match.count} == 0" for value in odd)])
        lines: list[str] = []
        for order, (_, end) in enumerate(self.match.work.exits):
            for part in conditions(self.match, order) or []:
                written = self.site.render(part.start_byte, part.end_byte)
                lines += [written] if written not in lines else []
            lines.append(self._narrowed(end.condition, end.holds))
        for test in self.match.work.inner:
            lines += self._inner_test(test)
        return [f"bool {self.within} = {begin};", *(self._each(lines) if lines else [])]

    def _inner_test(self, test: InnerLoop) -> list[str]:
        """A test within loops, at the first and last value of each counter that it knows of."""
        declared = [
            self.site.render(part.start_byte, part.end_byte) for part in inner_conditions(self.match, test) or []
        ]
        known = set(_WORD.findall(" ".join((*declared, text(test.condition)))))
        counters = {name: ends for name, ends in test.counters.items() if name in known}
        lines = []
        for values in product(*(sorted(set(ends)) for ends in counters.values())):
            lines += [
                "{",
                *(f"{self.unit}const int {name} = {value};" for name, value in zip(counters, values, strict=True)),
                *(self.unit + line for line in declared),
                f"{self.unit}{self._narrowed(test.condition, test.holds)}",
                "}",
            ]
        return lines

    def _narrowed(self, condition: Node, holds: bool) -> str:
        inner = text(strip(condition))
        inner = f"({inner})" if not inner.startswith("(") or closing(inner, 0) < len(inner) - 1 else inner
        return f"{self.within} = {self.within} && {'' if holds else '!'}{inner};"

    def _key(self, form: Stencil) -> tuple[tuple[tuple[Axis, Polynomial], ...], Polynomial]:
        return tuple((a, form.strides[a]) for a in form.axes), form.base

    def _places(self) -> Iterator[str]:
        """Where a thread's first element lies in arrays of each layout."""
        for form in (*self.match.read, *self.match.stored):
            key = self._key(form)
            if key in self.at:
                continue
            self.at[key] = self.name("at" if not self.at else f"at_{form.array}")
            kind = "long long" if form.wide else "int"
            terms = []
            for axis in reversed(form.axes):
                index = self.match.map.index(axis)
                assert index is not None  # a form's axes have an index
                name = self.starts.get(index.name, index.name)
                wide = f"static_cast<long long>({name})" if form.wide else name
                stride = form.strides[axis].render()
                terms.append(wide if stride == "1" else f"{wide} * {grouped_text(stride)}")
            terms += [grouped_text(form.base.render())] if form.base.terms else []
            yield f"const {kind} {self.at[key]} = {' + '.join(terms)};"

    def _planes(self, form: Stencil) -> list[_Plane]:
        """What is loaded of one array, by distance along z."""
        places: dict[int, dict[int, set[int]]] = {}
        for read in form.reads:
            if not any(inside(read.node, part) for part in self.match.work.kept):
                continue
            for x, y, z in read.places():
                for line in range(self.rows):
                    own = places.setdefault(z, {}).setdefault(y + line, set())
                    own |= {x + k for k in range(self.match.count)}
        return [
            _Plane(
                form,
                z,
                {y: frozenset(at) for y, at in sorted(rows.items())},
                self.name(f"{form.array}_near" if not order else f"{form.array}_near_{order}"),
                self.packs[form.element],
            )
            for order, (z, rows) in enumerate(sorted(places.items(), key=lambda item: (abs(item[0]), item[0])))
        ]

    def _fill(self, plane: _Plane) -> list[str] | None:
        """The loads of one plane: vectors where all of one are needed, single elements else."""
        form, count = plane.form, self.match.count
        (rows, columns), (left, top) = plane.extents, plane.first
        every = range(top, top + rows)
        lines: list[str] = []
        lowest, highest = left // count, (left + columns - 1) // count
        for group in range(lowest, highest + 1):
            places = range(group * count, (group + 1) * count)
            full = [q for q in every if plane.needed.get(q, frozenset()).issuperset(places)]
            if full:
                pack = self.name(f"{plane.form.array}_pack")
                offset = self.name("from") + added(group * count)
                loads = [
                    f"const {plane.pack} {pack} = *reinterpret_cast<const {plane.pack}*>({offset});",
                    "#pragma unroll",
                    f"for (int {self.k} = 0; {self.k} < {count}; ++{self.k}) {{",
                    f"{self.unit}{plane.name}[{self.row}][{self.k}{added(group * count - left)}] = {pack}.at[{self.k}];",
                    "}",
                ]
                guarded = self._where(full, every, loads, scoped=True)
                if guarded is None:
                    return None
                lines += guarded
            for place in places:
                single = [q for q in every if place in plane.needed.get(q, frozenset()) and q not in full]
                if single:
                    load = f"{plane.name}[{self.row}][{place - left}] = {self.name('from')}[{place}];"
                    guarded = self._where(single, every, [load], scoped=False)
                    if guarded is None:
                        return None
                    lines += guarded
        first = grouped_text(self._line(form, self.row, top, plane.z))
        return [
            f"{form.element} {plane.name}[{rows}][{columns}];",
            "#pragma unroll",
            f"for (int {self.row} = 0; {self.row} < {rows}; ++{self.row}) {{",
            f"{self.unit}const {form.element}* {self.name('from')} = {form.array} + {first};",
            *(self.unit + line for line in lines),
            "}",
        ]

    def _where(self, wanted: list[int], every: range, lines: list[str], *, scoped: bool) -> list[str] | None:
        """The lines, for the rows that want them alone; None where these are not neighbours."""
        if len(wanted) == len(every):
            return ["{", *(self.unit + line for line in lines), "}"] if scoped else lines
        if wanted[-1] - wanted[0] + 1 != len(wanted):
            return None
        first, last = wanted[0] - every[0], wanted[-1] - every[0]
        tests = [f"{self.row} >= {first}"] if first else []
        tests += [f"{self.row} <= {last}"] if last < len(every) - 1 else []
        return [f"if ({' && '.join(tests)}) {{", *(self.unit + line for line in lines), "}"]

    def _line(self, form: Stencil, row: str, top: int, z: int) -> str:
        """The index of a thread's first column in one of its rows, in a plane at a distance along z."""
        terms = [self.at[self._key(form)]]
        if "y" in form.axes and (row or top):
            terms.append(
                f"({row}{added(top)}) * {grouped_text(form.strides['y'].render())}"
                if top
                else f"{row} * {grouped_text(form.strides['y'].render())}"
            )
        shown = " + ".join(terms)
        if z:
            far = grouped_text(form.strides["z"].render())
            shown += f" {'+' if z > 0 else '-'} {far if abs(z) == 1 else f'{abs(z)} * {far}'}"
        return shown

    def _results(self, planes: Sequence[_Plane]) -> list[str]:
        """The work of all elements, with their neighbours in registers and their results in vectors."""
        changes: list[tuple[int, int, str]] = []
        by_place = {(p.form.array, p.z): p for p in planes}
        for form in self.match.read:
            for read in form.reads:
                x, y = (read.distance.get(a, number(0)) for a in ("x", "y"))
                z = read.distance["z"].constant if "z" in read.distance else 0
                plane = by_place.get((form.array, z or 0))
                if plane is not None:
                    left, top = plane.first
                    put = f"{plane.name}[{_sum(self.line, y, -top)}][{_sum(self.k, x, -left)}]"
                    changes.append((read.node.start_byte, read.node.end_byte, put))
        before, after = [], []
        for form in self.match.stored:
            vector, kind = self.name(f"{form.array}_results"), self.packs[form.element]
            changes += [(r.node.start_byte, r.node.end_byte, f"{vector}.at[{self.k}]") for r in form.reads]
            before.append(f"{kind} {vector};")
            after.append(
                f"*reinterpret_cast<{kind}*>({form.array} + {grouped_text(self._line(form, self.line, 0, 0))}) = {vector};"
            )
        changes += [(*test.drop, "") for test in self.match.work.inner]
        # Only with known counters are registers what they index.
        changes += [
            (n.start_byte, n.start_byte, f"#pragma unroll\n{self.site.indent_at(n.start_byte)}")
            for part in self.match.work.kept
            for n in walk(part)
            if n.type == "for_statement"
            and (n == part or not (n.prev_named_sibling and is_unroll(n.prev_named_sibling)))
        ]
        inner: list[str] = []
        used: set[str] = set()
        for part in reversed(self.match.work.kept):
            own = [c for c in changes if part.start_byte <= c[0] < part.end_byte]
            written = self.site.render(part.start_byte, part.end_byte, own)
            # What only indices of loads were made of has no use left.
            if part.type == "declaration" and pure(part) and not {name for name, _ in declarators(part)} & used:
                continue
            used |= set(_WORD.findall(written))
            inner = reindent(written, self.site.indent_at(part.start_byte), "").split("\n") + inner
        return self._each(inner, before, after)

    def _original(self) -> list[str]:
        """The author's body for one element, its indices given."""
        site, body = self.site, self.site.body
        start = body.start_byte + 1
        start += len(site.unit.data[start:].split(b"\n", 1)[0]) + 1
        changes = [(n.start_byte, n.end_byte, "continue;") for n in walk(body) if n.type == "return_statement"]
        for index in self.match.map.indices:
            drop = site.line_span(index.declaration)
            changes.append((drop.start, drop.end, ""))
        margin = site.indent_at(children(body)[0].start_byte)
        return reindent(site.render(start, children(body)[-1].end_byte, changes), margin, "").split("\n")


def _sum(name: str, value: Polynomial, by: int) -> str:
    """The sum as text: `line + dy + 1`."""
    return name + added(value.plus(number(by)).render())


def _not_multiple(value: Polynomial, count: int) -> str | None:
    """The value as text where it may not be a multiple of the count."""
    if not value.terms or all(factor % count == 0 for factor in value.terms.values()):
        return None
    return grouped_text(value.render())


def _launched(match: Packed, block: tuple[int, int, int], rows: int, edits: list[Edit]) -> Edits | None:
    """The kernel's edits with its launch; None where that cannot be written, or does not cover the elements."""
    site = match.site
    bounds = covered(site, match.map, site.configs_after({}) or ())
    if bounds is None:
        return None
    per: dict[Axis, int] = {"x": match.count, "y": rows, "z": 1}
    axes = [a for a in AXES if a in bounds]
    grid = [ceil_div(least(bounds[a]), block[AXES.index(a)] * per[a]) for a in axes]
    merged = merge(site.in_file(*edits), site.launch_edits(grid=grid, block=[str(block[AXES.index(a)]) for a in axes]))
    after = site.configs_after(merged) if merged is not None else None
    if after is None or {c.block for c in after} != {block}:
        return None
    return merged if all(_covers(site, after, a, bounds[a], per[a]) for a in axes) else None


def _covers(site: Site, after: Iterable[LaunchConfig], axis: Axis, bound: str, per: int) -> bool:
    k = AXES.index(axis)
    return covers(site, bound, tuple((c.grid[k], c.block[k]) for c in after), per)
