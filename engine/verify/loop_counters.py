"""Counters that an edit adds to loops, and that leave their type at sizes which the original's own arithmetic bears.

`for (int i = first; i < n; i += threads)` counts to `n + threads - 1`: near n = 2^31 an `int` goes on below zero, where the original's
`if (i < n)` was correct. No case is that large, so it is decided from the text, for every size that the parameter's type can hold.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from tree_sitter import Node

from engine.arith import ArithmeticError_, evaluate_int
from engine.cuda.clock import CALL_S, OutOfTime, limited
from engine.cuda.definitions import expression
from engine.cuda.kernel import Function, Unit
from engine.cuda.kernel_scope import Scope
from engine.cuda.launch import sites
from engine.cuda.macros import function_macros
from engine.cuda.parse import parse
from engine.cuda.polynomial import Polynomial
from engine.cuda.subscripts import index_of
from engine.cuda.syntax import ancestors, called, children, compact, operands, strip, text, walk
from engine.cuda.terms import kernel_terms
from engine.errors import OptimlError
from engine.model import Program
from engine.spec.kernel_spec import KernelSpec
from engine.verify.expression_ranges import INT, LONGEST, THREADS, UNSIGNED, Ranges

# As near to the end of a type a size is not looked at: rounding up to whole blocks, `(n + 255) / 256`, ends there too.
NEAR = 1 << 16
_LOOPS = ("for_statement", "while_statement", "do_statement")
_RELATIONS = frozenset({"<", "<=", ">", ">=", "!="})
_ASSIGNS = re.compile(r"(?<![=<>!])=(?!=)|\+\+|--")
_MOST_EXPANSIONS, _MOST_TEXT = 16, 1 << 20  # rounds, and characters with macros written out


@dataclass(frozen=True)
class _Bound:
    """A counter, or an index ahead of it, that is compared with a size."""

    counter: str
    line: int
    holds: int  # the largest value of its type
    step: int  # what it goes on by, at most
    times: int  # so many such steps it may lie beyond the size
    size: Node
    names: frozenset[str]  # of parameters, in the size
    value: Polynomial | None  # of the size
    most: int  # the largest value of the size

    @property
    def beyond(self) -> bool:
        return self.leaves(self.most)

    def leaves(self, size: int) -> bool:
        """Whether steps can take it out of its type. Threads are no more than what they share out, so no step is larger."""
        return (
            self.holds < LONGEST and self.step > NEAR and size + self.times * min(self.step, size) > self.holds + NEAR
        )


@dataclass(frozen=True)
class _Read:
    """A device function of a file with what its text says of sizes."""

    function: Function
    ranges: Ranges
    bounds: tuple[_Bound, ...]


def added_overflow(original: Program, candidate: Program, spec: KernelSpec) -> str | None:
    """Why the edit's loops are refused: the counter, the size, and what to write instead; None where nothing speaks against them."""
    if original.data == candidate.data:
        return None
    try:
        with limited(CALL_S):
            return _overflow(original, candidate, spec)
    except OutOfTime:
        return "its loops take too long to be read: definitions or macros stand in each other too often"


def _overflow(original: Program, candidate: Program, spec: KernelSpec) -> str | None:
    old, new = expanded_unit(original), expanded_unit(candidate)
    before = {f.qualified: f for f in device_functions(old)}
    kernels = {step.kernel.rpartition("::")[2] for step in spec.steps}
    if not any(children(f.block) for f in before.values() if f.name in kernels):
        return None  # a frame to write a kernel into: it computes nothing yet
    for function in device_functions(new):
        same = before.get(function.qualified)
        if same is not None and old.text(same.span) == new.text(function.span):
            continue
        if not _beyond(_read(new, function, _arguments(spec, function))):
            continue

        def known(program: Program, unit: Unit, f: Function) -> dict[str, int]:
            return known_values(original, spec, program, unit, f) if f.name in kernels else {}

        beyond = _beyond(_read(new, function, known(candidate, new, function)))
        reads = [_read(old, f, known(original, old, f)) for f in ([same] if same is not None else before.values())]
        for bound in beyond:
            if reason := _refused(bound, reads):
                return reason
    return None


def _beyond(read: _Read) -> list[_Bound]:
    return [bound for bound in read.bounds if bound.beyond]


def _refused(bound: _Bound, before: Sequence[_Read]) -> str | None:
    if any(b.beyond and b.names == bound.names for read in before for b in read.bounds):
        return None
    borne = [most for read in before for most in _borne(read, bound.value)]
    reach = min(bound.most, max(borne, default=LONGEST))
    if not bound.leaves(reach):
        return None
    wide = "unsigned int" if (1 + bound.times) * reach <= UNSIGNED else "64 bits"
    size = re.sub(r"\s+", " ", text(bound.size))[:60]
    return (
        f"line {bound.line}: a step of '{bound.counter}' can pass the end of its type before it reaches '{size}', where the original is "
        f"correct: count in {wide}"
    )


