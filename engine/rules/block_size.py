"""Try other block shapes."""

import re
from collections.abc import Mapping

from tree_sitter import Node

from engine.cuda.launch import block_constants, extents, hidden_launch, set_constant
from engine.cuda.syntax import THREAD_NAMES, called, children, compact, text, walk
from engine.errors import OptimlError
from engine.model import LaunchConfig
from engine.rewrite import Edit, Edits, Families, Family, Proposal, Proposals, Site, Span, ceil_div, merge, proposal
from engine.rules.idioms import AXES, WARP, ThreadMap, covered, covers, in_parameters, thread_map, thread_uses_outside
from engine.rules.idioms.coverage import Grids
from engine.rules.idioms.shared_elements import lasting
from engine.rules.idioms.strided_loop import StrideLoop, stride_loop

Shape = tuple[int, int]

_SMALL = 128
_OWN = frozenset({"threadIdx.x", "blockDim.x", "blockIdx.x", "blockIdx.y", "blockIdx.z", "gridDim.y", "gridDim.z"})
_LINES = (256, 128, 512, 1024, 64)
_PLANES: tuple[Shape, ...] = ((32, 8), (32, 16), (64, 4), (32, 4), (16, 16), (128, 2), (32, 32), (256, 1))
_COOPERATIVE = re.compile(
    r"__sync\w*|__shfl\w*|__ballot\w*|__any\w*|__all\w*|__reduce\w*|this_thread_block|tiled_partition"
)


