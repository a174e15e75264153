"""What a thread reads from tiles in shared memory, as elements of the arrays that the tiles were staged from."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.cuda.questions import ArithmeticError_, Polynomial, assigned, atom, evaluate_int, number, pure
from engine.cuda.syntax import THREAD_NAMES, children, operands, root_name, strip, text, tokens, walk
from engine.rewrite import Node, Scope, Site
from engine.rules.matmul.matmul_form import conversion_of

_NUMBER = r"0(?:\.0*)?[fF]?"
_TYPE = r"(?:float|double|half|__half|__nv_bfloat16|nv_bfloat16|int|T)"
_ZERO = re.compile(
    rf"{_NUMBER}|\({_TYPE}\){_NUMBER}|(?:{_TYPE}|__float2half|__float2bfloat16|static_cast<{_TYPE}>)\({_NUMBER}\)"
)
_WORD = re.compile(r"[A-Za-z_]\w*")
THREAD_X, THREAD_Y = "threadIdx.x", "threadIdx.y"

Place = tuple[Polynomial, Polynomial]


@dataclass(frozen=True)
class Tile:
    """An array in shared memory with an element for each thread of a block; one extent where its rows are folded."""

    name: str
    type: str
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Staged:
    """What a thread puts into a tile: `value` holds `access`, an element of an array, where every guard holds.

    A guard is (index, exclusive bound); elsewhere zero is put.
    """

    tile: Tile
    place: Place
    value: Node
    access: Node
    array: str
    index: Polynomial
    guards: tuple[tuple[Polynomial, Polynomial], ...]


def substituted(value: Polynomial, given: Mapping[str, Polynomial]) -> Polynomial:
    """The polynomial with names replaced, all at once."""
    total = number(0)
    for product, factor in value.terms.items():
        part = number(factor)
        for name in product:
            part = part.times(given.get(name, atom(name)))
        total = total.plus(part)
    return total


@dataclass
class Frame:
    """The numbers of a launch in blocks of `extent` x `extent` threads, and the names of a thread's row and column."""

    site: Site
    scope: Scope
    extent: int
    down: str
    across: str
    _known: dict[str, Polynomial] = field(default_factory=dict)

    def value(self, node: Node) -> Polynomial | None:
        """An integer expression over parameters, loop variables and the numbers of block and thread."""
        found = self.scope.index(node)
        return substituted(found, self._constants(found)) if found is not None else None

    def constants(self, found: Polynomial) -> Polynomial:
        """The same with constants, macros, template arguments and the block's extents as numbers."""
        return substituted(found, self._constants(found))

    def _constants(self, found: Polynomial) -> dict[str, Polynomial]:
        for name in {a for product in found.terms for a in product} - self._known.keys():
            if name in ("blockDim.x", "blockDim.y"):
                self._known[name] = number(self.extent)
            elif _WORD.fullmatch(name) and name not in self.scope.parameters and name not in self.scope.declared:
                value = fixed(self.site, name)
                if value is not None:
                    self._known[name] = number(value)
        return self._known

    def grid(self, value: Polynomial | None) -> Polynomial | None:
        """The value by the thread's row and column; None where it depends on the thread in another way."""
        if value is None:
            return None
        side = number(-self.extent)
        found = substituted(value, {
            THREAD_Y: atom(self.down).plus(side.times(atom("blockIdx.y"))),
            THREAD_X: atom(self.across).plus(side.times(atom("blockIdx.x"))),
        })  # fmt: skip
        rest = {a for product in found.terms for a in product} - {"blockIdx.z"}
        return None if any(set(_WORD.findall(a)) & THREAD_NAMES for a in rest) else found

    def index_of(self, value: Polynomial, at: Mapping[str, Polynomial]) -> Polynomial | None:
        """The index that the thread which staged what is read has, by row, column and depth."""
        depth = {name: at[name] for name in at if name not in (THREAD_X, THREAD_Y)}
        return self.grid(substituted(substituted(value, {n: at[n] for n in (THREAD_X, THREAD_Y)}), depth))


def fixed(site: Site, name: str) -> int | None:
    """The value of a template argument, a macro or a constant of the file."""
    given = [a.strip() for a in site.spec.steps[site.step].template_args.split(",")]
    parameters = [p.split("=")[0].split() for p in site.kernel.template_parameters]
    arguments = {p[-1]: a for p, a in zip(parameters, given, strict=False) if p}
    try:
        return evaluate_int(arguments.get(name, site.unit.macros.get(name, site.unit.constants.get(name, ""))), {})
    except ArithmeticError_:
        return None


def limits(frame: Frame, condition: Node, *, negated: bool = False) -> list[tuple[Polynomial, Polynomial]] | None:
    """(index, exclusive bound) of each part of `i < m && j < n`, or of `i >= m || j >= n`; None where one is no such."""
    found = []
    inner, outer = (">=", "<=") if negated else ("<", ">")
    for part in operands(condition, "||" if negated else "&&"):
        sign, left, right = (part.child_by_field_name(f) for f in ("operator", "left", "right"))
        if part.type != "binary_expression" or sign is None or left is None or right is None or not pure(part):
            return None
        if text(sign) not in (inner, outer):
            return None
        this, bound = (left, right) if text(sign) == inner else (right, left)
        a, b = frame.value(this), frame.value(bound)
        if a is None or b is None:
            return None
        found.append((a, b))
    return found


