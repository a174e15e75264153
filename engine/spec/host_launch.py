"""What a visible launch needs to know beside the kernel's sizes, for a draft; and which launches are not visible."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Collection, Mapping
from dataclasses import replace

from engine.cuda.host_scope import UnknownHostName
from engine.cuda.launch import sites
from engine.cuda.launch_reading import readable_sites
from engine.cuda.parse import parse
from engine.errors import SourceError
from engine.model import Program
from engine.spec.extents import value_at
from engine.spec.kernel_spec import Case, KernelSpec
from engine.spec.launch_config import evaluate
from engine.spec.spec_checks import can_launch

# Values to assume for a figure of the block that the host is told: a line of threads, or else the side of a square. Ours.
_BLOCK = (256, 16)
# What the host asks the device for, by the names that people give it, without case and underscores: the figures of sm_90, and
# smaller ones for checks, which run on a CPU as well.
_DEVICE = (
    (re.compile(r".*threadsper(?:sm|multiprocessor)"), 2048, 1024),
    (re.compile(r".*(?:(?:num|count|n)(?:of)?(?:sm|multiprocessor)s?|(?:sm|multiprocessor)s?(?:count|num))"), 132, 2),
)
_OTHER, _MANY = 4, 1024  # of a size, to see whether the block changes with it; of another number, whether the grid does
_LONG = (64, 128)  # of a size that a block follows, another two
_LENGTHS, _DIVISORS = (
    (512, 1000, 4097, 70_001),
    [1 << k for k in range(1, 13)],
)  # of a size, and what a grid divides it by
_MAX_THREADS = 1024
_MAX_NAMES = 4
_MOST_TOGETHER = 16  # numbers that are changed at a time: of so many two do not undo each other


def host_sizes(program: Program, spec: KernelSpec) -> tuple[dict[str, int], str]:
    """Names that a launch is made from and that the spec does not settle, each with a value to assume.

    Mostly the host is told its block (`int block_size`); a size of the kernel that the block follows is one as well, and so is
    what the host knows of the device (`num_sms`). The second part says why the launch of the first timing case still has no
    value; "" where it has one.
    """
    sizes = dict(spec.time[0].sizes)
    problem = ""
    for each in _BLOCK:
        found: dict[str, int] = {}
        try:
            block = _block(program, spec, sizes, found, each)
            follow = [
                n
                for n in sizes
                if _block(program, spec, {**sizes, n: _OTHER}, found, each) != block
                # A block of 4 or 8 warps, by whether there are few rows, follows nothing.
                and len({_block(program, spec, {**sizes, n: length}, found, each) for length in _LONG}) > 1
            ]
            found.update(dict.fromkeys(follow, each))
            x, y, z = _block(program, spec, sizes, found, each)
        except SourceError as error:
            return found, str(error)
        if x * y * z <= _MAX_THREADS:
            return found, ""
        problem = problem or f"its block has {x * y * z} threads where each of its figures is {each}"
    return {}, problem


def in_grid(program: Program, spec: KernelSpec) -> tuple[str, ...]:
    """Names that the launch's grid is made from and that neither the kernel is given nor the text gives a value: sizes of the host's.

    Empty where the launch has no value even with them.
    """
    sizes, names = {**spec.time[0].sizes, **host_sizes(program, spec)[0]}, list[str]()
    told = _told(program, spec.kernel)
    while len(names) <= _MAX_NAMES:
        try:
            evaluate(program, spec, 0, {**sizes, **dict.fromkeys(names, _MANY)})
        except UnknownHostName as error:
            # A name in capitals is a constant of some header and no size, but where the host's function is told it.
            constant = error.name.isupper() and error.name not in told
            if error.in_block or error.name in names or not error.name.isidentifier() or constant:
                return ()
            names.append(error.name)
        except SourceError:
            return ()
        else:
            return tuple(names)
    return ()


def _told(program: Program, kernel: str) -> set[str]:
    """The parameters of the host functions that launch the kernel."""
    hosts = {(site.path, site.function) for site in readable_sites(program, kernel)}
    return {
        parameter.name
        for path, name in hosts
        for function in parse(program.files[path], path).functions
        if function.name == name
        for parameter in function.parameters
    }


def unseen_launches(program: Program, spec: KernelSpec) -> tuple[str, ...]:
    """What the result has to say of kernels that no host code here launches: who does needs them to be launched as they are."""
    unseen = dict.fromkeys(step.kernel for step in spec.steps if not sites(program, step.kernel))
    return tuple(
        f"no launch of '{kernel}' was found: edits that change the launch or block were left out" for kernel in unseen
    )


def deciding(program: Program, spec: KernelSpec) -> frozenset[str]:
    """The whole-number scalars with a value of their own that a launch depends on."""
    numbers = [a.name for a in spec.arguments if a.role == "scalar" and a.value.isdigit()]
    try:
        sizes = {**spec.time[0].sizes, **host_sizes(program, spec)[0]} if numbers else {}
        as_drafted = evaluate(program, spec, 0, sizes) if numbers else None
    except SourceError:
        return frozenset()

    def changes(names: Collection[str]) -> bool:
        others = [replace(a, value=str(_MANY)) if a.name in names else a for a in spec.arguments]
        with contextlib.suppress(SourceError):
            return evaluate(program, replace(spec, arguments=tuple(others)), 0, sizes) != as_drafted
        return False

    # A struct may have a thousand fields: most of the time no number decides anything.
    found = set[str]()
    left = [numbers[at : at + _MOST_TOGETHER] for at in range(0, len(numbers), _MOST_TOGETHER)]
    while left:
        some = left.pop()
        if not changes(some):
            continue
        if len(some) == 1:
            found.add(some[0])
        else:
            left += [half for half in (some[: len(some) // 2], some[len(some) // 2 :]) if half]
    return frozenset(found)


def launchable(program: Program, spec: KernelSpec, case: Case) -> bool:
    """Whether the kernel can be launched in the case, as far as the text tells."""
    try:
        return can_launch(evaluate(program, spec, 0, case.sizes))
    except SourceError:
        return True


def grid_extents(program: Program, spec: KernelSpec) -> tuple[str, ...]:
    """Expressions that give an extent of the launch's grid: a size divided by a number, rounded up or down."""
    names = [n for n in spec.time[0].sizes if n not in host_sizes(program, spec)[0]]
    found: dict[str, None] = {}
    for name in names:
        seen: list[tuple[int, tuple[int, int, int]]] = []
        for length in _LENGTHS:
            with contextlib.suppress(SourceError):
                seen.append((length, evaluate(program, spec, 0, {**spec.time[0].sizes, name: length}).grid))
        for axis in range(3) if len(seen) == len(_LENGTHS) else ():
            for k in _DIVISORS:
                if all(grid[axis] == -(-length // k) for length, grid in seen):
                    found[f"cdiv({name}, {k})"] = None
                elif all(grid[axis] == length // k for length, grid in seen):
                    found[f"{name}/{k}"] = None
    return tuple(found)


def device_blocks(program: Program, spec: KernelSpec) -> dict[str, int]:
    """Expressions that give the blocks of a launch that follows from what the host knows of the device, with their value in the checks."""
    own = {a.size_name for a in spec.arguments}
    hosts = {n: int(v) for n, v in spec.time[0].sizes.items() if n not in own}
    device = [n for n in hosts if _of_device(n)]
    seen: list[tuple[dict[str, int], int]] = []
    for raised in [[], *([n] for n in device), device]:
        figures = {**hosts, **{n: 3 * hosts[n] for n in raised}}
        with contextlib.suppress(SourceError):
            seen.append((figures, evaluate(program, spec, 0, {**spec.time[0].sizes, **figures}).blocks))
    if not device or len(seen) < len(device) + 2 or len({blocks for _, blocks in seen}) == 1:
        return {}
    products = [*device, *("*".join(pair) for pair in itertools.combinations(device, 2))]
    threads = [*(n for n in hosts if n not in device), *(str(d) for d in _DIVISORS if d > 1)]
    options = [*products, *(f"{p}/{by}" for p in products for by in threads)]
    options += [f"{k}*{p}" for k in _DIVISORS[:5] for p in products]
    fitting = [o for o in options if all(value_at(o, figures) == blocks for figures, blocks in seen)]
    checked = {n: int(v) for n, v in spec.check[0].sizes.items()}
    return {text: value_at(text, checked) or 0 for text in fitting[:1]}


def _block(
    program: Program, spec: KernelSpec, sizes: Mapping[str, int | float], found: dict[str, int], each: int
) -> tuple[int, int, int]:
    """The launch's block; a name that it needs is added to `found` with the value `each`. Raises SourceError."""
    while True:
        try:
            return evaluate(program, spec, 0, {**sizes, **found}).block
        except UnknownHostName as error:
            value = each if error.in_block else next((time for time, _ in _of_device(error.name)), None)
            if value is None or error.name in found or len(found) == _MAX_NAMES:
                raise
            found[error.name] = value


def for_checks(found: Mapping[str, int]) -> dict[str, int]:
    """What `host_sizes` found, with the figures of a small device."""
    return {name: next((check for _, check in _of_device(name)), value) for name, value in found.items()}


def _of_device(name: str) -> list[tuple[int, int]]:
    plain = name.lower().replace("_", "")
    return [(time, check) for pattern, time, check in _DEVICE if pattern.fullmatch(plain)][:1]