def _borne(read: _Read, size: Polynomial | None) -> Iterator[int]:
    """The largest indices that a function of the original compares with a size."""
    for index, other in comparisons(read.function.block):
        if size is not None and read.ranges.scope.index(other) == size:
            yield read.ranges.holds(index) // _factor(read, index)


def comparisons(body: Node) -> Iterator[tuple[Node, Node]]:
    """Both orders of what is compared."""
    for node in walk(body):
        if node.type == "binary_expression":
            sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
            if sign is not None and text(sign) in _RELATIONS and left is not None and right is not None:
                yield from ((left, right), (right, left))


def expanded_unit(program: Program) -> Unit:
    """The kernel's file; macros that assign are written out, as far as they are calls of functions."""
    return _expanded(program.data, program.kernel_file)


@lru_cache(maxsize=64)
def _expanded(data: bytes, path: str) -> Unit:
    for _ in range(_MOST_EXPANSIONS):
        unit = parse(data, path)
        macros = {
            n: found[0]
            for n, found in function_macros(data, path).items()
            if len(found) == 1 and _ASSIGNS.search(found[0][1])
        }
        plain = {n: written for n, written in unit.macros.items() if _ASSIGNS.search(written)}
        edits = (
            [e for f in device_functions(unit) for e in _expansions(f.block, macros, plain)] if macros or plain else []
        )
        if not edits:
            return unit
        if len(data) + sum(len(written) for _, _, written in edits) > _MOST_TEXT:
            raise OutOfTime
        for start, end, written in sorted(edits, reverse=True):
            data = data[:start] + written.encode() + data[end:]
    raise OutOfTime


def _expansions(
    body: Node, macros: dict[str, tuple[tuple[str, ...], str]], plain: dict[str, str]
) -> Iterator[tuple[int, int, str]]:
    end = 0
    for node in walk(body):
        if node.start_byte < end:
            continue
        arguments = node.child_by_field_name("arguments")
        if node.type == "call_expression" and called(node) in macros and arguments is not None:
            names, written = macros[called(node)]
            given = dict(zip(names, (text(c) for c in children(arguments)), strict=False))
            end = node.end_byte
            parts = re.split(r"(\w+)", written)
            yield node.start_byte, end, "".join(given.get(part, part) for part in parts)
        elif node.type == "identifier" and text(node) in plain:
            end = node.end_byte
            yield node.start_byte, end, plain[text(node)]


def device_functions(unit: Unit) -> list[Function]:
    found = []
    for function in unit.functions:
        if function.qualifier != "host":
            try:
                _ = function.block
            except LookupError:
                continue
            found.append(function)
    return found


def _arguments(spec: KernelSpec, function: Function) -> dict[str, int]:
    """The numbers among the arguments of a kernel's template, as the spec gives them."""
    found: dict[str, int] = {}
    for step in spec.steps:
        if step.kernel.rpartition("::")[2] == function.name:
            for declared, given in zip(function.template_parameters, step.template_args.split(","), strict=False):
                with suppress(ArithmeticError_):
                    found[re.split(r"\W+", declared.partition("=")[0].strip())[-1]] = evaluate_int(given, {})
    return found


def known_values(
    original: Program, spec: KernelSpec, program: Program, unit: Unit, function: Function
) -> dict[str, int]:
    """The largest values of a kernel's parameters, of gridDim.x and of threads in a block, as far as launches and spec show them.

    Constants at every visible launch of the original, or in the spec, and what the program's own launches limit their grid to.
    """
    found = _arguments(spec, function)
    for argument in spec.arguments:
        if argument.role == "scalar" and argument.value:
            with suppress(ArithmeticError_):
                found[argument.name] = evaluate_int(argument.value, {})
    launches = sites(original, function.name)
    for at, p in enumerate(function.parameters):
        with suppress(ArithmeticError_, IndexError):
            values = [evaluate_int(launch.arguments[at], {}) for launch in launches]
            found |= {p.name: max(values)} if values and not p.pointer else {}
    ranges, shapes = Ranges(unit, Scope(unit, function), found), list[tuple[int, int]]()
    try:
        for launch in sites(program, function.name):
            grid, block, *_ = kernel_terms(program, launch, unit.kernel(function.name), ())
            extents = [expression(written) for written in (grid[0], *block)]
            blocks, *sides = (ranges.largest(node) if node is not None else INT for node in extents)
            shapes.append((blocks, min(THREADS, math.prod(sides))))
    except (OptimlError, KeyError, ValueError, IndexError):
        return found
    return (
        {**found, **dict(zip(("gridDim.x", "blockDim"), map(max, *shapes, (0, 0)), strict=True))} if shapes else found
    )


