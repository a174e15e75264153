"""Which shapes a draft checks and times: awkward and small ones for checks, large ones for timing, all of them launchable."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import replace

from engine.arith import evaluate_int
from engine.cuda.kernel import Kernel
from engine.errors import SourceError
from engine.model import Program
from engine.spec.drafted_callers import passed_numbers
from engine.spec.dtypes import parse_dtype
from engine.spec.extents import value_at
from engine.spec.host_launch import for_checks, launchable
from engine.spec.kernel_spec import Argument, Case, KernelSpec
from engine.spec.launch_config import evaluate
from engine.spec.spec_checks import case_name, derived_cases

# Ours: large enough that a kernel takes tens of microseconds, small enough that all buffers fit any GPU.
_TIME_SIZES = {1: 1 << 24, 2: 4096, 3: 1024}
_TIME_SIZE_MANY = 128
_TRIPS = 256  # of a loop whose length nothing else depends on. Ours
_MAX_THREADS = 1024
_TILE = 64  # a multiple of the sides of tiles that people use
_SMALL = re.compile(r"(radius|ksize|kernel_size|filter|stride|pad|dilation|halo|width_k)", re.IGNORECASE)
_MAX_BYTES = 4 << 30
MAX_CHECKED = 30_000  # elements of one buffer in a check; ours: docs/spec.md asks for less than some 20,000
_FEW = (1, 1, 2, 3)  # blocks of checks whose rows these go around: a block may take several rows at a time
_MAX_LESS = 8  # what a buffer is shorter than its sizes
_PART, _PARTS = 8, (1, 2, 3, 5)  # of what another size is a multiple of, in time and in checks
_MAX_DOUBLED, _MOST_DOUBLED = (
    12,
    4,
)  # of a check that has to have several blocks, and how much larger than others it may be
_MAX_HALVED, _MOST_TIMED = 12, 8  # of a timed shape to check, and how much larger than others it may be
_LONG = 4099  # of a length that is short for timing: its checks are those of any length


def first_shapes(
    sizes: list[str], arguments: list[Argument], divided: Mapping[str, str]
) -> tuple[tuple[Case, ...], Case]:
    """Shapes to check and one to time, as far as the buffers decide; of sizes named in the order of the parameters.

    `divided` names sizes that are multiples of others, with these.
    """
    few = {n: _PART if n in divided.values() else 3 for n in sizes if n in divided.values() or _SMALL.search(n)}
    time = _time_case(sizes, few, arguments)
    check = [_populated(case, arguments) for case in _affordable(_awkward(time, few), arguments)]
    check = [_divisible(case, divided, _PARTS[at % len(_PARTS)]) for at, case in enumerate(check)]
    return tuple(case for at, case in enumerate(check) if case not in check[:at]), time


def ordered_shapes(check: tuple[Case, ...], sizes: list[str], arguments: list[Argument]) -> tuple[Case, ...]:
    """Shapes to check in which no size is larger than one before it, where these are known at such alone; else those given."""
    lengths = [n for n in sizes if not _SMALL.search(n)]
    places = range(len(lengths) - 1, -1, -1)
    chosen = [[1 for _ in places], [3 + 2 * at for at in places], [2 + 3 * at for at in places], [8 for _ in places]]
    found = [{**check[0].sizes, **dict(zip(lengths, values, strict=True))} for values in chosen]
    cases = [Case(case_name(s), s) for s in found if _largest(arguments, Case("", s)) <= MAX_CHECKED]
    return tuple(_populated(case, arguments) for case in cases) or check


def counted_shapes(program: Program, kernel: Kernel, spec: KernelSpec, divided: Mapping[str, str]) -> KernelSpec:
    """The spec with no longer loops to time than the program has: where a size is neither one of a buffer nor of the launch, the
    number that a launch passes for it, or a few hundred. `divided` as for `first_shapes`."""
    extents = [a.size for a in spec.arguments if a.role != "scalar"]
    words = set(re.findall(r"\w+", " ".join(extents)))
    sizes = spec.time[0].sizes
    trips: dict[str, int | float] = {}
    for name in [n for n in sizes if n not in words and not _SMALL.search(n)] if all(extents) else ():
        with contextlib.suppress(SourceError):
            if len({evaluate(program, spec, 0, {**sizes, name: count}) for count in (1, 3, 64)}) == 1:
                trips[name] = _TRIPS
    if not trips:
        return spec
    trips |= {name: number for name, (number, _) in passed_numbers(program, kernel).items() if name in trips}
    lengths = [n for n in sizes if n not in trips]
    rest = first_shapes(lengths, list(spec.arguments), divided)[1].sizes if lengths else {}
    time = {name: trips.get(name, rest.get(name, value)) for name, value in sizes.items()}
    return replace(spec, time=(Case(case_name(time), time),))


def launchable_shapes(
    program: Program,
    spec: KernelSpec,
    sizes: list[str],
    host: Mapping[str, int],
    divided: Mapping[str, str],
    whole: bool,
) -> KernelSpec:
    """The spec with what its host's code is told in each case (`host`), and shapes that can be launched with that.

    `whole`: those to check are whole tiles.
    """
    spec = replace(spec, check=_with(spec.check, for_checks(host), divided), time=_with(spec.time, host, divided))
    lengths = {n for n in sizes if n not in host and n not in divided.values() and not _SMALL.search(n)}
    counting = _counting_blocks(program, spec, lengths)
    spec = replace(spec, check=tuple(_few(case, counting, at) for at, case in enumerate(spec.check)))
    if whole:
        tile = tile_of(program, spec) if len(lengths) == 1 else 1
        whole_time = {n: -(-int(v) // tile) * tile if n in lengths else v for n, v in spec.time[0].sizes.items()}
        time = replace(spec.time[0], name=case_name(whole_time), sizes=whole_time)
        spec = replace(spec, check=_whole_tiles(program, spec, lengths), time=(time,))
    spec = _launchable(program, spec, lengths)
    # What the host says may leave nothing to tell them apart.
    return replace(spec, check=tuple(c for at, c in enumerate(spec.check) if c not in spec.check[:at]))


def _counting_blocks(program: Program, spec: KernelSpec, lengths: set[str]) -> set[str]:
    """Sizes that the grid alone depends on: with few blocks each has to go around, as it does with many rows."""
    extents = [a.size for a in spec.arguments if a.role != "scalar"]
    inside = set(re.findall(r"\w+", " ".join(extents))) if all(extents) else set()
    found, sizes = set(), spec.check[0].sizes
    for name in lengths - inside if lengths & inside else ():
        with contextlib.suppress(SourceError):
            grids = {evaluate(program, spec, 0, {**sizes, name: count}).grid for count in (1, 2, _TILE)}
            found |= {name} if len(grids) == 3 else set()
    return found


def _few(case: Case, names: set[str], at: int) -> Case:
    sizes = {n: min(int(v), _FEW[at % len(_FEW)]) if n in names else v for n, v in case.sizes.items()}
    return Case(case_name(sizes), sizes) if names else case


def _divisible(case: Case, divided: Mapping[str, str], part: int) -> Case:
    """The case with this value for what other sizes are multiples of."""
    sizes = dict(case.sizes)
    for multiple, name in divided.items():
        sizes[name] = part
        sizes[multiple] = max(1, int(sizes[multiple]) // part) * part
    return Case(case_name(sizes), sizes) if divided else case


def _time_case(sizes: list[str], few: Mapping[str, int], arguments: list[Argument]) -> Case:
    lengths = [n for n in sizes if n not in few]
    each = _TIME_SIZES.get(max(1, len(lengths)), _TIME_SIZE_MANY)
    chosen: dict[str, int | float] = {n: few.get(n, each) for n in sizes}
    case = Case(case_name(chosen), chosen)
    while each > 1 and _bytes(arguments, case) > _MAX_BYTES:
        each //= 2
        chosen = {n: few.get(n, each) for n in sizes}
        case = Case(case_name(chosen), chosen)
    return case


def _launchable(program: Program, spec: KernelSpec, lengths: set[str]) -> KernelSpec:
    """The spec with shapes for which the host's figures give a launch: smaller ones for timing, whole tiles for checks."""
    time = spec.time[0]
    while not launchable(program, spec, time) and max([time.sizes[n] for n in lengths], default=0) > _TILE:
        sizes = {n: max(1, int(v) // 2) if n in lengths and v > 1 else v for n, v in time.sizes.items()}
        time = Case(case_name(sizes), sizes)
    check = launchable_checks(program, spec, lengths)
    return _several_blocks(program, replace(spec, time=(time,), check=check), lengths)


def launchable_checks(program: Program, spec: KernelSpec, lengths: set[str]) -> tuple[Case, ...]:
    """The spec's shapes to check where all can be launched; else whole tiles of these lengths."""
    check = tuple(c for c in spec.check if launchable(program, spec, c))
    if len(check) == len(spec.check):
        return check
    # The grid counts whole tiles only: an odd shape would leave a border out, or everything.
    tiled = _whole_tiles(program, spec, lengths)
    return tuple(c for c in tiled if launchable(program, spec, c)) or check or spec.check


def _several_blocks(program: Program, spec: KernelSpec, lengths: set[str]) -> KernelSpec:
    """The spec with one larger check where all would run in one block: what blocks do to each other would never show."""

    def blocks(case: Case) -> int:
        try:
            return evaluate(program, spec, 0, case.sizes).blocks
        except SourceError:
            return 0

    if blocks(spec.time[0]) < 2 or any(blocks(case) != 1 for case in spec.check):
        return spec
    case = spec.check[-1]
    # The other lengths count whole tiles.
    odd = {n for n in lengths if any(int(c.sizes[n]) % 2 and c.sizes[n] != 1 for c in spec.check)}
    for _ in range(_MAX_DOUBLED):
        sizes = {
            n: min(2 * int(v) + (n in odd), int(spec.time[0].sizes[n])) if n in lengths else v
            for n, v in case.sizes.items()
        }
        case = Case(case_name(sizes), sizes)
        if _largest(list(spec.arguments), case) > _MOST_DOUBLED * MAX_CHECKED:
            break
        if blocks(case) > 1 and launchable(program, spec, case):
            return replace(spec, check=(*spec.check, case))
    return spec


def shrunk(program: Program, spec: KernelSpec, sizes: list[str], halvings: int) -> KernelSpec:
    """The spec with its timing case's lengths halved so often, or until its offsets can be counted, as long as that can be launched."""
    time, turn = spec.time[0], 0
    while turn < halvings or _uncounted(spec, time):
        turn += 1
        smaller = {
            n: max(1, int(v) // 2) if n in sizes and not _SMALL.search(n) and v > 1 else v
            for n, v in time.sizes.items()
        }
        case = Case(case_name(smaller), smaller)
        if not launchable(program, spec, case) or max([smaller[n] for n in sizes], default=0) < _TILE:
            break
        time = case
    return replace(spec, time=(time,))


def _uncounted(spec: KernelSpec, case: Case) -> bool:
    """Whether the type of some offsets cannot hold where the last segment may end."""
    for argument in spec.arguments:
        if argument.fill.kind == "offsets":
            sizes = {name: int(value) for name, value in case.sizes.items()}
            ends = (value_at(argument.size, sizes) or 0) * ((value_at(argument.fill.high, sizes) or 0) - 1)
            if ends > parse_dtype(argument.type).limits[1]:
                return True
    return False


def varied(spec: KernelSpec) -> tuple[Case, ...]:
    """Shapes of one length on every side, and with one side of half of it: some keep what sizes have to be to each other."""
    first = spec.check[0].sizes
    lengths = [n for n, v in first.items() if not _SMALL.search(n) and len({c.sizes[n] for c in spec.check}) > 1]
    found = []

    def largest(side: int) -> int:
        return _largest(list(spec.arguments), Case("", {**first, **dict.fromkeys(lengths, side)}))

    most = max(MAX_CHECKED, largest(1))  # what is of one size gets no smaller
    for side in (_TILE, 2 * _TILE, _TILE // 2):
        while side > 1 and largest(side) > most:
            side //= 2
        even = {**first, **dict.fromkeys(lengths, side)}
        found += [even, *({**even, n: max(1, side // 2)} for n in lengths)]
    return tuple(Case(case_name(s), s) for at, s in enumerate(found) if s not in found[:at])


def timed_shapes(spec: KernelSpec) -> tuple[Case, ...]:
    """Shapes to check that are those to time, halved until they can be checked: a grid may fit no others. What is no extent is small."""
    extents = {word for a in spec.arguments if a.role != "scalar" for word in re.findall(r"\w+", a.size)}
    found = []
    for time in spec.time:
        few = {n: sorted({c.sizes.get(n, v) for c in spec.check})[:2][-1] for n, v in time.sizes.items()}
        sizes = {n: v if n in extents else min(v, few[n]) for n, v in time.sizes.items()}
        for halvings in range(_MAX_HALVED):
            # All by as much: what is half of another size stays so.
            own = {n: max(1, int(v) >> halvings) if n in extents and v > _TILE else v for n, v in sizes.items()}
            case = Case(case_name(own), own)
            if case not in found and _largest(list(spec.arguments), case) <= _MOST_TIMED * MAX_CHECKED:
                found.append(case)
    return tuple(found)


def tile_of(program: Program, spec: KernelSpec) -> int:
    """What the one length of a kernel has to be a multiple of for a grid that counts whole blocks: of a block, and of two warps."""
    with contextlib.suppress(SourceError):
        x, y, z = evaluate(program, spec, 0, spec.time[0].sizes).block
        if x * y * z <= _MAX_THREADS:
            return math.lcm(_TILE, x)
    return _TILE


def _whole_tiles(program: Program, spec: KernelSpec, lengths: set[str]) -> tuple[Case, ...]:
    """Check shapes whose lengths are multiples of the sides of tiles."""
    tile = _least_tile(program, spec, *lengths) if len(lengths) == 1 else _TILE
    sizes = [{n: -(-int(v) // tile) * tile if n in lengths else v for n, v in c.sizes.items()} for c in spec.check]
    if len(lengths) == 1 and len({case[n] for case in sizes for n in lengths}) == 1:  # one tile covers all
        turns = itertools.islice(itertools.cycle(sizes), 3)
        sizes = [{n: k * v if n in lengths else v for n, v in case.items()} for k, case in enumerate(turns, 1)]
    least = Case("", {n: _TILE if n in lengths else v for n, v in spec.check[0].sizes.items()})
    # Whole tiles of 64 on every side may be too much to check.
    constant = _largest([a for a in spec.arguments if a.size.isdigit()], least)  # which gets no smaller
    if max(_largest(list(spec.arguments), least), _TILE ** len(lengths)) > max(MAX_CHECKED, constant):
        order, base, side = sorted(lengths), spec.check[0].sizes, 8
        while True:
            sizes = [{**base, **{n: side << ((k >> i) & 1) for i, n in enumerate(order)}} for k in range(3)]
            if side == _TILE or all(launchable(program, spec, Case("", s)) for s in sizes):
                break
            side *= 2
    return tuple(Case(case_name(s), s) for at, s in enumerate(sizes) if s not in sizes[:at])


def _least_tile(program: Program, spec: KernelSpec, length: str) -> int:
    """The tile of a length; larger where the host launches nothing for it: it may divide bytes by those of many blocks."""
    tile, base = tile_of(program, spec), spec.check[0].sizes
    wider = tile
    while wider <= int(spec.time[0].sizes[length]):
        if launchable(program, spec, Case("", {**base, length: wider})):
            return wider
        wider *= 2
    return tile


def _awkward(time: Case, few: Mapping[str, int]) -> tuple[Case, ...]:
    """Check shapes for a timing case whose sizes, but those in `few`, are lengths, however short they are."""
    return derived_cases((Case("", {n: v if n in few else max(int(v), _LONG) for n, v in time.sizes.items()}),))


def _populated(case: Case, arguments: list[Argument]) -> Case:
    """The case with sizes that leave no buffer without an element, as 1 does one of `n - 1`."""
    sizes = dict(case.sizes)
    for _ in range(_MAX_LESS):
        if all(evaluate_int(a.size, sizes) > 0 for a in arguments if a.role != "scalar" and a.size):
            break
        sizes = {name: value + 1 for name, value in sizes.items()}
    return Case(case_name(sizes), sizes)


def _affordable(cases: tuple[Case, ...], arguments: list[Argument]) -> tuple[Case, ...]:
    """Check shapes with smaller, still odd lengths where a buffer would take long to check without a GPU."""
    found: list[Case] = []
    for case in cases:
        while case.sizes and _largest(arguments, case) > MAX_CHECKED:
            name = max(case.sizes, key=lambda n: case.sizes[n])
            if case.sizes[name] <= 3:
                break
            sizes = {**case.sizes, name: int(case.sizes[name]) // 2 | 1}
            case = Case(case_name(sizes), sizes)
        if case not in found:
            found.append(case)
    return tuple(found)


def is_tiled(spec: KernelSpec) -> bool:
    """Whether a size has to be a multiple of something: the checks say so, or the block has as many threads."""
    named = [a.name for a in spec.arguments if a.role == "scalar" and not a.value]
    lengths = [n for n in named if not _SMALL.search(n)]
    return any(all(c.sizes[n] % _TILE == 0 for c in spec.check) for n in lengths)


def _with(cases: tuple[Case, ...], more: Mapping[str, int], divided: Mapping[str, str]) -> tuple[Case, ...]:
    """The cases with these sizes, and what divides one of them as the next smaller number that does."""
    found = []
    for case in cases if more else ():
        sizes = {**case.sizes, **more}
        for multiple, name in divided.items():
            if multiple in more and name not in more:
                most = max(1, min(int(sizes[name]), int(sizes[multiple])))
                sizes[name] = next(n for n in range(most, 0, -1) if int(sizes[multiple]) % n == 0)
        found.append(Case(case_name(sizes), sizes))
    return tuple(found) or cases


def _largest(arguments: list[Argument], case: Case) -> int:
    return max((evaluate_int(a.size, case.sizes) for a in arguments if a.role != "scalar" and a.size), default=0)


def _bytes(arguments: list[Argument], case: Case) -> int:
    buffers = [a for a in arguments if a.role != "scalar" and a.size]
    return sum(evaluate_int(a.size, case.sizes) * parse_dtype(a.type).itemsize for a in buffers)
