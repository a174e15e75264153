"""A block's prefix sum with several elements for each thread, and fewer threads.

Source of the method: D. Merrill and M. Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back" (2016): each thread
adds up consecutive elements in registers, so that shuffles and barriers serve several elements at once. The look-back itself needs
words that are zero before each launch, or are kept between launches. An edit of kernels can have neither.
"""

from engine.cuda.syntax import children, compact
from engine.rewrite import Edit, Edits, Proposals, Site, proposal, template
from engine.rules.idioms import WARP, BarrierSegment, NoSegments, fewer_threads, one_dimensional, segments_of
from engine.rules.reduction.warp_scan import BlockScan, block_scans

_ITEMS = (4, 8, 2)
_LEAST_THREADS = 64
_FEW_WARPS = 8  # whose sums each thread adds up itself: with 32 it takes 2 µs more than a scan of them, and its barrier, on an H200


class ScanItems:
    """Blocks of fewer threads, each with several of the elements that a prefix sum in shared memory runs over."""

    name = "scan_items"
    summary = "Several elements per thread in a block's prefix sum"

    def propose(self, site: Site) -> Proposals:
        scans = block_scans(site)
        blocks = one_dimensional(site)
        held = {array.name: array.type for array in site.kernel.shared}
        top = children(site.body)
        if not scans or len(blocks) != 1 or not site.launch_visible or any(scan.loop not in top for scan in scans):
            return
        # What threads of a warp exchange without a barrier, or a copy that is called with the old number of threads, is not seen.
        if "volatile" in compact(site.body) or len({held[scan.array] for scan in scans}) != 1:
            return
        try:
            segments = segments_of(site, "x", [scan.loop for scan in scans])
        except NoSegments:
            return
        (elements,) = blocks
        for rank, items in enumerate(_ITEMS):
            threads = elements // items
            if elements % (items * WARP) or threads < _LEAST_THREADS:
                continue
            edits = _edits(site, segments, scans, items, threads)
            if edits is not None:
                said = f"Block prefix sum with {threads} threads, {items} elements each"
                yield from proposal(self.name, said, edits, 0.6 - 0.05 * rank, items=items)


def _edits(
    site: Site, segments: list[BarrierSegment], scans: list[BlockScan], items: int, threads: int
) -> Edits | None:
    name = site.fresh("block_scan", ("first", "item"))
    above = Edit.insert(site.declaration_start, helper(name, scans[0].type, items, threads))
    return fewer_threads(site, segments, threads, items, [above, *(scan.call(site, name) for scan in scans)])


def helper(name: str, kind: str, items: int, threads: int) -> str:
    """A function that does the prefix sum of `items` elements for each of so many threads, in shared memory."""
    parts = template("engine.rules", "block_scan_items").sections()
    warps = str(threads // WARP)
    others = parts["few" if threads // WARP <= _FEW_WARPS else "many"]
    return parts["scan"].render(
        name=name, T=kind, elements=str(items * threads), threads=str(threads), items=str(items), warps=warps,
        others=others.render(**{hole: {"T": kind, "warps": warps}[hole] for hole in others.holes}),
    )  # fmt: skip
