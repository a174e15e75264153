"""Blocks in reverse order, in a kernel that reads what an earlier kernel of a chain stored.

An array larger than L2 is evicted from its beginning on while it is stored. Blocks that start at its end find that end in L2, and
overwrite lines there before they are written back. Hardware starts blocks in the order of their numbers, as a rule.
"""

import re

from engine.cuda.syntax import called, compact, text, walk
from engine.rewrite import Edit, Node, OptimlError, Proposals, Site, proposal
from engine.spec import data, dtypes

# What blocks may wait for each other by, or are numbered by: without it they run in any order (CUDA C++ Programming Guide,
# "Thread Hierarchy").
_TOGETHER = re.compile(
    r"\b(?:volatile|asm|__asm__|this_grid|\w*cluster\w*|\w*threadfence\w*|__nv_atomic\w*|atomic(?:_ref)?\s*<|__ldcv)"
)
_LEAST_BYTES = 1 << 24  # what is smaller stays in L2 as a whole; ours
_AXES = "xyz"


class ReverseBlocks:
    """Blocks numbered from the last along the grid's outermost axis."""

    name = "reverse_blocks"
    summary = "Run the blocks in reverse order, to find in L2 what the kernel before stored last"

    def propose(self, site: Site) -> Proposals:
        axis = _axis(site)
        if axis is None or not site.sound or not site.manageable or not _reads_earlier(site) or not _any_order(site):
            return
        numbers = [n for n in walk(site.body) if n.type == "field_expression" and compact(n) == f"blockIdx.{axis}"]
        uses = [n for n in walk(site.body) if n.type == "identifier" and text(n) == "blockIdx"]
        if not numbers or any(n.parent not in numbers and not _other_axis(n, axis) for n in uses):
            return
        if f"-blockIdx.{axis}" in compact(site.body):
            return  # it counts down already
        block = site.fresh("block")
        inner = site.indent_at(site.body.start_byte) + site.indent_unit
        start = site.body.start_byte + 1
        said = f"\n{inner}// What the kernel before stored last is still in L2: blocks run from the last to the first."
        declared = f"\n{inner}const unsigned int {block} = gridDim.{axis} - 1 - blockIdx.{axis};"
        edits = [Edit.replace(n, block) for n in numbers]
        yield from proposal(
            self.name, "Run the blocks in reverse order", site.in_file(Edit.insert(start, said + declared), *edits), 0.4
        )  # fmt: skip


def _axis(site: Site) -> str | None:
    """The outermost axis along which every timing case has several blocks; None where there is none."""
    extents = zip(*(c.grid for c in site.configs), strict=True) if site.configs else ()
    several = [axis for axis, counts in zip(_AXES, extents, strict=False) if min(counts) > 1]
    return several[-1] if several else None


def _other_axis(use: Node, axis: str) -> bool:
    field = use.parent
    return field is not None and field.type == "field_expression" and compact(field) != f"blockIdx.{axis}"


def _reads_earlier(site: Site) -> bool:
    """Whether the kernel reads elements of an array, too large for L2, that an earlier kernel of the chain is given to write."""
    steps = site.spec.steps
    stored: set[str] = set()
    for step in steps[: site.step]:
        try:
            parameters = site.unit.kernel(step.kernel).parameters
        except KeyError:
            return False
        stored |= {name for p, name in zip(parameters, step.arguments, strict=False) if p.pointer and not p.const}
    own = zip(site.kernel.parameters, steps[site.step].arguments, strict=False)
    shared = {name for p, name in own if p.pointer} & stored
    try:
        elements = [data.buffer_elements(site.spec, case) for case in site.spec.time]
    except OptimlError:
        return False
    return any(
        each[name] * dtypes.parse_dtype(site.spec.argument(name).type).itemsize >= _LEAST_BYTES
        for each in elements
        for name in shared
        if name in each
    )


def _any_order(site: Site) -> bool:
    """Whether nothing in the kernel, or beside it orders blocks, or numbers them elsewhere than in its body."""
    macros = [*site.function_macros.values(), *site.unit.macros.values()]
    helpers = [site.unit.text(f.span) for f in site.unit.functions if "device" in f.qualifier]
    if any("blockIdx" in code or _TOGETHER.search(code) for code in (*macros, *helpers)):
        return False
    # The result of an atomic may be a turn that blocks take.
    atomics = [n for n in walk(site.body) if n.type == "call_expression" and called(n).startswith("atomic")]
    taken = any(n.parent is None or n.parent.type != "expression_statement" for n in atomics)
    return not taken and not _TOGETHER.search(text(site.kernel.node))
