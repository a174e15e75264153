"""Let each thread work on several elements."""

from dataclasses import dataclass

from engine.cuda.questions import Polynomial, children, declarators, names, text, variables, walk
from engine.model import LaunchConfig
from engine.rewrite import Edit, Edits, Families, Family, Node, Point, Proposal, Proposals, Site, Span, merge, proposal
from engine.rewrite.wording import ceil_div, reindent
from engine.rules.idioms import AXES, Axis, Index, ThreadMap, definition, in_parameters, stride_loop, thread_map
from engine.rules.idioms.coverage import covered, covers, independent, only_bound

_FACTORS = (4, 2, 8)
_MOST_WAVES = 4


class Coarsen:
    """Fewer threads with several elements each: strided by the block (loads stay coalesced) or by the grid."""

    name = "coarsen"
    summary = "Several elements per thread"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.launch_visible:
            return
        before = site.configs_after({})
        if before is None or any(c.grid[2] != 1 or c.block[2] != 1 for c in before):
            return
        mapping = thread_map(site)
        if mapping is not None and independent(site, mapping):
            axis: Axis = "y" if mapping.index("y") is not None else "x"
            # Where the threads do not fill the target as it is, fewer of them only lose.
            weight = 1.0 if site.waves >= _FACTORS[0] else 0.25
            for rank, factor in enumerate(_FACTORS):
                # More loads in flight per thread, and the index arithmetic is shared; costs parallelism in small grids.
                yield from proposal(
                    self.name,
                    f"{factor} elements per thread along {axis}",
                    _coarsened(site, mapping, axis, factor, before),
                    (0.3 - 0.04 * rank) * weight,
                    factor=factor,
                    form="block",
                    axis=axis,
                )
            if axis == "x":
                for factor in (4, 16):
                    yield from proposal(
                        self.name,
                        f"Grid-stride loop, {factor} elements per thread",
                        _grid_stride(site, mapping, factor, before),
                        0.22 * weight,
                        factor=factor,
                        form="grid",
                        axis=axis,
                    )
        yield from self._resident(site, before)

    def families(self, site: Site) -> Families:
        """The elements per thread left open, strided by the block."""
        before = site.configs_after({}) if site.sound and site.launch_visible else None
        mapping = thread_map(site) if before is not None else None
        if before is None or mapping is None or any(c.grid[2] != 1 or c.block[2] != 1 for c in before):
            return
        if not independent(site, mapping):
            return
        axis: Axis = "y" if mapping.index("y") is not None else "x"
        found, known = mapping, before

        def make(values: Point) -> Proposal | None:
            factor = values["factor"]
            edits = _coarsened(site, found, axis, factor, known)
            summary = f"{factor} elements per thread along {axis}"
            return next(proposal(self.name, summary, edits, 0.3, factor=factor, form="block", axis=axis), None)

        factors = (2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32)
        yield Family(self.name, f"{self.summary} along {axis}", {"factor": factors}, (), make, 0.3)

    def _resident(self, site: Site, before: tuple[LaunchConfig, ...]) -> Proposals:
        """Grid-stride kernels are right for every grid: as many blocks as the target holds at once, or more."""
        if (
            not _strides_over_grid(site)
            or numbered_results(site)
            or any(c.grid[1] != 1 or c.block[1] != 1 for c in before)
        ):
            return
        threads = {c.threads for c in before}
        if len(threads) != 1:
            return
        at_once = site.target.blocks_at_once(max(threads))
        for times in (1, 2, _MOST_WAVES):
            blocks = site.target.multiprocessors * at_once * times
            if all(c.grid[0] == blocks for c in before):
                continue
            yield from proposal(
                self.name,
                f"Grid-stride loop with at most {blocks} blocks",
                site.launch_edits(grid=[at_most(site, _rounds(site, max(threads)), blocks)]),
                0.25 if times == 1 else 0.18,
                blocks=blocks,
                form="resident",
            )


def numbered_results(site: Site) -> bool:
    """Whether the kernel stores a result for each of its blocks or threads: another grid would store others.

    What the grid-stride loop itself stores goes by its counter.
    """
    pointers = {p.name for p in site.kernel.parameters if p.pointer}
    counters = {loop.variable for n in walk(site.body) if (loop := stride_loop(n, memory=True)) is not None}
    counters |= {loop.variable for loop in _grid_loops(site)}
    for access in site.kernel.accesses:
        if access.kind == "read" or access.node is None or access.array not in pointers:
            continue
        waiting, seen = [access.node], set(counters)
        while waiting:
            found = names(waiting.pop()) - seen
            if found & {"blockIdx", "gridDim"}:
                return True
            seen |= found
            waiting += [d for n in found if (d := definition(site, n)) is not None]
    return False