def _read(unit: Unit, function: Function, known: Mapping[str, int]) -> _Read:
    scope = Scope(unit, function)
    ranges = Ranges(unit, scope, known)
    steps = _steps(function.block, ranges)
    ahead = Scope(unit, function, frozenset(steps)) if "gridDim" in text(function.block) else None
    found = []
    for index, size in comparisons(function.block) if ahead or max(steps.values(), default=0) > NEAR else ():
        key = _place(index, scope)
        step, times, holds = steps.get(key, 0), 1, ranges.holds(strip(index))
        if not step and ahead is not None and (times := _ahead(ahead.index(index), steps)):
            step, holds = known.get("gridDim.x", INT) * known.get("blockDim", THREADS), _computed_in(index, ranges)
        if step > NEAR:
            value = scope.index(size)
            written = re.sub(r"\s*\.\s*\w+", "", value.render() if value is not None else text(size))
            names = frozenset(re.findall(r"\w+", written)) & scope.parameters.keys()
            most = min(ranges.holds(size), ranges.largest(size))
            found.append(_Bound(key, unit.line_of(index.start_byte), holds, step, times, size, names, value, most))
    return _Read(function, ranges, tuple(found))


def _steps(body: Node, ranges: Ranges) -> dict[str, int]:
    """What is advanced in a loop, as written, with the largest step."""
    found: dict[str, int] = {}
    for node in walk(body):
        if node.type != "assignment_expression" or not any(above.type in _LOOPS for above in ancestors(node, body)):
            continue
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or right is None:
            continue
        key = _place(left, ranges.scope)
        if text(sign) == "+=":
            step = ranges.largest(right)
        elif text(sign) in ("*=", "<<="):
            step = LONGEST
        else:
            terms = _terms(right, ranges.scope) if text(sign) == "=" else []
            others = [t for t in terms if compact(t) != key]
            step = sum(ranges.largest(t) for t in others) if len(others) < len(terms) else 0
        found[key] = max(found.get(key, 0), step)
    return found


def _place(node: Node, scope: Scope) -> str:
    """What is advanced or compared, as written; a variable's own name where a reference or a pointer stands for it."""
    node = strip(node)
    named = node.child_by_field_name("argument") if node.type == "pointer_expression" else node
    found = scope.lookup(text(named), named) if named is not None and named.type == "identifier" else None
    if found is not None and found.value is not None and (found.shape == "reference") == (named is node):
        return (
            compact(strip(found.value)).removeprefix("&") if found.shape in ("reference", "pointer") else compact(node)
        )
    return compact(node)


def _terms(node: Node, scope: Scope, depth: int = 0) -> list[Node]:
    """What a value is the sum of; variables that never change are looked through."""
    found: list[Node] = []
    for term in operands(node, "+"):
        value = scope.resolve(term) if term.type == "identifier" and depth < 8 else None
        found += _terms(value, scope, depth + 1) if value is not None else [term]
    return found


def _ahead(index: Polynomial | None, stepped: Mapping[str, int]) -> int:
    """How many times the threads of the whole grid an index lies beyond a counter: 3 of `i + 3 * stride`; 0 without them in it.

    What is too long to be read (None) may have them.
    """
    if index is None:
        return 1
    if len(index.terms) < 2:
        return 0
    times = 0
    for product, factor in index.terms.items():
        # Blocks that are numbered in rows, or from the last one, lie within the grid.
        if (
            factor > 0
            and any("gridDim" in atom for atom in product)
            and not any("blockIdx" in atom for atom in product)
        ):
            back = tuple(sorted(atom.replace("gridDim", "blockIdx") for atom in product))
            if index.terms.get(back) != -factor:
                times += factor
    return times + bool(times and index.names() & stepped.keys())


def _computed_in(index: Node, ranges: Ranges) -> int:
    """The largest value of the type that a sum is computed in: that of the sum, not of what it is assigned to or turned into."""
    inner = strip(index)
    holds, value = ranges.holds(inner), ranges.scope.resolve(inner) if inner.type == "identifier" else None
    return min(holds, _computed_in(value, ranges)) if value is not None and len(operands(value, "+")) > 1 else holds


def _factor(read: _Read, index: Node) -> int:
    """The largest constant that a compared variable is multiplied by in an index of fewer than 64 bits."""
    name, most = compact(strip(index)), 1
    if not name.isidentifier():
        return most
    kept = Scope(read.ranges.unit, read.function, frozenset({name}))
    for node in walk(read.function.block):
        at = index_of(node) if node.type == "subscript_expression" else None
        if at is None or not any(n.type == "identifier" and text(n) == name for n in walk(at)):
            continue
        value = kept.index(at)
        parts = value.split(name) if value is not None else None
        constant = parts[0].constant if parts is not None else None
        if constant and read.ranges.holds(at) <= UNSIGNED:
            most = max(most, abs(constant))
    return most
