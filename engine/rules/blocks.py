"""What rules on a block's work in shared memory share: who is which thread, how many there are, where all of them meet."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from engine.rules.cases import all_cases
from engine.rules.common import names, strip, text, value_in
from engine.rules.constants import constant
from engine.rules.model import Site
from engine.rules.threads import definition, in_parameters

if TYPE_CHECKING:
    from tree_sitter import Node

WARP = 32
# Types that shuffles take and that fill a register or two (CUDA C++ Programming Guide, "Warp Shuffle Functions").
SHUFFLED = frozenset({
    "float", "double", "int", "unsigned int", "unsigned", "long long", "unsigned long long", "int32_t", "uint32_t",
    "int64_t", "uint64_t",
})  # fmt: skip


def compact(node: Node | None) -> str:
    """The text without white space; "" for no node."""
    return re.sub(r"\s+", "", text(node)) if node is not None else ""


def is_thread(site: Site, node: Node | None) -> bool:
    """Whether the expression is the thread's number in its block (of one dimension)."""
    if node is None:
        return False
    node = strip(node)
    if node.type == "identifier":
        value = definition(site, text(node))
        return value is not None and compact(strip(value)) == "threadIdx.x"
    return compact(node) == "threadIdx.x"


def is_block(site: Site, node: Node, blocks: set[int], divisor: int = 1) -> bool:
    """Whether the expression is the number of threads of every launched block over `divisor`."""
    written = compact(strip(node))
    for name in names(node):
        if compact(definition(site, name)) == "blockDim.x":
            written = re.sub(rf"\b{re.escape(name)}\b", "blockDim.x", written)
    if "blockDim" in written:
        halves = {"blockDim.x/2", "blockDim.x/2u", "blockDim.x>>1", "blockDim.x>>1u"}
        return written in (halves if divisor == 2 else {"blockDim.x"})
    value = constant(site, node)
    if value is not None:
        return blocks == {value * divisor}
    # A parameter that the launches give the block's size.
    expression = in_parameters(site, node)
    values = {value_in(site, expression, case) for case in all_cases(site)} if expression is not None else {None}
    return len(values) == 1 and blocks == {v * divisor for v in values if v is not None}


def is_barrier(site: Site, node: Node) -> bool:
    """Whether the statement is a barrier of the block, by CUDA's own name or a cooperative group's."""
    if node.type != "expression_statement":
        return False
    match = re.fullmatch(
        r"__syncthreads\(\);|(?:cg|cooperative_groups)::sync\((\w+)\);|(\w+)\.sync\(\);", compact(node)
    )
    group = (match[1] or match[2]) if match else None
    return match is not None and (group is None or compact(definition(site, group)).endswith("this_thread_block()"))
