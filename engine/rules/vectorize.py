"""Load and store several neighbouring elements at once in elementwise kernels."""

from dataclasses import dataclass, field
from typing import Literal

from engine.cuda.definitions import expression
from engine.cuda.questions import ArithmeticError_, Polynomial, declarators, evaluate_int, polynomial, pure, written
from engine.cuda.subscripts import always, index_of, is_target, only_stored, subscripts, unconditional
from engine.cuda.syntax import children, names, strip, text, walk
from engine.rewrite import Change, Edit, Edits, MatchedRule, Node, Parameter, Scope, Site, Space, Span, Values, merge
from engine.rewrite.wording import ceil_div, reindent, term_text, with_comments
from engine.rules.idioms import Index, ThreadMap, covered, covers, independent, only_bound, thread_map
from engine.rules.idioms.packs import aligned, pack_bytes, pack_size, packs, scalar_pointers, widths

_WIDEST, _MOST = 16, 8  # bytes of a vector, elements that must be neighbours


@dataclass(frozen=True)
class _Array:
    name: str
    kind: str
    size: int
    accesses: tuple[Node, ...]  # those at exactly the thread's index
    stored: bool
    loaded: bool
    conditions: tuple[
        str, ...
    ] = ()  # under which the elements are neighbours, where the thread's index is not the array's own


@dataclass(frozen=True)
class _Vectors:
    """How threads map to elements, and the arrays that can be taken as vectors."""

    site: Site
    mapping: ThreadMap
    arrays: tuple[_Array, ...]


class Vectorize(MatchedRule[_Vectors]):
    """128- and 64-bit loads and stores for work on `a[i]`, with a scalar path for the tail and odd addresses."""

    name = "vectorize"
    summary = "Vector loads and stores"

    def match(self, site: Site) -> _Vectors | None:
        if not site.sound or not site.launch_visible or not site.pointers_distinct:
            return None
        mapping = thread_map(site)
        if mapping is None or len(mapping.indices) != 1 or mapping.indices[0].axis != "x":
            return None
        if not independent(site, mapping) or not only_bound(mapping):
            return None
        arrays = _arrays(site, mapping) if not any(c.startswith("atomic") for c in site.kernel.calls) else None
        return _Vectors(site, mapping, arrays) if arrays else None

    def space(self, match: _Vectors) -> Space:
        counts = tuple(widths([a.size for a in match.arrays]))
        # A quarter of the load instructions, and more bytes in flight per warp: what memory-bound kernels lack.
        choices = [
            ({"width": count}, (0.5 - 0.12 * rank) * (1.0 if match.site.waves >= count else 0.3))
            for rank, count in enumerate(counts)
        ]
        return Space(choices, {"width": counts} if counts else {})

    def rewrite(self, match: _Vectors, values: Values) -> Change | None:
        count = int(values["width"])
        edits = _vectorized(match.site, match.mapping, match.arrays, count)
        return Change(f"Vector loads and stores of {count} elements", edits) if edits is not None else None


def _arrays(site: Site, mapping: ThreadMap) -> tuple[_Array, ...] | None:
    """The arrays that are used at the thread's own index; None where that cannot be separated from other uses."""
    name = mapping.indices[0].name
    parts = (*mapping.derived, *mapping.work)
    changed = set().union(*(written(p) for p in parts))
    if "" in changed or any(n.type == "return_statement" for p in parts for n in walk(p)):
        return None
    pointers = scalar_pointers(site)
    for parameter in site.kernel.parameters:
        if parameter.pointer and parameter.name in changed and parameter.name not in pointers:
            return None
    found = []
    for array, parameter in pointers.items():
        uses: list[Node] = []
        for part in parts:
            listed = subscripts(part, array)
            if listed is None:
                return None
            uses += listed
        own = [a for a in uses if (i := index_of(a)) is not None and text(i) == name]
        size = pack_size(site, parameter.base)
        others = [a for a in uses if a not in own] if size is not None else []
        alike: dict[str, list[Node]] = {}
        for access in others:
            alike.setdefault(text(index_of(access) or access), []).append(access)
        along = [one for group in alike.values() if (one := _along(site, mapping, parts, parameter, group)) is not None]
        whole = sum(len(one.accesses) for one in along if len(one.accesses) == len(uses))
        if array in changed and len(own) + whole != len(uses):
            return None
        found += along
        if not _reached(parts, own) and not _as_long(site, array, mapping.bounds["x"]):
            continue
        if own and size is not None:
            stored = array in changed
            found.append(
                _Array(array, parameter.base, size, tuple(own), stored, not stored or _needs_load(parts, array, own))
            )
    return tuple(found)


