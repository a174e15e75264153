"""One run on contents that the parent gives, and what it left: for kernels that no original stands behind yet. Worker only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cupy as cp

from engine.gpu.checks import Checker
from engine.gpu.device import Call, Loaded
from engine.model import LaunchConfig


def run_on(
    checker: Checker, loaded: Loaded, launches: Sequence[Sequence[LaunchConfig]], index: int, contents: Mapping[str, bytes],
    poison: int,
) -> tuple[dict[str, Any], list[bytes]]:  # fmt: skip
    """Run a program once on a case with these first contents of its buffers; where it strayed ("" nowhere), and its outputs by name."""
    buffers = checker.buffers(index)
    for name, content in contents.items():
        buffers.put(name, content)
    checker.tools.board.clear()
    buffers.reset(buffers.main, poison)
    before = buffers.hash_inputs()
    Call(loaded, launches[index], buffers.arguments(buffers.main))(checker.stream)
    after, zones = buffers.hash_inputs(), buffers.main.watch()
    words = checker.tools.board.read()
    touched = buffers.main.touched(zones, words)
    changed = buffers.changed_input(before, after, words)
    strayed = f"wrote outside an array, {touched}" if touched else f"changed the input '{changed}'" if changed else ""
    outputs = [cp.asnumpy(buffers.main.view(name, cp.uint8)).tobytes() for name in buffers.written]
    return {"strayed": strayed, "names": buffers.written}, outputs
