"""Let each thread work out several results that share loads (unroll-and-jam)."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from engine.cuda.questions import ArithmeticError_, declarators, declared_type, evaluate_int, written
from engine.cuda.syntax import children, inside, is_integer_type, names, strip, text, walk
from engine.rewrite import Edit, Edits, Families, Family, Node, Point, Proposal, Proposals, Site, Span, merge, proposal
from engine.rewrite.wording import ceil_div, grouped
from engine.rules.idioms import AXES, Axis, Index, ThreadMap, covers, in_parameters, thread_map, thread_uses_outside
from engine.rules.idioms.coverage import Grids, whole_numbers
from engine.rules.idioms.jam import Change, Copies, Jam
from engine.rules.idioms.thread_index import map_of

_FACTORS = (4, 8, 2)
_TUNED = (2, 3, 4, 5, 6, 8, 10, 12, 16)
# The same for all threads of a block, and kept as they are.
_UNIFORM = frozenset({"blockIdx.y", "blockIdx.z", "blockDim.x", "blockDim.y"})
_BLOCK = re.compile(r"blockIdx\s*\.\s*([xyz])")
_MEMBER = re.compile(r"\b(blockIdx|threadIdx|blockDim)\s*\.\s*x\b")
_PLACES = {"blockIdx": "block", "threadIdx": "thread", "blockDim": "threads"}
_WARP = 32


@dataclass(frozen=True)
class _Across:
    """A variable whose neighbouring values one thread can take on.

    `bound` is its exclusive bound as the kernel writes it, `size` the same over the kernel's parameters. The threads along `axis` have
    the values where there is an `index`; else its blocks have them, `times` over (`split`), each divided by the `quotients` for what
    else they number, or the `warps` of its blocks, as `number` says. `guards` are the kernel's.
    """

    variable: str
    type: str
    axis: Axis
    declaration: Node
    bound: str
    size: str
    times: str = "1"
    index: Index | None = None
    split: bool = False
    quotients: tuple[Node, ...] = ()
    warps: int = 0
    number: str = ""
    guards: tuple[Node, ...] = ()

    @property
    def least(self) -> float:
        """How many waves of threads must be left: threads of a warp that share a row's work hide latencies with less."""
        return 1 / 16 if self.warps else 1 / 2

    def start(self, factor: int, share: str) -> str:
        """The first of a thread's values."""
        if self.index is not None:
            return f"blockIdx.{self.axis} * ({self.index.extent} * {factor}) + threadIdx.{self.axis}"
        if self.warps:
            return f"({self.number}) * {factor}"
        return f"blockIdx.{self.axis}{f' % {share}' if self.split else ''} * {factor}"


class UnrollJam:
    """Several values of one index to a thread: what does not depend on it, loads above all, is done once for all of them.

    Unlike `coarsen`, whose copies follow each other, these go side by side through the kernel's loops. Copies beyond the last value
    repeat the last one's work and store nothing. A load behind a condition is made once for all copies, and before the condition,
    where the two have no name in common.
    """

    name = "unroll_jam"
    summary = "Several results per thread that share loads"

    def propose(self, site: Site) -> Proposals:
        for across, make in self._forms(site):
            for rank, factor in enumerate(_FACTORS):
                if site.waves < factor * across.least:  # too few threads would be left to fill the target
                    continue
                yield from proposal(
                    self.name, _summary(across, factor), make(factor), 0.4 - 0.04 * rank,
                    factor=factor, index=across.variable,
                )  # fmt: skip

    def families(self, site: Site) -> Families:
        """The number of results to a thread left open."""
        for across, make in self._forms(site):
            if site.waves < min(_TUNED) * across.least:
                continue

            def choice(
                values: Point, across: _Across = across, make: Callable[[int], Edits | None] = make
            ) -> Proposal | None:
                factor = values["factor"]
                made = proposal(
                    self.name, _summary(across, factor), make(factor), 0.4, factor=factor, index=across.variable
                )
                return next(made, None)

            yield Family(
                self.name, f"{self.summary}, for values of {across.variable}", {"factor": _TUNED}, (), choice, 0.4
            )

    def _forms(self, site: Site) -> Iterator[tuple[_Across, Callable[[int], Edits | None]]]:
        if not site.sound or not site.launch_visible or not site.manageable or not site.pointers_distinct:
            return
        grids = Grids.of(site)
        if grids is None:
            return
        mapping = thread_map(site)
        for across in _candidates(site, mapping, grids):
            try:
                jam = Jam(site, across.variable, across.declaration, across.guards, of_warp=across.warps > 0)
            except ValueError:
                continue
            if jam.shared:
                yield across, partial(_edits, site, mapping, across, jam, grids)


