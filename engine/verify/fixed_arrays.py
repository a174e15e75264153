"""Arrays of a fixed length that an edit adds and indexes by the number of blocks, which grows with a size.

A block that merges what the others found may stage it in shared memory: `for (i = t; i < gridDim.x; i += 256) staged[i] = found[i]`. With
more blocks than the array has elements it writes behind the array. Only a launch that is run whole shows that, and one with so many blocks
takes too long, so it is decided from the text, for the largest grid that the visible launches can have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from engine.cuda.clock import CALL_S, OutOfTime, limited
from engine.cuda.kernel import Function, Unit
from engine.cuda.kernel_scope import Scope
from engine.cuda.polynomial import Polynomial
from engine.cuda.subscripts import index_of
from engine.cuda.syntax import ancestors, names, root_name, text, walk
from engine.model import Program
from engine.spec.kernel_spec import KernelSpec
from engine.verify.expression_ranges import Ranges
from engine.verify.loop_counters import comparisons, device_functions, expanded_unit, known_values

_GRID = re.compile(r"\b(?:gridDim|blockIdx)\b")
_LOOPS = ("for_statement", "while_statement", "do_statement")


def outgrown_array(original: Program, candidate: Program, spec: KernelSpec) -> str | None:
    """Why the edit is refused: the array and the number of blocks that it does not hold; None where nothing speaks against it."""
    if original.data == candidate.data:
        return None
    try:
        with limited(CALL_S):
            old, new = expanded_unit(original), expanded_unit(candidate)
            before = {f.qualified: f for f in device_functions(old)}
            for function in device_functions(new):
                same = before.get(function.qualified)
                if same is not None and old.text(same.span) == new.text(function.span):
                    continue
                known = known_values(original, spec, candidate, new, function)
                found = next(_outgrown(new, function, Ranges(new, Scope(new, function), known)), "")
                if found and not (same is not None and any(_outgrown(old, same, Ranges(old, Scope(old, same), known)))):
                    return found
    except OutOfTime:
        return None  # the loops' own check says so
    return None


def _outgrown(unit: Unit, function: Function, ranges: Ranges) -> Iterator[str]:
    """The sentences on arrays of a function that hold fewer elements than a grid has blocks."""
    if _GRID.search(text(function.block)) is None:
        return
    lengths = dict(_lengths(function.block, ranges))
    for node in walk(function.block):
        array, index = root_name(node) if node.type == "subscript_expression" else "", index_of(node)
        if array not in lengths or index is None or ranges.largest(index) < lengths[array]:
            continue
        for bound, value in _bounds(index, node, function, ranges):
            if value > lengths[array] and not _tested(function, node):
                written = re.sub(r"\s+", " ", text(bound))[:60]
                yield (
                    f"line {unit.line_of(node.start_byte)}: '{array}' has {lengths[array]} elements, and '{written}' grows with the "
                    "number of blocks: test it, and keep a way for more"
                )


def _lengths(body: Node, ranges: Ranges) -> Iterator[tuple[str, int]]:
    """The arrays of one dimension that are declared with a length, and this."""
    for node in walk(body):
        size, name = node.child_by_field_name("size"), node.child_by_field_name("declarator")
        further = node.parent is not None and node.parent.type == "array_declarator"
        if (
            node.type == "array_declarator"
            and not further
            and size is not None
            and name is not None
            and name.type == "identifier"
        ):
            yield text(name), ranges.largest(size)


def _bounds(index: Node, access: Node, function: Function, ranges: Ranges) -> Iterator[tuple[Node, int]]:
    """What an index reaches by the grid: its own largest value, or what the counters in it are compared with where they advance."""
    own = ranges.scope.index(index)
    if own is not None and _by_grid(own) and all(factor > 0 for factor in own.terms.values()):
        yield index, ranges.largest(index) + 1
    used = names(index)
    for loop in ancestors(access, function.block):
        condition = loop.child_by_field_name("condition") if loop.type in _LOOPS else None
        if condition is None:
            continue
        limits = [other for counter, other in comparisons(condition) if text(counter) in used]
        values = [(ranges.largest(limit), limit) for limit in limits]
        polynomials = [ranges.scope.index(limit) for limit in limits]
        if any(found is not None and _by_grid(found) for found in polynomials):
            most, limit = min(values, key=lambda pair: pair[0])
            yield limit, most


def _by_grid(value: Polynomial) -> bool:
    return any(_GRID.search(atom) for product in value.terms for atom in product)


def _tested(function: Function, access: Node) -> bool:
    """Whether a condition around an access, other than a loop's, looks at the grid: it must be true and false in checks then."""
    for above in ancestors(access, function.block):
        condition = above.child_by_field_name("condition")
        if above.type not in _LOOPS and condition is not None and "gridDim" in text(condition):
            return True
    return False
