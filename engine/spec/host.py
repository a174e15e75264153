"""What a visible launch needs to know beside the kernel's sizes, for a draft."""

from __future__ import annotations

from engine.errors import SourceError
from engine.model import Program
from engine.source.launch import evaluate
from engine.source.scope import UnknownName
from engine.spec.model import KernelSpec

# Values to assume for a figure of the block that the host is told: a line of threads, or else the side of a square. Ours.
_BLOCK = (256, 16)
_MAX_THREADS = 1024
_MAX_NAMES = 4


def block_sizes(program: Program, spec: KernelSpec) -> tuple[dict[str, int], str]:
    """Names that a launch's block is made from and that nobody gives a value, each with one to assume.

    A launcher that takes `int block_size` is the common case. The second part says why the launch of the first timing case
    still has no value; "" where it has one.
    """
    problem = ""
    for each in _BLOCK:
        found: dict[str, int] = {}
        try:
            while True:
                try:
                    config = evaluate(program, spec, 0, {**spec.time[0].sizes, **found})
                    break
                except UnknownName as error:
                    if not error.in_block or error.name in found or len(found) == _MAX_NAMES:
                        raise
                    found[error.name] = each
        except SourceError as error:
            return found, str(error)
        if config.threads <= _MAX_THREADS:
            return found, ""
        problem = problem or f"its block has {config.threads} threads in the case {spec.time[0].name}"
        if not found:
            break
    return {}, problem
