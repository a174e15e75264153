"""The launch of a recorded kernel: as the host's text gives it for some sizes, else declared, over the kernel's own or the grid's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from engine.capture.recorded_values import LARGE, MULTIPLES, NamedLaunch
from engine.cuda.constants import words
from engine.errors import SourceError
from engine.model import LaunchConfig, Program
from engine.spec.dtypes import parse_dtype
from engine.spec.extents import products, value_at
from engine.spec.kernel_spec import Argument, KernelSpec, LaunchExpr
from engine.spec.launch_config import evaluate
from engine.spec.spec_checks import case_name

Sizes = dict[str, int]

_MOST_TRIED = 1024  # values of names that only the host knows
_FEW_BLOCKS = (3, 5, 1, 4)  # of checks, along an extent of the grid that is a size of its own; ours
_AXES = ("", "_y", "_z")


@dataclass(frozen=True)
class FoundLaunch:
    """What gives the recorded launches: the spec, and the sizes of each launch. `problem` says what does not.

    `grid` are sizes that the kernel's text does not show to be such and that give an extent of the grid, with how much of it a block
    takes: 1 for one that counts blocks, the block's side for one that counts threads.
    """

    spec: KernelSpec
    sizes: list[Sizes]
    grid: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""


def find_launch(
    program: Program, spec: KernelSpec, launches: Sequence[NamedLaunch], sizes: Sequence[Mapping[str, int]]
) -> FoundLaunch:
    """The spec and the sizes that give the recorded launches. `sizes` are those of each launch, the host's names as drafted.

    Names that only the host knows get values for which its text gives what was recorded. Where none do, or the text cannot be
    read, the spec declares the launch: from the kernel's sizes and whole-number scalars, which become sizes, or else with a size for an
    extent of the grid.
    """
    own = [dict(s) for s in sizes]
    hosts = _hosts(program, spec, sizes[0])
    problem = ""
    for each, found in zip(launches, own, strict=True):
        try:
            problem = problem or _solve(program, spec, found, hosts, each)
        except SourceError as error:
            problem = problem or str(error)
    if not problem:
        return FoundLaunch(spec, own)
    declared = _declared(program, spec, launches, [{n: v for n, v in s.items() if n not in hosts} for s in sizes])
    return declared or FoundLaunch(spec, own, problem=problem)


def _hosts(program: Program, spec: KernelSpec, sizes: Mapping[str, int]) -> list[str]:
    """The names that only the host knows and that its launch needs."""
    scalars = {a.size_name or a.name for a in spec.arguments}
    found = []
    for name in sizes.keys() - scalars:
        try:
            evaluate(program, spec, 0, {n: v for n, v in sizes.items() if n != name})
        except SourceError:
            found.append(name)
    return [name for name in sizes if name in found]


def _solve(program: Program, spec: KernelSpec, own: Sizes, hosts: Sequence[str], recorded: NamedLaunch) -> str:
    """Sets the host's names in `own`; what is wrong where no values give the launch. What fills a buffer is tried first."""
    wanted = _config(recorded)
    pointers = [a for a in spec.arguments if a.role != "scalar"]
    figures = {*wanted.block, *wanted.grid, wanted.threads, wanted.blocks, wanted.shared_bytes, *own.values()}
    figures |= {wanted.threads * wanted.blocks, *(1 << k for k in range(11))}
    sides = [blocks * threads for blocks, threads in zip(wanted.grid, wanted.block, strict=True)]
    rooms = [recorded.room(a.name) for a in pointers]  # the host may count bytes
    lengths = [recorded.room(a.name) // parse_dtype(a.type).itemsize for a in pointers]
    values = [*(v for v in dict.fromkeys([*lengths, *sides, *rooms, *sorted(figures)]) if v >= 1), 0]
    best = evaluate(program, spec, 0, own)
    # One name at a time, as far as that gets, then all together.
    alone = ({name: value} for _ in hosts for name in hosts for value in values)
    together = (dict(zip(hosts, v, strict=True)) for v in itertools.product(values, repeat=len(hosts)))
    for chosen in itertools.chain(alone, itertools.islice(together, _MOST_TRIED)):
        if best == wanted:
            return ""
        try:
            launch = evaluate(program, spec, 0, {**own, **chosen})
        except SourceError:
            continue
        if _alike(launch, wanted) > _alike(best, wanted):
            best = launch
            own.update(chosen)
    if best == wanted:
        return ""
    return f"{_shown(wanted)} was recorded, the source gives {_shown(best)} for {case_name(own)}"


def _declared(
    program: Program, spec: KernelSpec, launches: Sequence[NamedLaunch], sizes: Sequence[Sizes]
) -> FoundLaunch | None:
    """Expressions that give every recorded launch; None where the block or the shared memory differ, or the text gives another launch."""
    block, shared = launches[0].launch.block, launches[0].launch.shared
    if any((each.launch.block, each.launch.shared) != (block, shared) for each in launches):
        return None
    numbers = {
        a.name: int(a.value)
        for a in spec.arguments
        if a.role == "scalar" and a.name.isidentifier() and a.value.isdigit() and int(a.value) > 1
    }
    known = [{**own, **numbers} for own in sizes]
    grid, counted = list[str](), dict[str, int]()
    for axis in range(3):
        extents = [each.launch.grid[axis] for each in launches]
        text = grid_text([*sizes[0]], list(zip(sizes, extents, strict=True)), block)
        if not text and (text := grid_text([*numbers], list(zip(known, extents, strict=True)), block)):
            counted |= {n: max(1, numbers[n] // max(extents)) for n in words(text) if n in numbers}
        elif not text:
            name, unit = _counted(program, spec, launches, sizes, axis)
            text, counted[name] = name if unit == 1 else f"cdiv({name}, {unit})", unit
            for own, extent in zip(known, extents, strict=True):
                own[name] = unit * extent
        grid.append(text)
    used = set(words(" ".join(grid)))
    free = {*sizes[0], *used}
    launch = LaunchExpr(trimmed(grid), trimmed([str(n) for n in block]), str(shared))
    arguments = [replace(a, value="") if a.name in used & numbers.keys() else a for a in spec.arguments]
    spec = replace(spec, arguments=tuple(arguments), steps=(replace(spec.steps[0], launch=launch), *spec.steps[1:]))
    found = [{n: v for n, v in own.items() if n in free} for own in known]
    try:
        given = [evaluate(program, spec, 0, own) for own in found]
    except SourceError:
        return None
    return FoundLaunch(spec, found, counted) if given == [_config(each) for each in launches] else None


def _counted(
    program: Program, spec: KernelSpec, launches: Sequence[NamedLaunch], sizes: Sequence[Sizes], axis: int
) -> tuple[str, int]:
    """The name of a size that gives an extent of the grid, and how much of it a block takes.

    It counts threads where a buffer has an element for each, or a small multiple, and no size of the kernel is as long as the block.
    """
    side = launches[0].launch.block[axis]
    per_thread = side > 1 and not any(side in own.values() for own in sizes)
    per_thread = per_thread and any(
        all(_elements(each, a) in {k * side * each.launch.grid[axis] for k in MULTIPLES} for each in launches)
        for a in spec.arguments
        if a.role != "scalar"
    )
    name = ("threads" if per_thread else "blocks") + _AXES[axis]
    while any(re.search(rb"\b%s\b" % name.encode(), data) for data in program.files.values()):
        name = f"grid_{name}"  # a name of the host's would have the size's value there
    return name, side if per_thread else 1


def _elements(each: NamedLaunch, a: Argument) -> int:
    return each.room(a.name) // parse_dtype(a.type).itemsize


def per_extent(grid: Collection[str], trials: Sequence[tuple[Mapping[str, int], int]], itemsize: int) -> str:
    """The size of a buffer with as many elements for each block, or thread, of an extent of the grid; "" for one with none."""
    for name in grid:
        each = trials[0][1] // (itemsize * trials[0][0][name])
        if each and all(room == each * itemsize * own[name] for own, room in trials):
            return f"{each}*{name}"
    return ""


def checked_extent(recorded: int, unit: int, at: int) -> int:
    """The value in the check at this place of a size that counts blocks (`unit` 1) or threads: a few whole blocks."""
    return unit * min(recorded // unit, _FEW_BLOCKS[at % len(_FEW_BLOCKS)])


def grid_text(
    names: Sequence[str], trials: Sequence[tuple[Mapping[str, int], int]], block: tuple[int, int, int]
) -> str:
    """The simplest expression for one extent of the grid; "" where none gives all of them."""
    if all(extent == 1 for _, extent in trials):
        return "1"
    threads = block[0] * block[1] * block[2]
    per = dict.fromkeys([*block, threads, 2 * threads, 4 * threads, *(1 << k for k in range(1, 11))])
    lengths = [n for n in names if any(sizes[n] > LARGE for sizes, _ in trials)] or list(names)
    options = [f"cdiv({p}, {d})" for d in per if d > 1 for p in products(lengths)] + products(names)
    options.sort(key=lambda text: text.count("*"))
    return next((o for o in options if all(value_at(o, sizes) == extent for sizes, extent in trials)), "")


def trimmed(extents: Sequence[str]) -> tuple[str, ...]:
    """Without trailing ones."""
    last = max((i for i, text in enumerate(extents) if text != "1"), default=0)
    return tuple(extents[: last + 1])


def _alike(launch: LaunchConfig, wanted: LaunchConfig) -> int:
    """How many of the extents are the wanted ones."""
    pairs = zip(
        (*launch.grid, *launch.block, launch.shared_bytes),
        (*wanted.grid, *wanted.block, wanted.shared_bytes),
        strict=True,
    )
    return sum(one == other for one, other in pairs)


def _config(each: NamedLaunch) -> LaunchConfig:
    return LaunchConfig(each.launch.grid, each.launch.block, each.launch.shared)


def _shown(launch: LaunchConfig) -> str:
    return f"<<<{launch.grid}, {launch.block}, {launch.shared_bytes}>>>"
