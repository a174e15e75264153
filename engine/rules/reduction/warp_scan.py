"""A prefix sum in shared memory becomes shuffles between registers.

Source of the method: M. Harris, S. Sengupta, J. Owens, "Parallel Prefix Sum (Scan) with CUDA" (GPU Gems 3, chapter 39), and the CUDA C++
Programming Guide, "Warp Shuffle Functions": Hillis and Steele's scan passes two barriers at each of its levels, shuffles three in all.
"""

import re
from dataclasses import dataclass
from functools import partial
from itertools import product

from engine.cuda.syntax import compact, text, walk
from engine.rewrite import Edit, Node, Pattern, Proposals, Site, Span, proposal, template
from engine.rules.idioms import SHUFFLED, WARP, doubles, is_barrier, is_block, is_thread, one_dimensional, with_pragma

_ZERO = re.compile(r"0[uUlL]*|0?\.0*[fF]?|0\.[fF]?")
_LOADS = ("$T $left = $u >= $s ? $a[$t - $s] : $zero;", "$T $left = $zero; if ($u >= $s) $left = $a[$t - $s];")
_ADDS = ("$a[$t] += $left;", "if ($v >= $s) $a[$t] += $left;")
_LEVELS = ("$first; {} $second; {}", "{} $first; {} $second;")
# Both elements are added up before the second barrier, as in D. Kirk and W. Hwu, "Programming Massively Parallel Processors".
_SUMS = [
    (f"$T $left{start}; if ($u >= $s) $left = {added};", "if ($v >= $s) $a[$t] = $left;")
    for start in ("", " = $zero")
    for added in ("$a[$t] + $a[$t - $s]", "$a[$t - $s] + $a[$t]")
]
_WORK = (*product(_LOADS, _ADDS), ("$T $left; if ($u >= $s) $left = $a[$t - $s];", _ADDS[1]), *_SUMS)
_SCANS = [
    Pattern(
        *(
            f"for ($I $s = 1; {last}; $step) {{ {level.format(*work)} }}"
            for last in ("$s < $block", "$s <= $half")
            for work in _WORK
        )
    )
    for level in _LEVELS
]


@dataclass(frozen=True)
class BlockScan:
    """A loop that adds to each of a block's elements of an array all those before it."""

    loop: Node
    array: str
    type: str
    barrier_first: bool  # whether its first barrier is what shows the elements to all threads

    def call(self, site: Site, helper: str) -> Edit:
        """A call of a function that does the same, instead of the loop."""
        before = f"__syncthreads();\n{site.indent_at(self.loop.start_byte)}" if self.barrier_first else ""
        return Edit(Span(with_pragma(self.loop), self.loop.end_byte), f"{before}{helper}({self.array});")


class WarpScan:
    """Inclusive prefix sums over a block's elements in shared memory by warp shuffles."""

    name = "warp_scan"
    summary = "Compute prefix sums with warp shuffles instead of shared memory"

    def propose(self, site: Site) -> Proposals:
        scans = block_scans(site)
        if scans:
            edits = site.in_file(*_edits(site, scans))
            yield from proposal(self.name, "Use warp shuffles for the prefix sums", edits, 0.6, scans=len(scans))


def block_scans(site: Site) -> list[BlockScan]:
    """The scans over all of a block's elements in shared memory; none unless blocks hold whole warps."""
    shared = {s.name: s.type for s in site.kernel.shared if len(s.extents) == 1 and s.type in SHUFFLED}
    blocks = one_dimensional(site) if shared and site.sound and site.manageable else set()
    if not blocks or any(block % WARP for block in blocks):
        return []
    return [scan for node in walk(site.body) if (scan := _scan(site, node, blocks, shared)) is not None]


def _scan(site: Site, node: Node, blocks: set[int], shared: dict[str, str]) -> BlockScan | None:
    thread, barrier = partial(is_thread, site), partial(is_barrier, site)
    for pattern in _SCANS:
        found = pattern.match(
            node, t=thread, u=thread, v=thread, first=barrier, second=barrier,
            block=lambda n: is_block(site, n, blocks), half=lambda n: is_block(site, n, blocks, 2),
            zero=lambda n: bool(_ZERO.fullmatch(compact(n))),
        )  # fmt: skip
        if found is not None and doubles(found["step"], text(found["s"])):
            array, kind = text(found["a"]), text(found["T"])
            return BlockScan(node, array, kind, pattern is _SCANS[0]) if shared.get(array) == kind else None
    return None


def _edits(site: Site, scans: list[BlockScan]) -> list[Edit]:
    helpers: dict[str, str] = {}
    for scan in scans:
        helpers.setdefault(scan.type, site.fresh("block_scan", list(helpers.values())))
    written = (template("engine.rules", "block_scan").render(name=name, T=kind) for kind, name in helpers.items())
    calls = [scan.call(site, helpers[scan.type]) for scan in scans]
    return [Edit.insert(site.declaration_start, "".join(written)), *calls]
