"""The launch that a draft proposes where the host's cannot be read, and the names in one that somebody gives."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from math import prod

from engine.cuda.host_scope import HostScope
from engine.cuda.launch import part_node
from engine.cuda.launch_reading import readable_sites
from engine.cuda.parse import parse, text
from engine.errors import SourceError
from engine.model import Program
from engine.spec.kernel_spec import LaunchExpr
from engine.spec.tables import split_kernel
from engine.spec.usage import Usage

BLOCK = 256  # threads
_SQUARE = 16  # by so many, of a block in two dimensions
_MOST_THREADS = 1024
_NAME = re.compile(r"(?<![\w.])([A-Za-z_]\w*)\b(?!\s*\()")


def guessed_launch(usage: Usage, sizes: Sequence[str], program: Program) -> LaunchExpr:
    """Threads for each element where the kernel numbers them over all blocks, else a block for each of a size named `blocks`.

    The block is that of the host's launch where that has a value.
    """
    body = re.sub(r"\s+", "", text(usage.body))
    used = max((k for k, axis in enumerate("xyz") if re.search(rf"\b(?:block|thread)Idx\.{axis}\b", body)), default=0)
    extents = [1, 1, 1]
    threads = [axis for axis in "xyz" if re.search(rf"\bthreadIdx\.{axis}\b", body)]
    if hosts := _block_of_host(program, usage.kernel.name):
        extents = [*hosts, 1, 1][:3]
        used = max([used, *(k for k, extent in enumerate(extents) if extent > 1)])
    elif threads == ["x"] or not threads:
        extents[0] = BLOCK
    else:
        for axis in threads[:2]:
            extents["xyz".index(axis)] = _SQUARE
    grid = []
    for axis, extent in zip("xyz"[: used + 1], extents, strict=False):
        if not re.search(rf"\bblockIdx\.{axis}\b", body):
            grid.append("1")
        elif extent > 1 and re.search(
            rf"blockIdx\.{axis}\)?\*\(?blockDim\.{axis}|blockDim\.{axis}\)?\*\(?blockIdx\.{axis}", body
        ):
            grid.append(f"cdiv({_bound(usage, axis, sizes)}, {extent})")
        else:
            grid.append(f"blocks_{axis}" if used else "blocks")
    return LaunchExpr(tuple(grid), tuple(str(extent) for extent in extents[: used + 1]))


def _block_of_host(program: Program, kernel: str) -> list[int]:
    for site in readable_sites(program, kernel):
        unit = parse(site.read_in or program.files[site.path], site.path)
        with suppress(SourceError, IndexError):
            found = [int(extent) for extent in HostScope(program, unit, {}).dims(part_node(unit, site.parts[1]))]
            if 0 < prod(found) <= _MOST_THREADS:
                return found
    return []


def _bound(usage: Usage, axis: str, sizes: Sequence[str]) -> str:
    """What bounds the number of a thread along an axis; all sizes together where nothing does."""
    for name, written in usage.definitions.items():
        if re.search(rf"\bblockIdx\s*\.\s*{axis}\b", written):
            for bound in usage.bounds.get(name, ()):
                if bound in sizes:
                    return bound
    return "*".join(sizes) or "1"


def named_in(launch: LaunchExpr, program: Program, kernel: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """The kernel's parameters that a given launch names, and its other names: sizes of its own."""
    names = dict.fromkeys(
        name for written in (*launch.grid, *launch.block, launch.shared) for name in _NAME.findall(written)
    )
    parameters = set[str]()
    with suppress(KeyError):  # the draft says so itself
        found = parse(program.data, program.kernel_file).kernel(split_kernel(kernel)[0])
        parameters = {p.name for p in found.parameters}
    constants = {name for name, _ in launch.constants}
    return frozenset(names.keys() & parameters), tuple(n for n in names if n not in parameters | constants)
