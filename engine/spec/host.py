"""What a visible launch needs to know beside the kernel's sizes, for a draft."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import SourceError
from engine.model import Program
from engine.source.launch import evaluate
from engine.source.scope import UnknownName
from engine.spec.model import KernelSpec

# Values to assume for a figure of the block that the host is told: a line of threads, or else the side of a square. Ours.
_BLOCK = (256, 16)
_OTHER = 4  # of a size, to see whether the block changes with it
_MAX_THREADS = 1024
_MAX_NAMES = 4


def block_sizes(program: Program, spec: KernelSpec) -> tuple[dict[str, int], str]:
    """Names that a launch's block is made from and that the spec does not settle, each with a value to assume.

    Mostly the host is told them (`int block_size`); a size of the kernel that the block follows is one as well. The second part
    says why the launch of the first timing case still has no value; "" where it has one.
    """
    sizes = dict(spec.time[0].sizes)
    problem = ""
    for each in _BLOCK:
        found: dict[str, int] = {}
        try:
            block = _block(program, spec, sizes, found, each)
            follow = [n for n in sizes if _block(program, spec, {**sizes, n: _OTHER}, found, each) != block]
            found.update(dict.fromkeys(follow, each))
            x, y, z = _block(program, spec, sizes, found, each)
        except SourceError as error:
            return found, str(error)
        if x * y * z <= _MAX_THREADS:
            return found, ""
        problem = problem or f"its block has {x * y * z} threads where each of its figures is {each}"
    return {}, problem


def _block(
    program: Program, spec: KernelSpec, sizes: Mapping[str, int | float], found: dict[str, int], each: int
) -> tuple[int, int, int]:
    """The launch's block; a name that it needs is added to `found` with the value `each`. Raises SourceError."""
    while True:
        try:
            return evaluate(program, spec, 0, {**sizes, **found}).block
        except UnknownName as error:
            if not error.in_block or error.name in found or len(found) == _MAX_NAMES:
                raise
            found[error.name] = each