class BlockSize:
    """Another number or shape of threads per block, by the constant that the launch uses or by the launch itself."""

    name = "block_size"
    summary = "Change the block size or shape"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.launch_visible:
            return
        blocks = {c.block for c in site.configs}
        if len(blocks) != 1:
            return
        current = blocks.pop()
        if current[2] != 1:
            return
        mapping = thread_map(site)
        loops = _shared_out(site)
        if mapping is not None and free(site, mapping):
            yield from self._by_index(site, mapping, current)
        elif loops:
            yield from self._by_stride(site, loops, current)
        elif current[1] == 1:
            yield from self._by_constant(site, current)
            if current[0] < _SMALL and _alone(site):
                yield from self._merged(site, current[0])

    def _merged(self, site: Site, threads: int) -> Proposals:
        """Several small blocks as the rows of one: the threads keep their numbers, and the block's number is a row's."""
        for rank, rows in enumerate((8, 4, 2)):
            # An SM holds 32 blocks, and starts one at a time.
            edits = _merged(site, rows)
            summary = f"Use blocks of {rows} x {threads} threads for {rows} blocks each"
            yield from proposal(self.name, summary, edits, 0.5 - 0.05 * rank, x=threads, y=rows)

    def _by_index(self, site: Site, mapping: ThreadMap, current: tuple[int, int, int]) -> Proposals:
        """Kernels whose threads differ in their global index alone: any block does whose grid covers the bounds."""
        axes = tuple(i.axis for i in mapping.indices)
        planar = set(axes) == {"x", "y"}
        if not planar and axes != ("x",):
            return
        shapes = _PLANES if planar else tuple((n, 1) for n in _LINES)
        before = site.configs_after({})
        if before is None:
            return
        for rank, shape in enumerate(s for s in shapes if s != current[:2]):
            # Warps that span 32 columns load whole sectors; blocks below 128 threads leave the multiprocessor idle.
            prior = 0.4 - 0.03 * rank + (0.15 if current[0] * current[1] < 128 or current[0] < 32 else 0.0)
            yield from self._shaped(site, mapping, shape, before, prior, planar=planar)

    def _shaped(
        self, site: Site, mapping: ThreadMap, shape: Shape, before: tuple[LaunchConfig, ...], prior: float, *, planar: bool
    ) -> Proposals:  # fmt: skip
        edits = _resized(site, mapping, shape, before)
        label = f"{shape[0]} x {shape[1]}" if planar else str(shape[0])
        yield from proposal(self.name, f"Use blocks of {label} threads", edits, prior, x=shape[0], y=shape[1])

    def _by_stride(self, site: Site, loops: list[StrideLoop], current: tuple[int, int, int]) -> Proposals:
        """Kernels whose threads only share out the iterations of loops: any number of them does."""
        planar = current[1] > 1
        shapes = _PLANES if planar else tuple((n, 1) for n in (*_LINES, WARP))
        longest = _longest(site, loops) if not planar else None
        for rank, shape in enumerate(s for s in shapes if s != current[:2]):
            # Threads beyond the row's length have nothing to do, and few with long rows leave the target idle.
            fits = longest is not None and longest < current[0] and longest <= shape[0] < 2 * max(longest, WARP)
            prior = 0.5 if fits else 0.3 - 0.03 * rank
            yield from self._strided(site, shape, prior, planar=planar)

    def _strided(self, site: Site, shape: Shape, prior: float, *, planar: bool) -> Proposals:
        before = site.configs_after({})
        threads = shape[0] * shape[1]
        block = [str(n) for n in shape] if planar else [str(shape[0])]
        edits = site.launch_edits(block=block) if threads <= site.target.max_threads_per_block else None
        after = site.configs_after(edits) if edits is not None else None
        if before is None or after is None or any(c.block != (*shape, 1) for c in after):
            return
        if [c.grid for c in after] == [c.grid for c in before]:
            label = f"{shape[0]} x {shape[1]}" if planar else str(shape[0])
            yield from proposal(self.name, f"Use blocks of {label} threads", edits, prior, x=shape[0], y=shape[1])

    def families(self, site: Site) -> Families:
        """The block's extents left open, for kernels whose threads differ in their global index alone."""
        mapping = thread_map(site) if site.sound and site.launch_visible else None
        before = site.configs_after({})
        if mapping is None or before is None or not free(site, mapping) or any(c.block[2] != 1 for c in site.configs):
            return
        axes = tuple(i.axis for i in mapping.indices)
        planar = set(axes) == {"x", "y"}
        if not planar and axes != ("x",):
            return
        found, known = mapping, before

        def make(values: Mapping[str, int]) -> Proposal | None:
            shape = (values["x"], values.get("y", 1))
            return next(self._shaped(site, found, shape, known, 0.4, planar=planar), None)

        limit = site.target.max_threads_per_block
        parameters: dict[str, tuple[int, ...]] = {"x": tuple(range(32, 1025, 32))}
        conditions = [f"x <= {limit}"]
        if planar:
            parameters = {"x": (8, 16, 32, 64, 128, 256), "y": (1, 2, 4, 8, 16, 32)}
            conditions = [f"x * y <= {limit}", "x * y >= 32"]
        yield Family(self.name, self.summary, parameters, tuple(conditions), make, 0.4)

    def _by_constant(self, site: Site, current: tuple[int, int, int]) -> Proposals:
        """Kernels whose threads work together: only where one constant sizes the block, grid and arrays."""
        before = site.configs_after({})
        body = site.body
        literals = {text(n) for n in walk(body) if n.type == "number_literal"}
        if before is None or str(current[0]) in literals or site.kernel.launch_bounds:
            return
        for rank, size in enumerate(s for s in (256, 512, 128, 1024) if s != current[0]):
            edits = _constant(site, current[0], size)
            if rank == 0 and edits is not None and not site.changes_only_kernels(edits):
                return
            after = site.configs_after(edits) if edits else None
            if edits is None or after is None or not _same_work(before, after, size, scaled=_scales_blocks(body)):
                continue
            yield from proposal(self.name, f"Use blocks of {size} threads", edits, 0.3 - 0.04 * rank, x=size, y=1)


def _shared_out(site: Site) -> list[StrideLoop]:
    """The loops whose iterations a block's threads share out, each for itself; none where a thread's number serves anything else."""
    loops = [loop for n in walk(site.body) if (loop := stride_loop(n, memory=True)) is not None]
    loops = [loop for loop in loops if _by_threads(site, loop)]
    if not loops or not _alone(site) or any(lasting(loop) for loop in loops):
        return []
    heads = [(loop.node.start_byte, loop.body.start_byte) for loop in loops]
    for node in walk(site.body):
        own = node.type == "identifier" and text(node) in ("threadIdx", "blockDim", "warpSize")
        if own and not any(low <= node.start_byte < high for low, high in heads):
            return []
    return loops


