"""Recognises a stencil: threads that read neighbours of their own element, at distances known when it is compiled."""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from engine.cuda.questions import ArithmeticError_, Polynomial, called, evaluate, evaluate_int, text, walk, written
from engine.rewrite import ElementAccess, Node, Scope, Site
from engine.rules.idioms import AXES, Axis, element_size, inclusive_loop, stride_loop
from engine.rules.idioms.thread_index import ThreadMap, thread_map, thread_uses_outside
from engine.rules.matmul.matmul_form import is_fixed

_FEWEST_NEIGHBOURS = 3  # below that a tile saves no load
_WIDEST_HALO = 16  # elements on one side
_WIDE = re.compile(r"\b(?:long|size_t|ptrdiff_t|u?int64_t)\b")


@dataclass(frozen=True)
class Read:
    """One load of a neighbour: the expression that a read of the tile replaces, and its distance along each axis.

    `ranges` are the first and last value of the loops' counters that a distance may hold.
    """

    node: Node
    distance: Mapping[Axis, Polynomial]
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def places(self) -> Iterator[tuple[int, int, int]]:
        """Every distance along x, y and z that it reaches."""
        counters = sorted({n for p in self.distance.values() for n in p.names()})
        for values in itertools.product(*(range(self.ranges[c][0], self.ranges[c][1] + 1) for c in counters)):
            at = dict(zip(counters, values, strict=True))
            x, y, z = (_value(self.distance[a], at) if a in self.distance else 0 for a in AXES)
            yield x, y, z


@dataclass(frozen=True)
class Stencil:
    """A kernel whose threads read the element `base + sum of index * stride` of one array and neighbours of it.

    `axes` are those that enter, x (stride 1) first. `low` and `high` are the least and the largest distance along each.
    `size` is the array's number of elements over the kernel's parameters; `wide` says whether an index has 64 bits.
    `points` counts the loads of one thread.
    """

    map: ThreadMap
    array: str
    element: str
    axes: tuple[Axis, ...]
    strides: Mapping[Axis, Polynomial]
    base: Polynomial
    low: Mapping[Axis, int]
    high: Mapping[Axis, int]
    size: str
    wide: bool
    reads: tuple[Read, ...]
    points: int


def stencils(site: Site) -> tuple[Stencil, ...]:
    """One stencil for each array that is read in this way; () where the kernel has another form."""
    found = patches(site)
    apart = (s for s in found.read if s.points >= _FEWEST_NEIGHBOURS and max(s.high[a] - s.low[a] for a in s.axes) > 0)
    return tuple(sorted(apart, key=lambda s: -s.points))


@dataclass(frozen=True)
class Patches:
    """The arrays that are read and never written at distances from a thread's element, and those of which each access stores it.

    `whole` says whether these are all arrays that the kernel writes.
    """

    read: tuple[Stencil, ...] = ()
    stored: tuple[Stencil, ...] = ()
    whole: bool = False


def patches(site: Site) -> Patches:
    """The arrays by how threads with an index along x access them; none where the kernel has another form."""
    if not site.sound or not site.manageable or site.kernel.shared or not site.pointers_distinct:
        return Patches()
    form = thread_map(site)
    if form is None or form.index("x") is None or any(i.factor != 1 for i in form.indices):
        return Patches()
    if thread_uses_outside(site, form.indices) or not site.local_only(site.body, site.type_names):
        return Patches()
    scope = Scope(site.unit, site.kernel, frozenset(i.name for i in form.indices))
    uses = scope.uses(scope.body)
    if uses is None:
        return Patches()
    read, stored = [], []
    whole = True
    for parameter in site.kernel.parameters:
        mine = [u for u in uses if u.array == parameter.name]
        if not parameter.pointer or not mine:
            continue
        found = _stencil(site, scope, form, parameter.name, parameter.base, mine)
        if not any(u.writes for u in mine):
            read += [found] if found is not None else []
        elif found is not None and found.points == 1 and not any(u.reads for u in mine):
            stored.append(found)
        else:
            whole = False
    return Patches(tuple(read), tuple(stored), whole)