def _along(
    site: Site, mapping: ThreadMap, parts: tuple[Node, ...], parameter: Parameter, accesses: list[Node]
) -> _Array | None:
    """Accesses of one index whose elements are neighbours where those of the thread's index are; None for others."""
    access, name, stored = accesses[0], mapping.indices[0].name, any(is_target(a) for a in accesses)
    size = pack_size(site, parameter.base)
    part = next((p for p in parts if p.start_byte <= access.start_byte < p.end_byte), None)
    if (
        size is None
        or part is None
        or any(not part.start_byte <= a.start_byte < part.end_byte for a in accesses)
        or not always(accesses, part)
        or any(n.type == "return_statement" for n in walk(part))
    ):
        return None
    count = min(_WIDEST // size, _MOST)
    conditions = goes_along(site, access, name, count) if count > 1 else None
    if conditions is None or (stored and not only_stored(accesses, parameter.name)):
        return None
    if _declarations(mapping, access) is None:
        return None
    return _Array(parameter.name, parameter.base, size, tuple(accesses), stored, not stored, conditions)


def _declarations(mapping: ThreadMap, access: Node) -> tuple[Node, ...] | None:
    """The declarations that an access's index needs, in order; None where another statement has a part in it."""
    wanted, found = names(access), []
    for node in reversed((*mapping.derived, *mapping.work)):
        if node.end_byte > access.start_byte or not any(n in wanted for n, _ in _sets(node)):
            continue
        if node.type != "declaration" or not pure(node):
            return None
        found.append(node)
        wanted |= names(node)
    return tuple(reversed(found))


def _sets(node: Node) -> list[tuple[str, Node | None]]:
    declared = declarators(node) if node.type == "declaration" else []
    return [*declared, *((n, None) for n in written(node))]


def _reached(parts: tuple[Node, ...], uses: list[Node]) -> bool:
    """Whether every thread with work comes to one of the accesses: then its vector lies within the array."""
    return any(p.start_byte <= u.start_byte < p.end_byte and unconditional(u, p) for p in parts for u in uses)


def _as_long(site: Site, array: str, bound: Node) -> bool:
    """Whether the spec gives the array as many elements as there are indices, in every case."""
    passed = zip(site.kernel.parameters, site.spec.steps[site.step].arguments, strict=False)
    (argument,) = (site.spec.argument(name) for parameter, name in passed if parameter.name == array)
    for case in site.cases:
        wanted = site.value_in(text(bound), case)
        try:
            if wanted is None or evaluate_int(argument.size, case.sizes) < wanted:
                return False
        except ArithmeticError_:
            return False
    return True


def _needs_load(parts: tuple[Node, ...], array: str, uses: list[Node]) -> bool:
    """Whether an array that is stored must be loaded first: it is read, or not every path stores it."""
    first = min(uses, key=lambda u: u.start_byte)
    parent = first.parent
    if parent is None or parent.type != "assignment_expression" or parent.child_by_field_name("left") != first:
        return True
    sign, right = parent.child_by_field_name("operator"), parent.child_by_field_name("right")
    if sign is None or text(sign) != "=" or right is None or array in names(right):
        return True
    return parent.parent not in parts


def _vectorized(site: Site, mapping: ThreadMap, arrays: tuple[_Array, ...], count: int) -> Edits | None:
    before = site.configs_after({})
    bounds = covered(site, mapping, before) if before is not None else None
    if before is None or bounds is None or len({c.block for c in before}) != 1:
        return None
    grid = [ceil_div(bounds["x"], before[0].block[0] * count)]
    edits = merge(site.in_file(*_body(site, mapping, arrays, count)), site.launch_edits(grid=grid))
    after = site.configs_after(edits) if edits is not None else None
    if after is None or not covers(site, bounds["x"], tuple((c.grid[0], c.block[0]) for c in after), count):
        return None
    return edits


def _body(site: Site, mapping: ThreadMap, arrays: tuple[_Array, ...], count: int) -> list[Edit]:
    index, unit = mapping.indices[0], site.indent_unit
    outer = site.indent_at(index.declaration.start_byte)
    taken: list[str] = []

    def name_for(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    first, lane = name_for(f"{index.name}0"), name_for("k")
    vectors = {a: name_for(f"{a.name}_pack") for a in arrays}
    along = [
        a for a in arrays if a.conditions is not None and text(index_of(a.accesses[0]) or a.accesses[0]) != index.name
    ]
    kinds, definitions = packs(site, [a.kind for a in arrays], count, taken)
    limit = mapping.bounds["x"]
    bound = term_text(limit)
    changes = [(u.start_byte, u.end_byte, f"{vectors[a]}.at[{lane}]") for a in arrays for u in a.accesses]
    condition = aligned(list(dict.fromkeys((a.name, pack_bytes(site, a.kind, count)) for a in arrays)))
    condition = " && ".join([condition, *dict.fromkeys(c for a in arrays for c in a.conditions)])
    lines = [f"{outer}if ({first} + {count - 1} < {bound} && {condition}) {{"]
    inner = outer + unit
    if along:
        needed = dict.fromkeys(d for a in along for d in _declarations(mapping, a.accesses[0]) or ())
        lines.append(f"{inner}const {index.type} {index.name} = {first};")
        for node in sorted(needed, key=lambda d: d.start_byte):
            lines.append(inner + reindent(text(node), site.indent_at(node.start_byte), inner).lstrip())
    begins = {a: f"&{text(a.accesses[0])}" if a in along else f"{a.name} + {first}" for a in arrays}
    for a in arrays:
        if a.loaded:
            const = "" if a.stored else "const "
            source = f"*reinterpret_cast<const {kinds[a.kind]}*>({begins[a]})"
            lines.append(f"{inner}{const}{kinds[a.kind]} {vectors[a]} = {source};")
        else:
            lines.append(f"{inner}{kinds[a.kind]} {vectors[a]};")
    lines += [f"{inner}#pragma unroll", f"{inner}for (int {lane} = 0; {lane} < {count}; ++{lane}) {{"]
    if _index_used(mapping, arrays, index):
        lines.append(f"{inner}{unit}const {index.type} {index.name} = {first} + {lane};")
    lines += [*_work(site, mapping, changes, inner + unit), f"{inner}}}"]
    for a in arrays:
        if a.stored:
            lines.append(f"{inner}*reinterpret_cast<{kinds[a.kind]}*>({begins[a]}) = {vectors[a]};")
    last = f"{index.name} < {first} + {count} && {index.name} < {bound}"
    lines += [
        f"{outer}}} else {{",
        f"{inner}for ({index.type} {index.name} = {first}; {last}; ++{index.name}) {{",
        *_work(site, mapping, [], inner + unit),
        f"{inner}}}",
        f"{outer}}}",
    ]
    start = f"({index.block} * {index.extent} + threadIdx.x) * {count}"
    declaration = f"const {index.type} {first} = {start};"
    guard, end = mapping.guards[0], children(site.body)[-1].end_byte
    begin = site.unit.data.rfind(b"\n", 0, guard.start_byte) + 1
    if site.unit.data[begin : guard.start_byte].strip():
        begin, lines[0] = guard.start_byte, lines[0].strip()
    return [
        *definitions,
        Edit.replace(index.declaration, declaration),
        *(Edit(site.line_span(d), "") for d in mapping.derived if d.start_byte < guard.start_byte),
        Edit(Span(begin, end), "\n".join(lines)),
    ]


def _index_used(mapping: ThreadMap, arrays: tuple[_Array, ...], index: Index) -> bool:
    replaced = {place.start_byte for a in arrays for u in a.accesses if (place := index_of(u)) is not None}
    for part in (*mapping.derived, *mapping.work):
        for n in walk(part):
            if n.type == "identifier" and text(n) == index.name and n.start_byte not in replaced:
                return True
    return False


def _work(site: Site, mapping: ThreadMap, changes: list[tuple[int, int, str]], indent: str) -> list[str]:
    """The derived declarations and the work, with the changes, one statement after the other."""
    lines = []
    for node in mapping.derived:
        inside = [c for c in changes if node.start_byte <= c[0] < node.end_byte]
        lines.append(
            reindent(site.render(node.start_byte, node.end_byte, inside), site.indent_at(node.start_byte), indent)
        )
    begin = mapping.guards[0].start_byte if mapping.style == "wrap" else mapping.guards[0].end_byte
    start, end = with_comments(mapping.work[0], begin), mapping.work[-1].end_byte
    inside = [c for c in changes if start <= c[0] < end]
    lines.append(reindent(site.render(start, end, inside), site.indent_at(start), indent))
    return lines


# Over the elements of one vector a part of an index stays, or goes up by one from a multiple of their number on.
_Course = Literal["same", "next"]


@dataclass
class _Walk:
    """What must be multiples of a vector's elements for an index to go along with another."""

    site: Site
    name: str
    count: int
    multiples: list[Polynomial] = field(default_factory=list)

    def course(self, index: Polynomial) -> _Course | None:
        """How the index goes; None for other courses."""
        rest: list[tuple[tuple[str, ...], int]] = []
        moving = 0
        for product, factor in index.terms.items():
            courses = [self._of_atom(a) for a in product]
            if None in courses:
                return None
            if "next" not in courses:
                rest.append((product, factor))
            elif len(product) == 1 and factor == 1:
                moving += 1
            else:
                return None
        if not moving:
            return "same"
        whole = moving == 1 and all(self._multiple(product, factor) for product, factor in rest)
        return "next" if whole else None

    def _of_atom(self, atom: str) -> _Course | None:
        if atom == self.name:
            return "next"
        node = expression(atom)
        node = strip(node) if node is not None else None
        if node is None:
            return None
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if node.type == "binary_expression" and sign is not None and left is not None and right is not None:
            over, by = polynomial(left, _nothing), polynomial(right, _nothing)
            course = self.course(over) if over is not None else None
            if text(sign) not in ("/", "%") or by is None or self.name in by.names():
                return (
                    "same"
                    if over is not None and by is not None and self.name not in over.names() | by.names()
                    else None
                )
            if course == "next":
                if not all(self._multiple(product, factor) for product, factor in by.terms.items()):
                    return None
                return "next" if text(sign) == "%" else "same"
            return course
        polynomial_of = polynomial(node, _nothing)
        return "same" if polynomial_of is not None and self.name not in polynomial_of.names() else None

    def _multiple(self, product: tuple[str, ...], factor: int) -> bool:
        """Whether a term is a multiple of the vector's elements, or is so under a condition on the kernel's parameters."""
        if factor % self.count == 0:
            return True
        known = tuple(a for a in product if self._unchanging(a))
        if known:
            self.multiples.append(Polynomial({known: factor}))
        return bool(known)

    def _unchanging(self, name: str) -> bool:
        parameter = self.site.scope.parameters.get(name)
        plain = parameter is not None and not parameter.pointer
        return (
            (plain and name not in self.site.changed)
            or name in self.site.unit.macros
            or name in self.site.unit.constants
        )


def _nothing(node: Node) -> None:
    return None


def goes_along(site: Site, access: Node, name: str, count: int) -> tuple[str, ...] | None:
    """Conditions under which `count` elements of an access are neighbours for as many values of an index from a multiple on."""
    found = Scope(site.unit, site.kernel, frozenset({name})).element(access)
    if found is None or found[1] is None:
        return None
    walk = _Walk(site, name, count)
    if walk.course(found[1]) != "next":
        return None
    products = {tuple(sorted(product)): factor for each in walk.multiples for product, factor in each.terms.items()}
    least = [p for p in products if not any(q != p and _within(q, p) for q in products)]
    terms = [Polynomial({p: products[p]}).render() for p in sorted(least)]
    return tuple(f"{t} % {count} == 0" if t.isidentifier() else f"({t}) % {count} == 0" for t in terms)


def _within(part: tuple[str, ...], whole: tuple[str, ...]) -> bool:
    return all(part.count(a) <= whole.count(a) for a in part)
