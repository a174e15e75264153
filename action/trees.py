"""Writes what kernels may depend on out of git's objects into a folder, without a checkout: no link, filter or hook of a stranger."""

from __future__ import annotations

from pathlib import Path

from bot.clone import Repository
from engine.errors import MachineError
from engine.settings.config import NAMES
from engine.settings.suffixes import SOURCES

_ENDS = (*SOURCES, "optiml.toml")
_MAX_FILES = 20_000
_MAX_BYTES = 512 << 20


def write_tree(repository: Repository, commit: str, folder: Path) -> Path:
    """The sources of a commit below `folder`, which counts as a repository's root. Raises MachineError, GitError."""
    # A folder of this name makes it a root: nothing above it is looked at.
    (folder / ".git").mkdir(parents=True)
    paths = [path for path in repository.tree(commit) if path.endswith(_ENDS) and _plain(path)]
    if len(paths) > _MAX_FILES:
        raise MachineError(
            f"the repository has more than {_MAX_FILES} source files", do="narrow 'paths' in the settings"
        )
    repository.preload(commit, paths)
    total = 0
    for path in paths:
        data = repository.read(commit, path)
        if data is None:
            continue
        total += len(data)
        if total > _MAX_BYTES:
            raise MachineError(f"the repository has more than {_MAX_BYTES} bytes of sources")
        target = folder / path
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        except OSError as error:
            raise MachineError(f"cannot be written: {error.strerror}", path[:200]) from None
    return folder


def write_settings(repository: Repository, commit: str, tree: Path) -> None:
    """The settings of a commit in a tree of sources, which has none of its own. Raises MachineError, GitError."""
    for name in NAMES:
        data = repository.read(commit, name)
        if data is None:
            continue
        try:
            (tree / name).write_bytes(data)
        except OSError as error:
            raise MachineError(f"cannot be written: {error.strerror}", name) from None


def _plain(path: str) -> bool:
    parts = path.split("/")
    return not any(part in ("", ".", "..") or part.lower() == ".git" for part in parts) and "\0" not in path