def _coarsened(
    site: Site, mapping: ThreadMap, axis: Axis, factor: int, before: tuple[LaunchConfig, ...]
) -> Edits | None:
    bounds = covered(site, mapping, before)
    index = mapping.index(axis)
    blocks = {c.block for c in before}
    if bounds is None or index is None or len(blocks) != 1:
        return None
    block = blocks.pop()
    grid = [ceil_div(bounds[a], block[k] * (factor if a == axis else 1)) for k, a in enumerate(AXES) if a in bounds]
    if list(bounds) not in (["x"], ["x", "y"], ["y", "x"]):
        return None
    first, count = site.fresh(f"{index.name}0"), site.fresh("k")
    declaration = f"{index.type} {first} = {index.block} * ({index.extent} * {factor}) + threadIdx.{axis};"
    loop = f"for (int {count} = 0; {count} < {factor}; ++{count}) {{"
    inside = f"{index.type} {index.name} = {first} + {count} * {index.extent};"
    body = _looped(site, mapping, index, declaration, _WorkLoop(["#pragma unroll", loop], [inside], keeps_guard=True))
    edits = merge(body, site.launch_edits(grid=grid)) if body is not None else None
    return edits if edits is not None and _still_covers(site, edits, bounds, axis, factor) else None


def _grid_stride(site: Site, mapping: ThreadMap, factor: int, before: tuple[LaunchConfig, ...]) -> Edits | None:
    bounds = covered(site, mapping, before)
    index = mapping.index("x")
    blocks = {c.block for c in before}
    if bounds is None or index is None or list(bounds) != ["x"] or len(blocks) != 1 or not only_bound(mapping):
        return None
    loop, *inside = index.grid_stride(site, mapping.bounds["x"])
    body = _looped(site, mapping, index, None, _WorkLoop([loop], [line.strip() for line in inside], keeps_guard=False))
    grid = [ceil_div(bounds["x"], blocks.pop()[0] * factor)]
    edits = merge(body, site.launch_edits(grid=grid)) if body is not None else None
    return edits if edits is not None and site.configs_after(edits) is not None else None


def _still_covers(site: Site, edits: Edits, bounds: dict[Axis, str], axis: Axis, factor: int) -> bool:
    after = site.configs_after(edits)
    if after is None:
        return False
    return all(
        covers(
            site,
            bound,
            tuple((c.grid[AXES.index(a)], c.block[AXES.index(a)]) for c in after),
            factor if a == axis else 1,
        )
        for a, bound in bounds.items()
    )


@dataclass(frozen=True)
class _WorkLoop:
    """A loop around a kernel's work: its first lines, the first lines inside, and whether the bound is tested there too."""

    opening: list[str]
    inside: list[str]
    keeps_guard: bool


def _looped(
    site: Site,
    mapping: ThreadMap,
    index: Index,
    declaration: str | None,
    loop: _WorkLoop,
) -> Edits | None:
    """The kernel with its work in a loop: the index's declaration replaced, what depends on it moved inside."""
    keep_guard = loop.keeps_guard
    unit = site.indent_unit
    outer = site.indent_at(index.declaration.start_byte)
    inner = outer + unit
    edits: list[Edit] = []
    if declaration is not None:
        edits.append(Edit.replace(index.declaration, declaration))
    else:
        edits.append(Edit(site.line_span(index.declaration), ""))
    moved = [d for d in mapping.derived if _depends(mapping, d, index)]
    edits += [Edit(site.line_span(d), "") for d in moved]
    lines = [outer + line for line in loop.opening] + [inner + line for line in loop.inside]
    lines += [reindent(site.render(d.start_byte, d.end_byte), site.indent_at(d.start_byte), inner) for d in moved]
    first = mapping.guards[0]
    last = children(site.body)[-1]
    if mapping.style == "wrap" and not keep_guard:
        body = first.child_by_field_name("consequence")
        work = _inner_text(site, body, inner) if body is not None else None
    elif mapping.style == "return" and not keep_guard:
        work = _with_continue(site, mapping.work[0].start_byte, last, mapping.work, inner)
    else:
        nodes = (
            mapping.guards
            if mapping.style == "wrap"
            else tuple(s for s in children(site.body) if s.start_byte >= first.start_byte and s not in moved)
        )
        if any(first.start_byte < d.start_byte for d in moved):
            return None
        work = _with_continue(site, first.start_byte, last, nodes, inner)
    if work is None:
        return None
    lines += [work, outer + "}"]
    begin = _line_start(site, first.start_byte)
    edits.append(Edit(Span(begin, last.end_byte), "\n".join(lines)))
    return merge(site.in_file(*edits))


def _line_start(site: Site, offset: int) -> int:
    """The start of the line where only white space stands before the offset, else the offset."""
    begin = site.unit.data.rfind(b"\n", 0, offset) + 1
    return begin if not site.unit.data[begin:offset].strip() else offset