def _stencil(
    site: Site, scope: Scope, form: ThreadMap, array: str, element: str, uses: list[ElementAccess]
) -> Stencil | None:
    size = elements(site, array)
    if size is None or (element_size(site, element) is None and element not in site.type_names):
        return None
    strides: dict[Axis, Polynomial] = {}
    bases: set[Polynomial] = set()
    reads: list[Read] = []
    low: dict[Axis, int] = {}
    high: dict[Axis, int] = {}
    places: set[tuple[int, ...]] = set()
    for use in uses:
        rest = _numbers(site, use.index) if use.index is not None else None
        node = _whole(use.node)
        if rest is None or node is None:
            return None
        for axis in AXES:
            index = form.index(axis)
            parts = rest.split(index.name) if index is not None and index.name in rest.names() else None
            if parts is None:
                if index is not None and index.name in rest.names():
                    return None
                parts = Polynomial({}), rest
            stride, rest = parts
            if strides.setdefault(axis, stride) != stride:
                return None
        ranges = _ranges(site, scope, use.node)
        distance, rest = _distances(strides, rest, frozenset(ranges))
        bases.add(rest)
        reads.append(Read(node, distance, ranges))
        for axis, far in distance.items():
            ends = _ends(far, ranges)
            low[axis] = min(low.get(axis, ends[0]), ends[0])
            high[axis] = max(high.get(axis, ends[1]), ends[1])
        places |= {tuple(p) for p in _corners(distance, ranges)}
    used = tuple(a for a in AXES if strides[a].terms)
    if len(bases) != 1 or strides["x"].constant != 1 or not used:
        return None
    base = bases.pop()
    if not all(is_fixed(site, p) for p in (base, *strides.values())):
        return None
    if any(max(-low[a], high[a]) > _WIDEST_HALO for a in used):
        return None
    known = {p.name: p.base for p in site.kernel.parameters}
    kinds = [known.get(n, "") for p in (base, *strides.values()) for n in p.names()]
    wide = any(_WIDE.search(k) for k in (*kinds, *(i.type for i in form.indices)))
    wide = wide or any(_WIDE.search(known.get(w, "")) for w in re.findall(r"\w+", size))
    return Stencil(form, array, element, used, strides, base, low, high, size, wide, tuple(reads), len(places))


def _whole(access: Node) -> Node | None:
    """The expression to replace: the access, or the `__ldg(&…)` around it; None where its address is taken."""
    above = access.parent
    if above is None or above.type != "pointer_expression" or not text(above).startswith("&"):
        return access
    call = above.parent.parent if above.parent is not None else None
    hint = (
        call is not None and call.type == "call_expression" and called(call) in ("__ldg", "__ldca", "__ldcg", "__ldcs")
    )
    return call if hint else None


def _numbers(site: Site, value: Polynomial) -> Polynomial:
    """The polynomial with macros and constants of the file as numbers."""
    hidden = {p.name for p in site.kernel.parameters} | {
        p.replace("=", " ").split()[-1] for p in site.kernel.template_parameters
    }
    known = {}
    for name in value.names() - hidden:
        written_value = site.unit.macros.get(name, site.unit.constants.get(name))
        try:
            known[name] = evaluate_int(written_value, {}) if written_value else None
        except ArithmeticError_:
            continue
    result = Polynomial({})
    for product, factor in value.terms.items():
        left = []
        for atom in product:
            constant = known.get(atom)
            factor *= 1 if constant is None else constant
            left += [atom] if constant is None else []
        result = result.plus(Polynomial({tuple(left): factor} if factor else {}))
    return result


def _ranges(site: Site, scope: Scope, node: Node) -> dict[str, tuple[int, int]]:
    """The first and last value of each counter, of the loops around the node, that numbers bound."""
    found: dict[str, tuple[int, int]] = {}
    above = node.parent
    while above is not None and above != scope.body:
        if above.type == "for_statement":
            exclusive = stride_loop(above)
            loop = exclusive or inclusive_loop(above)
            if loop is not None and loop.step == "1":
                ends = [scope.index(e) for e in (loop.start, loop.bound)]
                first, last = (_numbers(site, e).constant if e is not None else None for e in ends)
                if first is not None and last is not None:
                    found.setdefault(loop.variable, (first, last - (1 if exclusive else 0)))
        above = above.parent
    return {name: (a, b) for name, (a, b) in found.items() if a <= b}