def _by_threads(site: Site, loop: StrideLoop) -> bool:
    """Whether the loop begins at the thread's number along an axis, counted from anywhere, and goes on by the block's extent."""
    axis = re.fullmatch(r"\(*blockDim\.([xy])\)*", re.sub(r"\s", "", loop.step))
    start = site.scope.index(loop.start)
    parts = start.split(f"threadIdx.{axis[1]}") if axis and start is not None else None
    return parts is not None and parts[0].constant == 1 and not parts[1].names() & {"threadIdx", "blockDim"}


def _longest(site: Site, loops: list[StrideLoop]) -> int | None:
    """The most iterations that a loop has in a timing case."""
    bounds = [in_parameters(site, loop.bound) for loop in loops]
    values = [site.value_in(b, case) if b is not None else None for b in bounds for case in site.spec.time]
    known = [v for v in values if v is not None]
    return max(known) if known and len(known) == len(values) else None


def free(site: Site, mapping: ThreadMap) -> bool:
    """Whether no thread looks at others, at its place in the block, or at the size of the block."""
    return not thread_uses_outside(site, mapping.indices) and _alone(site)


def _alone(site: Site) -> bool:
    """Whether no thread looks at what others do, and nothing fixes how many there are."""
    if site.kernel.shared or site.kernel.launch_bounds:
        return False
    functions = {f.name: f for unit in (*site.headers, site.unit) for f in unit.functions}
    macros = site.function_macros
    for node in walk(site.body):
        if node.type == "call_expression":
            name = called(node)
            if _COOPERATIVE.match(name) or name.endswith("sync"):
                return False
            if name in functions and any(text(n) in THREAD_NAMES for n in walk(functions[name].node)):
                return False
            if _threaded(macros.get(name, "")):
                return False
        if node.type == "identifier" and _threaded(site.unit.macros.get(text(node), "")):
            return False
        if node.type == "gnu_asm_expression":
            return False
    return True


def _threaded(replacement: str) -> bool:
    return any(re.search(rf"\b{name}\b", replacement) for name in THREAD_NAMES) or bool(
        _COOPERATIVE.search(replacement)
    )


def _resized(site: Site, mapping: ThreadMap, shape: Shape, before: tuple[LaunchConfig, ...]) -> Edits | None:
    """Edits for one block shape: the launch, and in the kernel the constant that stood for the block's extent."""
    if shape[0] * shape[1] > site.target.max_threads_per_block:
        return None
    bounds = covered(site, mapping, before)
    if bounds is None:
        return None
    figures = [(axis, k, mapping.index(axis)) for k, axis in enumerate(AXES) if axis in bounds]
    grid = [ceil_div(bounds[axis], shape[k] * index.factor) for axis, k, index in figures if index is not None]
    block = [str(shape[0])] if len(grid) == 1 else [str(shape[0]), str(shape[1])]
    edits = merge(site.launch_edits(grid=grid, block=block), _dimensions(site, mapping))
    if edits is None:
        return None
    after = site.configs_after(edits)
    if after is None or any(c.block[:2] != shape for c in after):
        return None
    # The launch that is measured is the one the text evaluates to: it has to cover what the guard lets through.
    for axis, k, index in figures:
        launched = tuple((c.grid[k], c.block[k]) for c in after)
        if index is not None and not covers(site, bounds[axis], launched, index.factor):
            return None
    return edits


