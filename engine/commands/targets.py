"""Which kernels a command line is about: `FILE`, `FILE:KERNEL`, and folders."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import OptimlError, UsageError
from engine.settings.suffixes import KERNELS, NAMED, may_define

_WITH_KERNEL = re.compile(rf"(.+\.(?:{NAMED})):([A-Za-z_][\w:<>, ]*)", re.DOTALL)


@dataclass(frozen=True)
class KernelTarget:
    """One kernel of one file, or the file's only one. `shown` is the file as it was named."""

    file: Path
    kernel: str | None
    shown: str


def parse_targets(names: Sequence[str], kernel: str | None) -> list[KernelTarget]:
    """Files and their kernels as named; folders stay folders. Raises UsageError for what is not there."""
    found = []
    for name in names:
        match = None if Path(name).exists() else _WITH_KERNEL.fullmatch(name)
        path, named = (Path(match[1]), match[2]) if match else (Path(name), None)
        if not path.exists():
            raise UsageError("no such file", str(path), "check the path")
        if kernel is not None and (named is not None or len(names) > 1 or path.is_dir()):
            raise UsageError("--kernel requires exactly one file", name, "write FILE:KERNEL")
        if not path.is_dir() and not path.is_file():
            raise UsageError("is not a regular file", str(path), "give a .cu file or a folder")
        found.append(KernelTarget(path.resolve(), named or kernel, str(path)))
    return found


def expand(
    targets: Sequence[KernelTarget], kernels: Callable[[Path], Sequence[str]], wanted: Callable[[Path], bool]
) -> list[KernelTarget]:
    """One target for each kernel: a file has one for each of its `kernels`, a folder those of its CUDA files that are `wanted`."""
    found: dict[tuple[Path, str | None], KernelTarget] = {}
    for target in targets:
        for one in _of(target, kernels, wanted):
            found.setdefault((one.file, one.kernel), one)
    return list(found.values())


def _of(
    target: KernelTarget, kernels: Callable[[Path], Sequence[str]], wanted: Callable[[Path], bool]
) -> list[KernelTarget]:
    if target.kernel is not None:
        return [target]
    if target.file.is_dir():
        files = sorted(p for p in target.file.rglob("*") if _may_define(p) and not _hidden(p, target.file))
        found = [
            KernelTarget(file, name, str(file)) for file in files if wanted(file) for name in _readable(file, kernels)
        ]
        if not found:
            raise UsageError(
                "contains no kernel (no __global__ function)", target.shown, "give a folder with .cu files"
            )
        return found
    names = kernels(target.file)
    if len(names) > 1:
        return [KernelTarget(target.file, name, target.shown) for name in names]
    return [target]


def _readable(file: Path, kernels: Callable[[Path], Sequence[str]]) -> Sequence[str | None]:
    """The kernels of a file of a folder; one that cannot be read is a target all the same, so that its error is told."""
    try:
        return kernels(file)
    except OptimlError:
        return [None]


def _may_define(path: Path) -> bool:
    return path.suffix in KERNELS and path.is_file() and may_define(path.name, path.read_bytes())


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)
