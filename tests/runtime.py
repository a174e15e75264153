"""What tests that want a cache of their own need not make anew: the CPU path's runtime, and what other tests compiled."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine.capture.cpu_library import cpu_runtime
from engine.cpu.toolchain import find_toolchain, prepare
from engine.settings.folders import cache_folder
from tests.locked import locked

_KEPT = cache_folder() / "cpu"  # before any test sets $OPTIML_CACHE
_COMPILED = ("compile", "cpu/objects", "sass", "whole")  # caches by content, below a folder for $OPTIML_CACHE
_COMMON: list[Path] = []  # the folder with these caches


def prepare_runtime() -> Path | None:
    """Builds it in the cache that is used where a test sets none, where that has not been done: its folder, None without a compiler."""
    toolchain = find_toolchain()
    if toolchain is None:
        return None
    with locked(_KEPT):
        return prepare(toolchain, _KEPT, "c++17").folder


def with_program_runtime(cache: Path) -> Path:
    """`cache` with the runtime that recorded programs are linked with, as `engine.capture.cpu_library.cpu_runtime` leaves it."""
    with locked(_KEPT):
        kept = cpu_runtime(_KEPT.parent).objects[0].parent
    shutil.copytree(kept, cache / kept.name)
    return cache


def compile_in(folder: Path) -> None:
    """Have the caches of `with_runtime` share what they compile, in `folder`."""
    _COMMON[:] = [folder]


def kept_code() -> Path:
    """The folder where tests keep what NVRTC compiled, as a compiler's cache."""
    return _COMMON[0] / "compile"


def with_runtime(cache: Path, *, alone: bool = False) -> Path:
    """`cache`, a folder for $OPTIML_CACHE, with the runtime in it as `engine.cpu.toolchain.prepare` leaves it.

    Whatever compilers make there is shared by all tests and kept by content, unless it is `alone`; nothing else is in it.
    """
    kept = prepare_runtime()
    if kept is not None and not (cache / "cpu" / kept.name).exists():
        shutil.copytree(kept, cache / "cpu" / kept.name)
    for name in _COMPILED if _COMMON and not alone else ():
        if not (cache / name).exists():
            (_COMMON[0] / name).mkdir(parents=True, exist_ok=True)
            (cache / name).parent.mkdir(parents=True, exist_ok=True)
            (cache / name).symlink_to(_COMMON[0] / name)
    return cache