def _merged(site: Site, rows: int) -> Edits | None:
    """The kernel with rows of threads for blocks along x. Where it is not given their number, they are merged if that is a multiple."""
    uses = [n.parent for n in walk(site.body) if n.type == "identifier" and text(n) in THREAD_NAMES]
    before, grids = site.configs_after({}), Grids.of(site)
    if before is None or any(u is None or compact(u) not in _OWN for u in uses) or site.spec.steps[site.step].launch:
        return None
    if site.block_varies or hidden_launch(site.program, site.kernel.name):
        return None
    block = site.fresh("block")
    known = grids.blocks("x") if grids is not None else None
    indent = site.indent_at(children(site.body)[0].start_byte)
    lines = [f"const unsigned int {block} = blockIdx.x * blockDim.y + threadIdx.y;"]
    lines += [f"if ({block} >= {known}) return;"] if known is not None else []
    edits = [Edit.insert(site.body.start_byte + 1, "".join(f"\n{indent}{line}" for line in lines))]
    edits += [Edit.replace(u, block) for u in uses if u is not None and compact(u) == "blockIdx.x"]
    host: dict[str, list[Edit]] = {}
    for launch in site.launches:
        grid, own = (extents(site.program, launch, part) for part in (0, 1))
        if grid is None or own is None:
            return None
        each = str(rows) if known is not None else f"{grid[0]} % {rows} == 0 ? {rows} : 1"
        fewer = f"({grid[0]} + {rows - 1}) / {rows}" if known is not None else f"{grid[0]} / ({each})"
        figures = ", ".join([fewer, *(_bare(e) for e in grid[1:])])
        host.setdefault(launch.path, []).extend([
            Edit(launch.parts[0].span, figures if len(grid) == 1 else f"dim3({figures})"),
            Edit(launch.parts[1].span, f"dim3({_bare(own[0])}, {each})"),
        ])  # fmt: skip
    merged = merge(site.in_file(*edits), {path: tuple(listed) for path, listed in host.items()})
    after = site.configs_after(merged) if merged is not None else None
    for old, new in zip(before, after or (), strict=True) if after else ():
        covered_rows = new.grid[0] * new.block[1]
        if new.block[0] != old.block[0] or new.grid[1:] != old.grid[1:] or not 0 <= covered_rows - old.grid[0] < rows:
            return None
        if known is None and covered_rows != old.grid[0]:
            return None
    return merged if after else None


def _bare(extent: str) -> str:
    return extent[1:-1] if extent.startswith("(") else extent


def _dimensions(site: Site, mapping: ThreadMap) -> Edits:
    """`blockDim.x` in place of the constant that stood for it in an index."""
    edits = []
    for index in mapping.indices:
        dimension = f"blockDim.{index.axis}"
        if index.extent == dimension:
            continue
        for node in walk(index.declaration):
            within = _initialises(node.start_byte, index.declaration.start_byte, site, index.name)
            if within and node.type in ("identifier", "number_literal") and text(node) == index.extent:
                edits.append(Edit(Span(node.start_byte, node.end_byte), dimension))
    return {site.program.kernel_file: tuple(edits)} if edits else {}


def _initialises(offset: int, start: int, site: Site, name: str) -> bool:
    head = site.unit.data[start:offset].decode("utf-8", "replace")
    return head.rfind(f"{name} =") > head.rfind(",") or head.rfind(f"{name}=") > head.rfind(",")


def _constant(site: Site, current: int, size: int) -> Edits | None:
    """The definition of the one constant that every launch's block depends on, rewritten."""
    names: set[tuple[str, str]] = set()
    try:
        for launch in site.launches:
            constants = [c for c in block_constants(site.program, launch) if c.value == current]
            if len(constants) != 1:
                return None
            names.add((constants[0].path, constants[0].name))
        if len(names) != 1:
            return None
        path, name = names.pop()
        edits = set_constant(site.program, path, name, str(size))
    except OptimlError:
        return None
    return {path: tuple(edits)} if edits else None


def _scales_blocks(body: Node) -> bool:
    """Whether a block's number is multiplied: then a block covers a share of the work that goes with its size."""
    return any(
        n.type == "binary_expression" and any(text(c) == "*" for c in n.children) and "blockIdx" in text(n)
        for n in walk(body)
    )


def _same_work(before: tuple[LaunchConfig, ...], after: tuple[LaunchConfig, ...], size: int, *, scaled: bool) -> bool:
    """Whether the grid went with the block (as many threads, to within one block), or neither depends on the other."""
    if any(c.block != (size, 1, 1) for c in after):
        return False
    pairs = list(zip(after, before, strict=True))
    follows = all(abs(a.blocks * a.threads - b.blocks * b.threads) < max(a.threads, b.threads) for a, b in pairs)
    return follows or (not scaled and all(a.grid == b.grid for a, b in pairs))