def tile_place(frame: Frame, tile: Tile, access: Node) -> Place | None:
    """Row and column of an element of a tile: `t[y][x]`, or `t[y * 16 + x]`."""
    indices: list[Node] = []
    node = access
    while node.type == "subscript_expression":
        given, inner = node.child_by_field_name("indices"), node.child_by_field_name("argument")
        if given is None or inner is None or len(children(given)) != 1:
            return None
        indices.insert(0, children(given)[0])
        node = inner
    if node.type != "identifier" or text(node) != tile.name or len(indices) != len(tile.extents):
        return None
    values = [frame.value(i) for i in indices]
    if any(v is None for v in values):
        return None
    known = [v for v in values if v is not None]
    if len(known) == 2:
        return known[0], known[1]
    # Within one extent: rows of as many elements as a block has threads.
    rows = {p: f for p, f in known[0].terms.items() if f == frame.extent and len(p) == 1}
    columns = {p: f for p, f in known[0].terms.items() if f == 1 and len(p) == 1}
    if len(known[0].terms) != 2 or len(rows) != 1 or len(columns) != 1:
        return None
    return atom(next(iter(rows))[0]), atom(next(iter(columns))[0])


def holds_block(tile: Tile, extent: int) -> bool:
    """Whether the tile has an element for each thread of a block (and perhaps padding at the end of its rows)."""
    if len(tile.extents) == 1:
        return tile.extents[0] >= extent * extent
    return len(tile.extents) == 2 and all(e >= extent for e in tile.extents)


def staged(frame: Frame, tiles: Mapping[str, Tile], statements: Sequence[Node]) -> dict[str, Staged] | None:
    """What statements stage, by tile; None where one does anything else, or stages a tile twice."""
    found: dict[str, Staged] = {}
    zeros: dict[str, str] = {}
    for statement in statements:
        condition: Node | None = None
        stores = [_store(statement)]
        if statement.type == "if_statement":
            condition = statement.child_by_field_name("condition")
            then, other = (statement.child_by_field_name(f) for f in ("consequence", "alternative"))
            inner = children(other)[0] if other is not None and other.type == "else_clause" else other
            stores = [_store(s) for s in (then, inner) if s is not None]
        given = [s for s in stores if s is not None]
        if len(given) != len(stores) or not given:
            return None
        target, value = given[0]
        name = root_name(target)
        if name not in tiles or name in found:
            return None
        if len(given) == 2 and (tokens(given[1][0]) != tokens(target) or not _is_zero(given[1][1])):
            return None
        if condition is None and _is_zero(value):
            zeros[name] = tokens(target)  # to be overwritten where the next statement's guard holds
            continue
        if condition is not None and len(given) == 1 and zeros.get(name) != tokens(target):
            return None
        one = _staged(frame, tiles[name], target, value, condition)
        if one is None:
            return None
        found[name] = one
    return found


def _store(node: Node | None) -> tuple[Node, Node] | None:
    """(target, value) of a statement that is one assignment."""
    while node is not None and node.type in ("compound_statement", "expression_statement"):
        node = children(node)[0] if len(children(node)) == 1 else None
    if node is None or node.type != "assignment_expression":
        return None
    sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or left is None or right is None or text(sign) != "=":
        return None
    return left, right


def _is_zero(node: Node) -> bool:
    return bool(_ZERO.fullmatch(re.sub(r"\s+", "", text(strip(node)))))


def _bare(node: Node) -> Node:
    while node.type == "parenthesized_expression" and len(children(node)) == 1:
        node = children(node)[0]
    return node


def _staged(frame: Frame, tile: Tile, target: Node, value: Node, condition: Node | None) -> Staged | None:
    value = _bare(value)
    conditions = [condition] if condition is not None else []
    if value.type == "conditional_expression":
        when, then, other = (value.child_by_field_name(f) for f in ("condition", "consequence", "alternative"))
        if when is None or then is None or other is None or not _is_zero(other):
            return None
        conditions.append(when)
        value = _bare(then)
    accesses = [n for n in walk(value) if n.type == "subscript_expression"]
    if len(accesses) != 1 or any(assigned(n) is not None for n in walk(target)):
        return None
    place, origin = tile_place(frame, tile, target), frame.scope.element(accesses[0])
    if place is None or origin is None or origin[1] is None or origin[0] not in frame.scope.parameters:
        return None
    converted = conversion_of(value, accesses[0], frame.scope.parameters[origin[0]].base)
    if converted is None or converted[1] != tile.type or "volatile" in frame.scope.parameters[origin[0]].type:
        return None
    guards: list[tuple[Polynomial, Polynomial]] = []
    for each in conditions:
        more = limits(frame, each)
        if more is None:
            return None
        guards += more
    return Staged(tile, place, value, accesses[0], origin[0], frame.constants(origin[1]), tuple(guards))


def solved(one: Staged, read: Place) -> dict[str, Polynomial] | None:
    """Which thread staged the element read at a place: its numbers; None where that cannot be told."""
    found: dict[str, Polynomial] = {}
    for own, there in zip(one.place, read, strict=True):
        for name in (THREAD_X, THREAD_Y):
            if own == atom(name):
                found[name] = there
    return found if len(found) == 2 else None


def plain(site: Site, one: Staged, index: Polynomial) -> str:
    """The staged value as C text, of the element at `index`."""
    access = (one.access.start_byte, one.access.end_byte, f"{one.array}[{index.render()}]")
    shown = site.render(one.value.start_byte, one.value.end_byte, [access])
    return shown if one.value == one.access else f"({shown})"
