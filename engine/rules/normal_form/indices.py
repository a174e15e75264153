"""The number of a thread in the grid, in whatever way it is put together, as `blockIdx.x * blockDim.x + threadIdx.x`."""

import re

from engine.cuda.questions import Polynomial, children, declared_type, is_integer_type, pure, variables
from engine.rewrite import Edit, Edits, Site
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
                edits.append(Edit.replace(value, plain))
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
