"""Try other values of the constants that size blocks and tiles: `#define TILE 32`, `constexpr int ROWS = 8`.

What such a kernel computes must not depend on them, and most kernels are written so; what was missed is for verification to find.
"""

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import product

from engine.cuda.clock import tick
from engine.cuda.constants import value_span, words
from engine.cuda.launch import block_constants
from engine.cuda.syntax import text, walk
from engine.rewrite import Edit, Families, Family, OptimlError, Point, Proposal, Proposals, Site, Span, proposal
from engine.rules.idioms import WARP
from engine.spec.constant_values import bound_at, launches_at, shared_bytes

_MOST = 5  # constants
_MOST_POINTS = 125
_STEPS = 128  # of the clock for one launch: what evaluating it costs, in nodes visited
_LARGEST = 1024
_COMMON = 4  # numbers up to here stand in any kernel for something else. Ours
_PRIOR = 0.38
_BELOW, _BY = re.compile(r"\w+\s*<\s*(\w+)"), re.compile(r"\w+\s*\+=\s*(\w+)")
_LIMITS = "the constants keep their order, steps divide what they step through, and the launch stays within the target's limits"


@dataclass(frozen=True)
class _SizeConstant:
    name: str
    value: int
    span: Span  # of the value's text


class TileSize:
    """Other values, by factors of two, of constants that the launch's block or an array of the block beside one of them depends on."""

    name = "tile_size"
    summary = "Change block and tile sizes"

    def propose(self, site: Site) -> Proposals:
        constants = _constants(site)
        strides, rank = _strides(site, constants), 0
        for constant in constants:
            for value in (2 * constant.value, constant.value // 2):
                values = {c.name: value if c is constant else c.value for c in constants}
                if (
                    1 <= value <= _LARGEST
                    and 2 * value != constant.value - 1
                    and not _impossible(site, constants, strides, values)
                ):
                    yield from self._at(constants, values, site, _PRIOR - 0.03 * rank)
                    rank += 1

    def families(self, site: Site) -> Families:
        """The values of all such constants together."""
        constants = _constants(site)
        if not constants:
            return
        reach = 2 if 5 ** len(constants) <= _MOST_POINTS else 1
        parameters = {c.name: _values(c.value, reach) for c in constants}
        strides = _strides(site, constants)
        possible = {
            choice for choice in product(*parameters.values())
            if not _impossible(site, constants, strides, dict(zip(parameters, choice, strict=True)))
        }  # fmt: skip

        def make(values: Point) -> Proposal | None:
            return next(self._at(constants, values, site, _PRIOR), None)

        def impossible(values: Point) -> str:
            return "" if tuple(values[name] for name in parameters) in possible else _LIMITS

        yield Family(self.name, self.summary, parameters, (), make, _PRIOR, impossible)

    def _at(self, constants: Sequence[_SizeConstant], values: Point, site: Site, prior: float) -> Proposals:
        changed = [c for c in constants if values[c.name] != c.value]
        edits = site.in_file(*(Edit(c.span, str(values[c.name])) for c in changed))
        said = ", ".join(f"{c.name} = {values[c.name]}" for c in changed)
        if changed:
            yield from proposal(self.name, f"Set {said}", edits, prior, **{c.name: values[c.name] for c in constants})


def _values(value: int, reach: int) -> tuple[int, ...]:
    smaller = [value >> k for k in range(reach, 0, -1) if value % (1 << k) == 0]
    return (*smaller, *(v for k in range(reach + 1) if (v := value << k) <= _LARGEST))


def _constants(site: Site) -> tuple[_SizeConstant, ...]:
    """The constants to change, in the order of their names; () where the rule has nothing to offer."""
    if not site.sound or not site.launch_visible or any(step.launch is not None for step in site.spec.steps):
        return ()
    unit, path = site.unit, site.program.kernel_file
    block = {
        c.name
        for launch in site.launches
        for c in block_constants(site.program, launch)
        if c.in_kernel and c.path == path
    }
    names = set(block)
    for array in site.kernel.shared:
        within = {w for extent in array.extents for w in words(extent)}
        if within & block:
            names |= {w for w in within if w in unit.macros or w in unit.constants}
    flat = all(c.block[1:] == (1, 1) for c in site.configs)
    if not block or len(names) > _MOST or (flat and len(names) == 1):
        return ()  # a block of one extent and one constant is the rule block_size's
    found = []
    for name in sorted(names):
        span = value_span(unit, name)
        written = unit.text(span).strip() if span is not None else ""
        if span is not None and re.fullmatch(r"\d{1,4}", written) and 1 <= int(written) <= _LARGEST:
            found.append(_SizeConstant(name, int(written), span))
        elif name in block:
            return ()
    if not found or not _only_named(site, found):
        return ()
    return (
        tuple(found)
        if site.changes_only_kernels(site.in_file(*(Edit(c.span, str(2 * c.value)) for c in found)))
        else ()
    )


def _only_named(site: Site, constants: Sequence[_SizeConstant]) -> bool:
    """Whether the kernel and its launches never write one of the values as a number: it may stand for the constant."""
    values = {str(c.value) for c in constants if c.value > _COMMON}
    around = [f.node for f in site.unit.functions if any(f.span.contains(launch.span) for launch in site.launches)]
    nodes = (n for body in (site.body, *around) for n in walk(body))
    return not any(n.type == "number_literal" and text(n) in values for n in nodes)


def _impossible(site: Site, constants: Sequence[_SizeConstant], strides: Set[tuple[str, str]], values: Point) -> bool:
    """Whether the choice is the present one, puts a smaller constant above a larger one (rows of threads above rows of their tile),
    leaves threads beyond the end of what they step through, or is beyond what the target allows of its launch or shared memory."""
    if all(values[c.name] == c.value for c in constants):
        return True
    if any(a.value < b.value and values[a.name] > values[b.name] for a in constants for b in constants):
        return True
    if any(values[bound] % values[step] for bound, step in strides):
        return True
    used = shared_bytes(site.unit, site.kernel, values)
    if used is not None and used > site.target.shared_per_block:
        return True
    tick(_STEPS * len(site.spec.time))
    try:
        launches = [launch for case in launches_at(site.program, site.spec, values) for launch in case]
    except OptimlError:
        return True
    most = min(site.target.max_threads_per_block, bound_at(site.unit, site.kernel, values) or _LARGEST)
    return not all(WARP <= launch.threads <= most and launch.block[2] <= 64 and launch.blocks for launch in launches)


def _strides(site: Site, constants: Sequence[_SizeConstant]) -> set[tuple[str, str]]:
    """(bound, step) of each loop that all threads begin at the same number and step through in pieces that fit."""
    values = {c.name: c.value for c in constants}
    found = set()
    for loop in site.kernel.loops:
        bound, step = _BELOW.fullmatch(loop.condition), _BY.fullmatch(loop.step)
        if bound and step and loop.start.isdecimal() and {bound[1], step[1]} <= values.keys():
            found.add((bound[1], step[1]))
    return {(bound, step) for bound, step in found if values[bound] % values[step] == 0}
