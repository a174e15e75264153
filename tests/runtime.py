"""The runtime of the CPU path, which takes six seconds of a core to build: once for all tests that want a cache of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine.cpu.toolchain import find_toolchain, prepare
from engine.settings.folders import cache_folder
from tests.locked import locked

_KEPT = cache_folder() / "cpu"  # before any test sets $OPTIML_CACHE


def prepare_runtime() -> Path | None:
    """Builds it in the cache that is used where a test sets none, where that has not been done: its folder, None without a compiler."""
    toolchain = find_toolchain()
    if toolchain is None:
        return None
    with locked(_KEPT):
        return prepare(toolchain, _KEPT, "c++17").folder


def with_runtime(cache: Path) -> Path:
    """`cache`, a folder for $OPTIML_CACHE, with the runtime in it as `engine.cpu.toolchain.prepare` leaves it, and nothing else."""
    kept = prepare_runtime()
    if kept is not None and not (cache / "cpu" / kept.name).exists():
        shutil.copytree(kept, cache / "cpu" / kept.name)
    return cache