def _distances(
    strides: Mapping[Axis, Polynomial], rest: Polynomial, counters: frozenset[str]
) -> tuple[dict[Axis, Polynomial], Polynomial]:
    """The rest of an index as a distance along each axis, by division by the strides, and what is left."""
    found: dict[Axis, Polynomial] = {}
    for axis in sorted(
        (a for a in strides if a != "x"), key=lambda a: -max((len(p) for p in strides[a].terms), default=0)
    ):
        stride = strides[axis]
        found[axis] = Polynomial({})
        if not stride.terms or stride.constant is not None:
            continue
        lead = max(stride.terms, key=lambda p: (len(p), p))
        for product, factor in rest.terms.items():
            left = Counter(product)
            if Counter(lead) - left or factor % stride.terms[lead]:
                continue
            others = tuple(sorted((left - Counter(lead)).elements()))
            if not others or (len(others) == 1 and others[0] in counters):
                found[axis] = found[axis].plus(Polynomial({others: factor // stride.terms[lead]}))
        rest = rest.plus(found[axis].times(stride), -1)
    near = {p: f for p, f in rest.terms.items() if not p or (len(p) == 1 and p[0] in counters)}
    found["x"] = Polynomial(near)
    return found, rest.plus(found["x"], -1)


def _ends(distance: Polynomial, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    low = high = 0
    for product, factor in distance.terms.items():
        first, last = ranges[product[0]] if product else (1, 1)
        low += min(factor * first, factor * last)
        high += max(factor * first, factor * last)
    return low, high


def _corners(distance: Mapping[Axis, Polynomial], ranges: Mapping[str, tuple[int, int]]) -> Iterable[list[int]]:
    """Some of the places that one load reaches: enough to tell a neighbourhood from a single element."""
    counters = sorted({n for p in distance.values() for n in p.names()})
    widest = max((ranges[c][1] - ranges[c][0] + 1 for c in counters), default=1)
    for k in range(min(widest, 2 * _WIDEST_HALO)):
        at = {c: min(ranges[c][0] + k, ranges[c][1]) for c in counters}
        yield [_value(distance[a], at) if a in distance else 0 for a in AXES]


def _value(value: Polynomial, at: Mapping[str, int]) -> int:
    return sum(f * (at[p[0]] if p else 1) for p, f in value.terms.items())


def elements(site: Site, array: str) -> str | None:
    """The number of elements of an array over the kernel's parameters, by its spec; None where it cannot be said so."""
    step = site.spec.steps[site.step].arguments
    names: dict[str, str] = {}
    changed = written(site.body)
    argument = None
    for parameter, name in zip(site.kernel.parameters, step, strict=False):
        try:
            given = site.spec.argument(name)
        except KeyError:
            return None
        if parameter.name == array:
            argument = given
        elif not parameter.pointer and parameter.name not in changed:
            names.setdefault((given.value or given.name).strip(), parameter.name)
    size = argument.size if argument is not None else ""
    if not size or not re.fullmatch(r"[\w\s()*+-]+", size):
        return None
    words = set(re.findall(r"[A-Za-z_]\w*", size))
    if not words <= set(names):
        try:
            return str(evaluate(size, {}))
        except ArithmeticError_:
            return None
    return re.sub(r"[A-Za-z_]\w*", lambda m: names[m[0]], re.sub(r"\s*([*+-])\s*", r" \1 ", size)).strip()


_LOOPS = ("for_statement", "while_statement", "do_statement")


def may_repeat(site: Site) -> bool:
    """Whether the statements may stand in a loop: every `return` can become `continue`."""
    for node in walk(site.body):
        if node.type == "return_statement":
            above = node.parent
            while above is not None and above != site.body:
                if above.type in (*_LOOPS, "switch_statement"):
                    return False
                above = above.parent
    return True


def least(bound: str) -> str:
    """An extent that covers the bound, and is not 0 where the array has elements: the `n` of `n - 1`."""
    inner = re.fullmatch(r"(\w+) - \d+", bound)
    return inner[1] if inner is not None else bound
