"""What rules on a block's work in shared memory share: who is which thread, how many there are, where all of them meet."""

import re

from engine.cuda.syntax import compact, names, strip, text
from engine.rewrite import Node, Site
from engine.rules.idioms.known_values import definition, in_parameters

WARP = 32
# Types that shuffles take and that fill a register or two (CUDA C++ Programming Guide, "Warp Shuffle Functions").
SHUFFLED = frozenset({
    "float", "double", "int", "unsigned int", "unsigned", "long long", "unsigned long long", "int32_t", "uint32_t",
    "int64_t", "uint64_t",
})  # fmt: skip


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
    value = site.constant(node)
    if value is not None:
        return blocks == {value * divisor}
    # A parameter that the launches give the block's size.
    expression = in_parameters(site, node)
    values = {site.value_in(expression, case) for case in site.cases} if expression is not None else {None}
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


def one_dimensional(site: Site) -> set[int]:
    """The numbers of threads of the launched blocks; none where a block has another dimension, or no launch is known."""
    launches = site.configs_after({}) or site.configs
    return {c.block[0] for c in launches} if all(c.block[1:] == (1, 1) for c in launches) else set()


def doubles(update: Node, name: str) -> bool:
    """Whether a loop's update doubles its variable."""
    return compact(update) in (f"{name}*=2", f"{name}<<=1", f"{name}={name}*2", f"{name}={name}<<1", f"{name}+={name}")


def halves(update: Node, name: str) -> bool:
    """Whether a loop's update halves its variable."""
    return compact(update) in (f"{name}/=2", f"{name}>>=1", f"{name}={name}/2", f"{name}={name}>>1")