def _depends(mapping: ThreadMap, declaration: Node, index: Index) -> bool:
    moving = {index.name}
    for derived in mapping.derived:
        if names(derived) & moving:
            moving |= {
                n for n in names(derived) if derived == declaration or (n not in moving and _declares(derived, n))
            }
            if derived == declaration:
                return True
    return False


def _declares(declaration: Node, name: str) -> bool:
    return name in {n for n, _ in declarators(declaration)}


def _inner_text(site: Site, body: Node, indent: str) -> str | None:
    """The statements of a block or the single statement, indented; None where it returns."""
    if any(n.type == "return_statement" for n in walk(body)):
        return None
    parts = children(body) if body.type == "compound_statement" else [body]
    if not parts:
        return None
    start = body.start_byte + 1 if body.type == "compound_statement" else body.start_byte
    end = body.end_byte - 1 if body.type == "compound_statement" else body.end_byte
    written = site.render(start, end).strip("\n").rstrip()
    return reindent(written, site.indent_at(parts[0].start_byte), indent)


def _with_continue(site: Site, start: int, last: Node, nodes: tuple[Node, ...], indent: str) -> str | None:
    """The statements from `start` on, with `return` as `continue`; None where a return stands in a loop or a switch."""
    changes = []
    for node in nodes:
        for n in walk(node):
            if n.type != "return_statement":
                continue
            above = n.parent
            while above is not None and above != node.parent:
                if above.type in (
                    "for_statement",
                    "while_statement",
                    "do_statement",
                    "switch_statement",
                    "for_range_loop",
                ):
                    return None
                above = above.parent
            changes.append((n.start_byte, n.end_byte, "continue;"))
    return reindent(site.render(start, last.end_byte, changes), site.indent_at(start), indent)


@dataclass(frozen=True)
class _GridLoop:
    """A loop that starts at the block's share of the work and goes on by that of the whole grid."""

    variable: str
    bound: Node | None  # None where the condition is another than `variable < bound`
    share: Polynomial  # what one block takes of each round


def _grid_loops(site: Site) -> list[_GridLoop]:
    """The kernel's grid-stride loops, whose elements are those of threads, warps or blocks."""
    found = []
    for node in walk(site.body):
        head, condition, update = (node.child_by_field_name(f) for f in ("initializer", "condition", "update"))
        declared = list(variables(head)) if head is not None and head.type == "declaration" else []
        if node.type != "for_statement" or len(declared) != 1 or declared[0].value is None or condition is None:
            continue
        name, sign = declared[0].name, update.child_by_field_name("operator") if update is not None else None
        by = update.child_by_field_name("right") if update is not None else None
        if sign is None or by is None or text(sign) != "+=" or name not in names(condition):
            continue
        start, step = site.scope.index(declared[0].value), site.scope.index(by)
        own, whole = (start and start.split("blockIdx.x")), (step and step.split("gridDim.x"))
        if not own or not whole or not whole[0].terms or whole[1].terms or own[0] != whole[0]:
            continue
        if "blockIdx" not in own[0].names() | own[1].names():
            plain = stride_loop(node, memory=True)
            found.append(_GridLoop(name, plain.bound if plain is not None else None, own[0]))
    return found


def _strides_over_grid(site: Site) -> bool:
    """Whether blocks and grid enter the kernel through grid-stride loops alone."""
    loops = _grid_loops(site)
    uses = [n for n in walk(site.body) if n.type == "identifier" and text(n) in ("gridDim", "blockIdx")]
    starts = [n for n in uses if text(n) == "blockIdx"]
    strides = [n for n in uses if text(n) == "gridDim"]
    return bool(loops) and len(starts) <= len(loops) and len(strides) <= len(loops)


def _rounds(site: Site, threads: int) -> set[tuple[str, int] | None]:
    """The bounds of the kernel's grid-stride loops over its parameters, with a block's share; None for one that cannot be told."""
    found: set[tuple[str, int] | None] = set()
    for loop in _grid_loops(site):
        bound = in_parameters(site, loop.bound) if loop.bound is not None else None
        share = site.value_of(loop.share.render().replace("blockDim.x", str(threads)))
        found.add((bound, share) if bound is not None and share else None)
    return found


def at_most(site: Site, rounds: set[tuple[str, int] | None], blocks: int) -> str:
    """The number of blocks, less where the grid-stride loop's bound needs fewer and the host's text can say so."""
    # CUDA's own min, for two ints, is there in files that nvcc compiles.
    plain = all(r is not None and r[0] in _ints(site) for r in rounds)
    (one,) = rounds if len(rounds) == 1 else (None,)
    if one is not None and plain and all(s.path.endswith((".cu", ".cuh")) for s in site.launches):
        return f"min({ceil_div(one[0], one[1]) if one[1] > 1 else one[0]}, {blocks})"
    return str(blocks)


def _ints(site: Site) -> set[str]:
    return {p.name for p in site.kernel.parameters if not p.pointer and p.base == "int"}
