"""A prefix sum in shared memory becomes shuffles between registers.

Source of the method: M. Harris, S. Sengupta, J. Owens, "Parallel Prefix Sum (Scan) with CUDA" (GPU Gems 3, chapter 39), and the CUDA C++
Programming Guide, "Warp Shuffle Functions": Hillis and Steele's scan passes two barriers at each of its levels, shuffles three in all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.rules.blocks import SHUFFLED, WARP, compact, is_barrier, is_block, is_thread
from engine.rules.cases import configs_of
from engine.rules.common import (
    body_node,
    children,
    declaration_start,
    fresh,
    in_file,
    indent_at,
    proposal,
    sound,
    strip,
    text,
    walk,
)
from engine.rules.model import Proposal, Site
from engine.rules.register_accumulate import with_pragma
from engine.rules.scope import manageable
from engine.rules.threads import declarators, declared_type
from engine.source.model import Edit, Span

if TYPE_CHECKING:
    from tree_sitter import Node

_ZERO = re.compile(r"0[uUlL]*|0?\.0*[fF]?|0\.[fF]?")
_INDEX = re.compile(r"(\w+)\[(.+)-(\w+)\]")


@dataclass(frozen=True)
class _Scan:
    """A loop that adds to each of a block's elements of `array` all elements before it. `barrier_first`: it begins with a barrier."""

    loop: Node
    array: str
    barrier_first: bool


class WarpScan:
    """Inclusive prefix sums over a block's elements in shared memory by warp shuffles."""

    name = "warp_scan"
    summary = "Add up prefixes in registers by warp shuffles instead of in shared memory"

    def propose(self, site: Site) -> Iterator[Proposal]:
        shared = {s.name: s.type for s in site.kernel.shared if len(s.extents) == 1 and s.type in SHUFFLED}
        if not shared or not sound(site) or not manageable(site):
            return
        every = configs_of(site, {}) or site.configs
        if not every or any(c.block[1:] != (1, 1) or c.block[0] % WARP for c in every):
            return
        blocks = {c.block[0] for c in every}
        scans = [s for node in walk(body_node(site)) if (s := _scan(site, node, blocks, shared)) is not None]
        if scans:
            yield from proposal(
                self.name, "Do the prefix sums by warp shuffles", in_file(site, *_edits(site, scans, shared)), 0.6, scans=len(scans)
            )  # fmt: skip


