"""Let each thread work out several results that share loads (unroll-and-jam)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from engine.cuda.declarations import declarators, declared_type
from engine.cuda.effects import written
from engine.cuda.syntax import children, is_integer_type, strip, text, walk
from engine.rewrite import Edit, Edits, Family, Node, Proposal, Site, Span, merge, proposal
from engine.rewrite.wording import ceil_div, grouped
from engine.rules.idioms.grids import Grids, whole_numbers
from engine.rules.idioms.jam import Change, Copies, Jam
from engine.rules.idioms.known_values import covers, in_parameters
from engine.rules.idioms.thread_index import AXES, Axis, Index, ThreadMap, thread_map, thread_uses_outside

_FACTORS = (4, 8, 2)
_TUNED = (2, 3, 4, 5, 6, 8, 10, 12, 16)
# The same for all threads of a block, and kept as they are.
_UNIFORM = frozenset({"blockIdx.y", "blockIdx.z", "blockDim.x", "blockDim.y"})
_BLOCK = re.compile(r"blockIdx\s*\.\s*([xyz])")


@dataclass(frozen=True)
class _Across:
    """A variable whose neighbouring values one thread can take on.

    `bound` is its exclusive bound as the kernel writes it, `size` the same over the kernel's parameters. The threads along `axis` have
    the values where there is an `index`; else its blocks have them, `times` over (`split`), each divided by the `quotients` for what
    else they number.
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


class UnrollJam:
    """Several values of one index to a thread: what does not depend on it, loads above all, is done once for all of them.

    Unlike `coarsen`, whose copies follow each other, these go side by side through the kernel's loops. Copies beyond the last value
    repeat the last one's work and store nothing. A load behind a condition is made once for all copies, and before the condition,
    where the two have no name in common.
    """

    name = "unroll_jam"
    summary = "Several results per thread that share loads"

    def propose(self, site: Site) -> Iterator[Proposal]:
        for across, make in self._forms(site):
            for rank, factor in enumerate(_FACTORS):
                if 2 * site.waves < factor:  # too few threads would be left to fill the target
                    continue
                yield from proposal(
                    self.name, _summary(across, factor), make(factor), 0.4 - 0.04 * rank,
                    factor=factor, index=across.variable,
                )  # fmt: skip

    def families(self, site: Site) -> Iterator[Family]:
        """The number of results to a thread left open."""
        if 2 * site.waves < min(_TUNED):
            return
        for across, make in self._forms(site):

            def choice(
                values: Mapping[str, int], across: _Across = across, make: Callable[[int], Edits | None] = make
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
        mapping, scope = thread_map(site), site.scope
        guards = mapping.guards if mapping is not None else ()
        for across in _candidates(site, mapping, grids):
            try:
                jam = Jam(site, scope, across.variable, across.declaration, guards)
            except ValueError:
                continue
            if jam.shared:
                yield across, partial(_edits, site, mapping, across, jam, grids)


def _summary(across: _Across, factor: int) -> str:
    return f"{factor} values of {across.variable} per thread, sharing loads"


def _candidates(site: Site, mapping: ThreadMap | None, grids: Grids) -> Iterator[_Across]:
    """The variables whose values could be shared out anew, those made of block numbers first."""
    indices = mapping.indices if mapping is not None else ()
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
                yield across
    if mapping is None or mapping.style == "none" or thread_uses_outside(site, indices, _UNIFORM):
        return
    for index in indices:
        bound = mapping.bounds.get(index.axis)
        size = in_parameters(site, bound) if bound is not None else None
        if index.alone and index.factor == 1 and bound is not None and size is not None:
            yield _Across(index.name, index.type, index.axis, index.declaration, grouped(bound), size, index=index)


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
    value = f"{first} + {count}"
    if across.index is not None:
        extent = across.index.extent
        start = f"blockIdx.{across.axis} * ({extent} * {factor}) + threadIdx.{across.axis}"
        value += f" * {extent}"
    else:
        start = f"blockIdx.{across.axis}{f' % {share}' if across.split else ''} * {factor}"
    within = f"{value} < {across.bound}"
    copies = Copies(
        across.variable, across.declaration, first, f"{across.type} {first} = {start};",
        f"{within} ? {value} : {across.bound} - 1", within, count, factor,
        mapping.guards if mapping is not None else (), tuple(changes),
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
            each = ceil_div(across.size, factor)
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
