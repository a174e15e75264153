"""The two thread axes of a plane change places, so that neighbours in a warp touch neighbours in memory.

Source of the method: CUDA C++ Best Practices Guide, "Coalesced Access to Global Memory".
"""

from engine.cuda.questions import THREAD_NAMES, Polynomial, is_target, text, walk
from engine.rewrite import Edit, Edits, LaunchConfig, Node, Proposals, Scope, Site, ceil_div, merge, proposal
from engine.rules.block_size import free
from engine.rules.idioms import Index, ThreadMap, covered, covers, thread_map

# 32-byte sectors that a warp's access to 4-byte elements touches: one element for all, neighbours, strided. What a strided
# load brings besides stays in L1 for the next warps; a strided store sends each of its sectors on by itself.
_BROADCAST, _COALESCED, _STRIDED = 1, 4, 32
_STRIDED_LOAD = 24
_LOOP = 8  # an access in a loop counts as so many outside
_MAX_GRID_Y = 65535
_SHAPES = ((32, 16), (32, 8), (64, 4))


class SwapAxes:
    """`.x` and `.y` exchanged in the kernel together with the launch, where the fast index runs along `.y`."""

    name = "swap_axes"
    summary = "Swap the thread axes to coalesce accesses"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.launch_visible or not site.manageable:
            return
        mapping, before = thread_map(site), site.configs_after({})
        if mapping is None or before is None or mapping.style == "none" or not free(site, mapping):
            return
        x, y = mapping.index("x"), mapping.index("y")
        if x is None or y is None or len(mapping.indices) != 2 or x.factor != 1 or y.factor != 1:
            return
        blocks = {c.block for c in before}
        bounds = covered(site, mapping, before)
        cost = _sectors(site, x, y)
        if bounds is None or len(blocks) != 1 or cost is None or cost[1] >= cost[0]:
            return
        old = blocks.pop()
        shapes = dict.fromkeys([(old[1], old[0]), *_SHAPES])
        gain = 1 - cost[1] / cost[0]
        for rank, shape in enumerate(s for s in shapes if _fits(x, y, s, old)):
            edits = _swapped(site, mapping, bounds["x"], bounds["y"], shape)
            # A strided warp moves eight times the bytes it uses.
            yield from proposal(
                self.name,
                f"Map threadIdx.x to {y.name} and threadIdx.y to {x.name}, in blocks of {shape[0]} x {shape[1]}",
                edits,
                (0.5 if shape[0] < site.target.warp else 0.85 - 0.03 * rank) * gain,
                x=shape[0],
                y=shape[1],
            )


def _fits(x: Index, y: Index, shape: tuple[int, int], old: tuple[int, int, int]) -> bool:
    """A constant that stands for a block's extent stays with its variable."""
    return (y.extent == "blockDim.y" or shape[0] == old[1]) and (x.extent == "blockDim.x" or shape[1] == old[0])


def _sectors(site: Site, x: Index, y: Index) -> tuple[int, int] | None:
    """Sectors that a warp touches as it is, and with the axes exchanged; None where an index cannot be told."""
    scope = Scope(site.unit, site.kernel, frozenset({x.name, y.name}))
    before = after = 0
    for node in walk(site.body):
        if node.type != "subscript_expression":
            continue
        element = scope.element(node)
        if element is None:
            continue
        index = element[1]
        if index is None:
            return None
        weight = _LOOP ** min(2, _depth(node, site))
        strided = _STRIDED if is_target(node) else _STRIDED_LOAD
        before += weight * _touched(index, x.name, strided)
        after += weight * _touched(index, y.name, strided)
    return (before, after) if before else None


def _touched(index: Polynomial, lane: str, strided: int) -> int:
    parts = index.split(lane)
    if parts is None:
        return strided
    factor = parts[0].constant
    if factor == 0:
        return _BROADCAST
    return _COALESCED if factor in (1, -1) else strided


def _depth(node: Node, site: Site) -> int:
    depth, above = 0, node.parent
    while above is not None and above != site.body:
        depth += above.type in ("for_statement", "while_statement", "do_statement")
        above = above.parent
    return depth


def _swapped(site: Site, mapping: ThreadMap, along_x: str, along_y: str, shape: tuple[int, int]) -> Edits | None:
    edits = []
    for node in walk(site.body):
        owner = node.child_by_field_name("argument") if node.type == "field_expression" else None
        field = node.child_by_field_name("field") if owner is not None else None
        if owner is None or field is None or text(owner) not in THREAD_NAMES or text(field) not in ("x", "y"):
            continue
        edits.append(Edit.replace(field, "y" if text(field) == "x" else "x"))
    launch = site.launch_edits(
        grid=[ceil_div(along_y, shape[0]), ceil_div(along_x, shape[1])], block=[str(shape[0]), str(shape[1])]
    )
    merged = merge(site.in_file(*edits), launch)
    after = site.configs_after(merged) if merged is not None else None
    if after is None or not _covered(site, after, along_x, along_y, shape):
        return None
    return merged


def _covered(site: Site, after: tuple[LaunchConfig, ...], along_x: str, along_y: str, shape: tuple[int, int]) -> bool:
    if any(c.block != (*shape, 1) or c.grid[1] > _MAX_GRID_Y for c in after):
        return False
    first = covers(site, along_y, tuple((c.grid[0], c.block[0]) for c in after), 1)
    return first and covers(site, along_x, tuple((c.grid[1], c.block[1]) for c in after), 1)
