"""A prefix sum in shared memory becomes shuffles between registers.

Source of the method: M. Harris, S. Sengupta, J. Owens, "Parallel Prefix Sum (Scan) with CUDA" (GPU Gems 3, chapter 39), and the CUDA C++
Programming Guide, "Warp Shuffle Functions": Hillis and Steele's scan passes two barriers at each of its levels, shuffles three in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import product

from engine.cuda.syntax import compact, text, walk
from engine.rewrite import Edit, Node, Pattern, Proposal, Site, Span, proposal, template
from engine.rules.idioms.blocks import SHUFFLED, WARP, doubles, is_barrier, is_block, is_thread, one_dimensional
from engine.rules.reduction.register_accumulate import with_pragma

_ZERO = re.compile(r"0[uUlL]*|0?\.0*[fF]?|0\.[fF]?")
_LOADS = ("$T $left = $u >= $s ? $a[$t - $s] : $zero;", "$T $left = $zero; if ($u >= $s) $left = $a[$t - $s];")
_ADDS = ("$a[$t] += $left;", "if ($v >= $s) $a[$t] += $left;")
_LEVELS = ("$first; {} $second; {}", "{} $first; {} $second;")
_SCANS = [
    Pattern(*(f"for ($I $s = 1; $s < $block; $step) {{ {level.format(*work)} }}" for work in product(_LOADS, _ADDS)))
    for level in _LEVELS
]


class WarpScan:
    """Inclusive prefix sums over a block's elements in shared memory by warp shuffles."""

    name = "warp_scan"
    summary = "Add up prefixes in registers by warp shuffles instead of in shared memory"

    def propose(self, site: Site) -> Iterator[Proposal]:
        shared = {s.name: s.type for s in site.kernel.shared if len(s.extents) == 1 and s.type in SHUFFLED}
        blocks = one_dimensional(site) if shared and site.sound and site.manageable else set()
        if not blocks or any(block % WARP for block in blocks):
            return
        scans = [scan for node in walk(site.body) if (scan := _scan(site, node, blocks, shared)) is not None]
        if scans:
            edits = site.in_file(*_edits(site, scans, shared))
            yield from proposal(self.name, "Do the prefix sums by warp shuffles", edits, 0.6, scans=len(scans))


def _scan(site: Site, node: Node, blocks: set[int], shared: dict[str, str]) -> tuple[Node, str, bool] | None:
    """A loop that adds to each of a block's elements of an array all those before it: (loop, array, begins with a barrier)."""
    thread, barrier = partial(is_thread, site), partial(is_barrier, site)
    for pattern in _SCANS:
        found = pattern.match(
            node, t=thread, u=thread, v=thread, first=barrier, second=barrier,
            block=lambda n: is_block(site, n, blocks), zero=lambda n: bool(_ZERO.fullmatch(compact(n))),
        )  # fmt: skip
        if found is not None and doubles(found["step"], text(found["s"])):
            array = text(found["a"])
            return (node, array, pattern is _SCANS[0]) if shared.get(array) == text(found["T"]) else None
    return None


def _edits(site: Site, scans: list[tuple[Node, str, bool]], shared: dict[str, str]) -> list[Edit]:
    helpers: dict[str, str] = {}
    edits: list[Edit] = []
    for loop, array, barrier_first in scans:
        helper = helpers.setdefault(shared[array], site.fresh("block_scan", list(helpers.values())))
        before = f"__syncthreads();\n{site.indent_at(loop.start_byte)}" if barrier_first else ""
        edits.append(Edit(Span(with_pragma(loop), loop.end_byte), f"{before}{helper}({array});"))
    written = (template("engine.rules", "block_scan").render(name=name, T=kind) for kind, name in helpers.items())
    return [Edit(Span(site.declaration_start, site.declaration_start), "".join(written)), *edits]