def _summary(across: _Across, factor: int) -> str:
    return f"{factor} values of {across.variable} per thread, sharing loads"


def _candidates(site: Site, mapping: ThreadMap | None, grids: Grids) -> Iterator[_Across]:
    """The variables whose values could be shared out anew, those made of block numbers first."""
    indices, guards = (mapping.indices, mapping.guards) if mapping is not None else ((), ())
    own = {i.declaration.id for i in indices}
    changed = written(site.body)
    blocks: dict[str, list[Node]] = {}
    for node in walk(site.body):
        found = _BLOCK.fullmatch(text(node)) if node.type == "field_expression" else None
        if found is not None and not any(i.axis == found[1] for i in indices):
            blocks.setdefault(found[1], []).append(node)
    for statement in children(site.body):
        if statement.type != "declaration" or statement.id in own or not is_integer_type(declared_type(statement)):
            continue
        parts = declarators(statement)
        if len(parts) != 1 or not parts[0][0] or parts[0][1] is None or parts[0][0] in changed:
            continue
        name, value = parts[0][0], strip(parts[0][1])
        for axis in AXES:
            across = _uniform(grids, name, statement, value, axis, blocks.get(axis, []))
            if across is not None:
                yield replace(across, guards=guards)
        across = _of_warps(grids, name, statement, value, blocks.get("x", []))
        if across is not None:
            yield across
    if mapping is None or mapping.style == "none" or thread_uses_outside(site, indices, _UNIFORM):
        return
    for index in indices:
        bound = mapping.bounds.get(index.axis)
        size = in_parameters(site, bound) if bound is not None else None
        if index.alone and index.factor == 1 and bound is not None and size is not None:
            yield _Across(
                index.name, index.type, index.axis, index.declaration, grouped(bound), size, index=index, guards=guards
            )


def _uniform(grids: Grids, name: str, statement: Node, value: Node, axis: Axis, uses: list[Node]) -> _Across | None:
    """A variable that is a block's number along an axis, or the remainder of one by its bound."""
    site, kind = grids.site, declared_type(statement)
    if _BLOCK.fullmatch(text(value)) and uses == [value]:
        size = next((p for p in whole_numbers(site) if grids.spans(axis, p)), None)
        return _Across(name, kind, axis, statement, size, size, "1") if size is not None else None
    bound = _divisor(value, "%", uses)
    size = in_parameters(site, bound) if bound is not None else None
    if bound is None or size is None:
        return None
    quotients = []
    for use in uses:
        above = use.parent
        if above is None or above == value:
            continue
        divisor = _divisor(above, "/", uses)
        if divisor is None or in_parameters(site, divisor) != size:
            return None
        quotients.append(divisor)
    times = grids.times(axis, size)
    return (
        _Across(name, kind, axis, statement, grouped(bound), size, times, split=True, quotients=tuple(quotients))
        if times is not None
        else None
    )


def _of_warps(grids: Grids, name: str, statement: Node, value: Node, uses: list[Node]) -> _Across | None:
    """A variable that numbers the grid's warps and has a guard."""
    site, threads = grids.site, grids.block[0]
    if grids.block[1:] != (1, 1) or threads % _WARP or not uses or not all(inside(use, value) for use in uses):
        return None
    if any(text(n) == "gridDim" for n in walk(site.body)) or not _numbers_warps(site, value, threads):
        return None
    mapping = map_of(site, (Index(name, "x", declared_type(statement), "blockDim.x", 1, statement, True),))
    bound = mapping.bounds.get("x") if mapping is not None else None
    size = in_parameters(site, bound) if bound is not None else None
    if mapping is None or bound is None or size is None:
        return None
    warps = threads // _WARP
    seen = tuple((launch.grid[0], warps) for launch in grids.launches[: len(site.cases)])
    if not covers(site, size, seen, 1):
        return None
    return _Across(
        name, declared_type(statement), "x", statement, grouped(bound), size, warps=warps, number=text(value),
        guards=mapping.guards,
    )  # fmt: skip


