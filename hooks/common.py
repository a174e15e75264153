"""What both hooks share: which files, against what, and how an error ends a hook."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.errors import OptimlError
    from engine.process.standard_output import Output
    from engine.settings.config import Config

# A file's name or a compiler's message may hold what moves a terminal's cursor or turns text around.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def show(text: str) -> str:
    """One line of text for a terminal, or for a log in which a line that begins with "::" is a command."""
    return _CONTROL.sub("?", text if text[:2] not in ("::", "##") else f"./{text}")


def guarded(name: str, run: Callable[[], int]) -> int:
    """Runs a hook's body and turns what it raises into a line and an exit code.

    A part of the machine that is missing does not hold up a commit: it is said, and the hook passes.
    """
    from engine.process.standard_output import run_command

    return run_command(name, lambda out: _guarded(name, run, out))


def _guarded(name: str, run: Callable[[], int], out: Output) -> int:
    from engine.errors import MachineError, OptimlError

    try:
        return run()
    except MachineError as error:
        print(show(f"note: {not_analysed(error)}"))
        return 0
    except OptimlError as error:
        print(show(f"{name}: {error}"), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if out.broke(error):
            return 0  # broken off, and nothing else is wrong
        if os.environ.get("OPTIML_DEBUG"):
            raise
        said = f"{name}: internal error: {type(error).__name__}: {error}; please report it, with the output under OPTIML_DEBUG=1"
        print(show(said), file=sys.stderr)
        return 3


def not_analysed(error: OptimlError) -> str:
    """The note that stands for everything a hook could not do."""
    return f"not analysed: {error}"


def nothing_named(commit: str) -> str:
    """The note of a call without files that found none."""
    if commit:
        return f"no CUDA file differs from commit {commit[:12]}; give files, or --all for the whole repository"
    return "the repository has no file with a kernel that the settings include"


def base_commit(root: Path, given: str | None) -> str:
    """The commit that changes are told from: as given, else where pre-commit says a range begins, else HEAD; "" without one.

    Raises UsageError where the given one is not there.
    """
    from engine.errors import UsageError
    from hooks.worktree import commit_of

    wanted = given or os.environ.get("PRE_COMMIT_FROM_REF")
    if not wanted:
        return commit_of(root, "HEAD")
    commit = commit_of(root, wanted)
    if not commit and given:
        raise UsageError(f"no commit '{given[:100]}'", do="give a branch, tag or commit")
    return commit


def named(root: Path, files: Sequence[str], commit: str) -> list[str]:
    """The files to look at where none is named: those that differ from `commit`, or all of the repository where it is ""."""
    from hooks.worktree import changed, sources

    return list(files) or [str(root / path) for path in (changed(root, commit) if commit else sources(root))]


def scope(root: Path, files: Sequence[str], commit: str) -> str:
    """`commit`, or "" (every kernel) where a file is named that does not differ from HEAD.

    pre-commit names such files under `--all-files` only, where there is no commit to tell changes from.
    """
    from hooks.worktree import changed

    if not commit or not files or os.environ.get("PRE_COMMIT_FROM_REF"):
        return commit
    differing = {os.path.realpath(root / path) for path in changed(root, commit)}
    return "" if any(os.path.isfile(name) and os.path.realpath(name) not in differing for name in files) else commit


def chosen(root: Path, files: Iterable[str], config: Config) -> list[str]:
    """The files to look at, relative to the root: those given that the settings want, and what includes a given header.

    Raises UsageError for a name that no file of the repository has: pre-commit gives none, a person may.
    """
    from engine.errors import UsageError
    from engine.settings.suffixes import HEADERS, may_define
    from hooks.worktree import including

    found: dict[str, None] = {}
    headers = []
    for name in files:
        given = Path(os.path.abspath(name))
        # git's root is free of links, a person's path may not be.
        path = Path(os.path.realpath(given.parent), given.name)
        if not os.path.lexists(path):
            raise UsageError("no such file", name, "check the path")
        if not path.is_relative_to(root):
            raise UsageError(f"is not in the repository {root}", name, "run this in the file's own repository")
        if path.is_dir() and not path.is_symlink():
            raise UsageError("is a folder", name, "give its files")
        if not path.is_file() or path.is_symlink():
            continue
        relative = path.relative_to(root).as_posix()
        if relative.endswith(HEADERS):
            headers.append(relative)
        if may_define(relative, path.read_bytes()):
            found[relative] = None
    found.update(dict.fromkeys(including(root, headers)))
    return [path for path in found if config.wants(path)]
