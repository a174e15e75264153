"""Let each thread of a block that shares a tile do the work of several rows of threads.

Source of the method: G. Ruetsch and P. Micikevicius, "Optimizing Matrix Transpose in CUDA" (2009): a tile of 32 x 32 elements by 32 x 8
threads. Fewer threads wait at each barrier, their index arithmetic is shared, and each has several loads in flight.
"""

from engine.cuda.syntax import compact
from engine.rewrite import Edits, Proposals, Site, merge, proposal
from engine.rules.idioms import WARP, BarrierSegment, NoSegments, looped, segments_of

_FACTORS = (4, 2, 8)
_LEAST_THREADS = 64


class BlockRows:
    """Blocks of fewer rows of threads, each thread looping over the rows between any two barriers."""

    name = "block_rows"
    summary = "Several rows of the block per thread"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.launch_visible or not site.manageable or not site.kernel.shared:
            return
        shapes = {c.block for c in site.configs_after({}) or ()}
        if len(shapes) != 1:
            return
        ((columns, rows, deep),) = shapes
        if deep != 1 or rows == 1 or "blockDim.y" in compact(site.body):
            return
        try:
            segments = segments_of(site, "y")
        except NoSegments:
            return
        for rank, factor in enumerate(_FACTORS):
            threads = columns * rows // factor
            if rows % factor or threads < _LEAST_THREADS or threads % WARP:
                continue
            yield from proposal(
                self.name,
                f"{factor} rows of the block per thread, {columns} x {rows // factor} threads",
                _edits(site, segments, columns, rows, factor),
                0.42 - 0.05 * rank,
                factor=factor,
            )


def _edits(site: Site, segments: list[BarrierSegment], columns: int, rows: int, factor: int) -> Edits | None:
    first = site.fresh("first")
    line = site.fresh("line", (first,))
    loop = f"for (int {first} = 0; {first} < {rows}; {first} += {rows // factor}) {{\nconst int {line} = {first} + threadIdx.y;"
    edits = looped(site, segments, loop, {"threadIdx.y": line})
    return merge(site.in_file(*edits), site.launch_edits(block=[str(columns), str(rows // factor)]))
