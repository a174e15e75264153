"""The number of a thread in grid, block and warp, in whatever way it is put together or asked for, by the built-in variables.

Source of the ranks of groups: CUDA C++ Programming Guide, "Cooperative Groups".
"""

import re

from engine.cuda.questions import Polynomial, children, declared_type, is_integer_type, pure, text, variables, walk
from engine.rewrite import Edit, Edits, Site, Span
from engine.rules.idioms.thread_index import AXES, global_axis, is_wide

_EXTENT = re.compile(r"[A-Za-z_]\w*|blockDim\.[xyz]")


def global_indices(site: Site) -> Edits | None:
    """Variables at the top of the body that number the grid's threads by other variables, macros or products of 24 bits."""
    edits = []
    for statement in children(site.body):
        if statement.type != "declaration" or not is_integer_type(declared_type(statement)):
            continue
        for declared in variables(statement):
            value = declared.value
            if (
                value is None
                or declared.shape != "scalar"
                or global_axis(value) is not None
                or site.scope.changed(declared)
            ):
                continue
            index = site.scope.index(value)
            plain = _spelled(index) if index is not None else ""
            if plain and is_wide(declared_type(statement)):
                plain = f"({declared_type(statement)}) {plain}"
            if plain:
                edits.append(Edit(Span(value.start_byte, value.end_byte), plain))
    return site.in_file(*edits) if edits else None


def without_unused(site: Site) -> Edits | None:
    """Without names of whole numbers that nothing uses: what stays of an index that is written with the built-in ones."""
    edits = []
    for statement in children(site.body):
        declared = list(variables(statement)) if statement.type == "declaration" else []
        if len(declared) != 1 or declared[0].value is None or declared[0].shape != "scalar":
            continue
        if not is_integer_type(declared_type(statement)) or not pure(declared[0].value):
            continue
        if len(site.scope.same(declared[0], declared[0].name, declared[0].scope)) == 1:
            edits.append(Edit(site.line_span(statement), ""))
    return site.in_file(*edits) if edits else None


def _spelled(index: Polynomial) -> str:
    """The sum of a thread's number in its block and the block's share; "" for other sums."""
    for axis in AXES:
        thread, block = (f"threadIdx.{axis}",), f"blockIdx.{axis}"
        others = [(product, factor) for product, factor in index.terms.items() if product != thread]
        if index.terms.get(thread) != 1 or len(others) != 1 or others[0][0].count(block) != 1:
            continue
        (_product, factor), extents = others[0], [atom for atom in others[0][0] if atom != block]
        if len(extents) == 1 and _EXTENT.fullmatch(extents[0]) and factor > 0:
            return f"{block} * {extents[0]}{f' * {factor}' if factor != 1 else ''} + {thread[0]}"
        if not extents and factor > 1:
            return f"{block} * {factor} + {thread[0]}"
    return ""


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
            edits.append(Edit(Span(call.start_byte, call.end_byte), written))
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