def _scan(site: Site, node: Node, blocks: set[int], shared: dict[str, str]) -> _Scan | None:
    """The `for` statement as a scan of the block's elements; None for other statements."""
    parts = [node.child_by_field_name(f) for f in ("initializer", "condition", "update", "body")]
    if node.type != "for_statement" or any(p is None for p in parts):
        return None
    initializer, condition, update, body = (p for p in parts if p is not None)
    declared = declarators(initializer) if initializer.type == "declaration" else []
    if len(declared) != 1 or body.type != "compound_statement" or compact(declared[0][1]) not in ("1", "1u"):
        return None
    s = declared[0][0]
    limit = strip(condition)
    sign, left, right = (limit.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or left is None or right is None or text(sign) != "<" or text(left) != s:
        return None
    doubled = (f"{s}*=2", f"{s}<<=1", f"{s}={s}*2", f"{s}={s}<<1", f"{s}+={s}")
    if compact(update) not in doubled or not is_block(site, right, blocks):
        return None
    statements = children(body)
    barriers = [k for k, n in enumerate(statements) if is_barrier(site, n)]
    last = len(statements) - 1
    if last not in (3, 4) or barriers not in ([last - 2, last], [0, last - 1]):
        return None
    work = [n for k, n in enumerate(statements) if k not in barriers]
    array = _level(site, work[:-1], work[-1], s, shared)
    return _Scan(node, array, barriers[0] == 0) if array is not None else None


def _level(site: Site, load: list[Node], add: Node, s: str, shared: dict[str, str]) -> str | None:
    """The array of `left = t >= s ? a[t - s] : 0; … a[t] += left;`, or the same with conditions as statements."""
    if load[0].type != "declaration" or len(declarators(load[0])) != 1:
        return None
    left, value = declarators(load[0])[0]
    if len(load) == 1:
        choice = strip(value) if value is not None else None
        if choice is None or choice.type != "conditional_expression":
            return None
        parts = [choice.child_by_field_name(f) for f in ("condition", "consequence", "alternative")]
        condition, taken, otherwise = parts
    else:
        condition, assignment = _when(load[1])
        if assignment is None or compact(assignment.child_by_field_name("left")) != left:
            return None
        taken, otherwise = assignment.child_by_field_name("right"), value
    element = _INDEX.fullmatch(compact(strip(taken))) if taken is not None else None
    if condition is None or element is None or element[3] != s or not _beyond(site, condition, s):
        return None
    if otherwise is None or not _ZERO.fullmatch(compact(otherwise)):
        return None
    array, thread = element[1], element[2]
    if shared.get(array) != declared_type(load[0]) or not left or not _names_thread(site, thread, add):
        return None
    guard, assignment = _when(add)
    if guard is not None and not _beyond(site, guard, s):
        return None
    done = compact(assignment)
    own = f"{array}[{thread}]"
    return array if done in (f"{own}+={left}", f"{own}={own}+{left}", f"{own}={left}+{own}") else None


def _when(statement: Node) -> tuple[Node | None, Node | None]:
    """The condition and the assignment of `if (condition) assignment;`, or of the assignment alone."""
    condition = None
    if statement.type == "if_statement" and statement.child_by_field_name("alternative") is None:
        condition = statement.child_by_field_name("condition")
        inner = statement.child_by_field_name("consequence")
        if inner is not None and inner.type == "compound_statement" and len(children(inner)) == 1:
            inner = children(inner)[0]
        statement = inner or statement
    parts = children(statement) if statement.type == "expression_statement" else []
    assignment = parts[0] if len(parts) == 1 and parts[0].type == "assignment_expression" else None
    return condition, assignment


def _beyond(site: Site, condition: Node, s: str) -> bool:
    """Whether the condition says that the thread's number is at least `s`."""
    condition = strip(condition)
    sign, left, right = (condition.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or left is None or right is None:
        return False
    if text(sign) == "<=":
        left, right = right, left
    return text(sign) in (">=", "<=") and text(right) == s and is_thread(site, left)


def _names_thread(site: Site, written: str, within: Node) -> bool:
    """Whether the text, as it stands in an index below the node, is the thread's number."""
    for node in walk(within):
        if node.type == "subscript_expression":
            indices = node.child_by_field_name("indices")
            found = children(indices) if indices is not None else []
            if len(found) == 1 and compact(found[0]) == written:
                return is_thread(site, found[0])
    return False


def _edits(site: Site, scans: list[_Scan], shared: dict[str, str]) -> list[Edit]:
    helpers: dict[str, str] = {}
    written: list[str] = []
    edits: list[Edit] = []
    for scan in scans:
        kind = shared[scan.array]
        if kind not in helpers:
            helpers[kind] = fresh(site, "block_scan", list(helpers.values()))
            written.append(_helper(helpers[kind], kind))
        call = f"{helpers[kind]}({scan.array});"
        before = f"__syncthreads();\n{indent_at(site, scan.loop.start_byte)}" if scan.barrier_first else ""
        edits.append(Edit(Span(with_pragma(scan.loop), scan.loop.end_byte), before + call))
    start = declaration_start(site)
    return [Edit(Span(start, start), "".join(written)), *edits]


def _helper(name: str, kind: str) -> str:
    """A device function that makes of the block's elements of an array their inclusive prefix sums."""

    def shuffles(indent: str, value: str) -> str:
        return (
            f"{indent}for (int offset = 1; offset < 32; offset *= 2) {{\n"
            f"{indent}    const {kind} left = __shfl_up_sync(0xffffffffu, {value}, offset);\n"
            f"{indent}    if (lane >= offset) {{\n{indent}        {value} += left;\n{indent}    }}\n"
            f"{indent}}}\n"
        )

    return (
        "// Adds to each of the block's elements of `part` all those before it. Blocks hold whole warps.\n"
        f"__device__ __forceinline__ void {name}({kind}* part) {{\n"
        f"    __shared__ {kind} totals[32];\n"
        "    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;\n"
        f"    {kind} value = part[threadIdx.x];\n{shuffles('    ', 'value')}"
        "    if (lane == 31) {\n        totals[warp] = value;\n    }\n"
        "    __syncthreads();\n"
        "    if (warp == 0) {\n"
        f"        {kind} total = lane < blockDim.x / 32 ? totals[lane] : static_cast<{kind}>(0);\n{shuffles('        ', 'total')}"
        "        totals[lane] = total;\n    }\n"
        "    __syncthreads();\n"
        "    part[threadIdx.x] = warp > 0 ? value + totals[warp - 1] : value;\n"
        "    __syncthreads();\n"
        "}\n\n"
    )


__all__ = ["WarpScan"]
