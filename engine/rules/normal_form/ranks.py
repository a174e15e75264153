"""Ranks and sizes of cooperative groups as CUDA's built-in variables, for blocks of one dimension.

Source: CUDA C++ Programming Guide, "Cooperative Groups".
"""

import re

from engine.cuda.syntax import children, text, walk
from engine.rewrite import Edit, Edits, Site

_GROUP = re.compile(r"((?:\w+::)*thread_block\w*(?:<[^<>;]*(?:<[^<>;]*>)?[^<>;]*>)?|\bauto)\s+(\w+)\s*=\s*([^;]*);")
_TILE = re.compile(r"\b(?:thread_block_tile|tiled_partition)\s*<\s*(\d+)\b")
_OF_BLOCK = {"thread_rank": "threadIdx.x", "size": "blockDim.x", "num_threads": "blockDim.x", "sync": "__syncthreads()"}
_OF_TILE = {
    "thread_rank": "threadIdx.x % {0}", "size": "{0}", "num_threads": "{0}",
    "meta_group_rank": "threadIdx.x / {0}", "meta_group_size": "blockDim.x / {0}",
}  # fmt: skip


def thread_ranks(site: Site) -> Edits | None:
    """The calls of groups' members that the built-in variables can say."""
    launches = site.configs_after({})
    if not launches or any(c.block[1:] != (1, 1) for c in launches):
        return None
    sizes = _groups(site)
    edits = []
    for call in (n for n in walk(site.body) if n.type == "call_expression" and sizes):
        function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
        group = function.child_by_field_name("argument") if function is not None else None
        member = function.child_by_field_name("field") if function is not None else None
        if function is None or group is None or member is None or function.type != "field_expression":
            continue
        if text(group) not in sizes or arguments is None or children(arguments):
            continue
        size = sizes[text(group)]
        if size and any(c.block[0] % size for c in launches):
            continue
        plain = _OF_TILE.get(text(member), "").format(size) if size else _OF_BLOCK.get(text(member), "")
        if plain:
            within = call.parent is not None and call.parent.type in ("binary_expression", "cast_expression")
            written = f"({plain})" if " " in plain and within else plain
            edits.append(Edit.replace(call, written))
    return site.in_file(*edits) if edits else None


def _groups(site: Site) -> dict[str, int]:
    """Names of groups, with the threads of a tile; 0 for the block. A name that is declared twice is left out."""
    found: dict[str, int] = {}
    twice: set[str] = set()
    # By text: `thread_block_tile<32> warp = …` reads like two comparisons.
    for match in _GROUP.finditer(text(site.body)):
        kind, name, value = match.groups()
        tile = _TILE.search(f"{kind} {value}")
        if tile is None and "thread_block" not in kind and "this_thread_block" not in value:
            continue
        twice |= {name} & found.keys()
        found[name] = int(tile[1]) if tile is not None else 0
    return {name: size for name, size in found.items() if name not in twice}