def _numbers_warps(site: Site, value: Node, threads: int) -> bool:
    """Whether an expression is the number of the thread's warp in a grid of blocks of so many threads."""
    written = text(value)
    for name in names(value) - _PLACES.keys():
        known = "32" if name == "warpSize" else site.unit.macros.get(name, site.unit.constants.get(name))
        if known is None or any(name == p.name for p in site.kernel.parameters):
            return False
        written = re.sub(rf"\b{name}\b", f"({known})", written)
    if any(n.type in ("assignment_expression", "update_expression", "call_expression") for n in walk(value)):
        return False
    written = _MEMBER.sub(lambda found: _PLACES[found[1]], written)
    try:
        return all(
            evaluate_int(written, {"block": block, "thread": thread, "threads": threads})
            == block * (threads // _WARP) + thread // _WARP
            for block in (0, 1, 2, 5)
            for thread in range(threads)
        )
    except ArithmeticError_:
        return False


def _divisor(node: Node, operator: str, uses: list[Node]) -> Node | None:
    """What one of the uses is divided by in this expression; None of any other."""
    sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
    if node.type != "binary_expression" or sign is None or left is None or right is None or text(sign) != operator:
        return None
    return right if left in uses else None


def _edits(
    site: Site, mapping: ThreadMap | None, across: _Across, jam: Jam, grids: Grids, factor: int
) -> Edits | None:  # fmt: skip
    count, first = site.fresh("k"), site.fresh(f"{across.variable}0")
    share = f"(({across.bound} + {factor - 1}) / {factor})"
    changes: list[Change] = [(n.start_byte, n.end_byte, share) for n in across.quotients]
    value = f"{first} + {count}{f' * {across.index.extent}' if across.index is not None else ''}"
    within = f"{value} < {across.bound}"
    copies = Copies(
        across.variable, across.declaration, first, f"{across.type} {first} = {across.start(factor, share)};",
        f"{within} ? {value} : {across.bound} - 1", within, count, factor, across.guards, tuple(changes),
    )  # fmt: skip
    body, grid = jam.written(copies), _grid(site, mapping, across, grids, factor)
    if body is None or grid is None:
        return None
    begin = across.declaration.start_byte
    before = [Edit(Span(low, high), new) for low, high, new in changes if high <= begin]
    made = merge(site.in_file(*before, Edit(Span(begin, jam.end), body)), site.launch_edits(grid=grid))
    return made if made is not None and _as_meant(site, made, grid) else None


def _grid(
    site: Site, mapping: ThreadMap | None, across: _Across, grids: Grids, factor: int
) -> list[str] | None:  # fmt: skip
    """The grid over the kernel's parameters, an expression for each axis up to the last that has more than one block."""
    found: list[str] = []
    for k, axis in enumerate(AXES):
        index = mapping.index(axis) if mapping is not None else None
        bound = mapping.bounds.get(axis) if mapping is not None and index is not None else None
        copies = factor if axis == across.axis else 1
        if copies > 1 and across.index is None:
            each = ceil_div(across.size, factor * max(1, across.warps))
            found.append(each if across.times == "1" else f"{across.times} * ({each})")
        elif index is not None and bound is not None:
            size = in_parameters(site, bound)
            seen = tuple((launch.grid[k], launch.block[k]) for launch in grids.launches[: len(site.cases)])
            if size is None or not covers(site, size, seen, index.factor):
                return None
            found.append(ceil_div(size, grids.block[k] * index.factor * copies))
        else:
            blocks = grids.times(axis)
            if blocks is None:
                return None
            found.append(blocks)
    while len(found) > 1 and found[-1] == "1":
        found.pop()
    return found


def _as_meant(site: Site, edits: Edits, grid: list[str]) -> bool:
    """Whether the launches after the edits are those, in every case."""
    after = site.configs_after(edits)
    if after is None:
        return False
    wanted = [[site.value_in(expression, case) for expression in grid] for case in site.cases]
    return all([*launch.grid] == [*sizes, 1, 1][:3] for launch, sizes in zip(after, wanted, strict=True))
