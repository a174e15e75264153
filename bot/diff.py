"""A unified diff as data: which files changed, and which lines of the new side lie in which hunk."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchedFile, PatchSet

from bot.errors import DiffError

Status = Literal["added", "modified", "deleted", "renamed"]
_MAX_BYTES = 64 << 20


@dataclass(frozen=True)
class Change:
    """Lines `start` to `end` (1-based, half-open) of the old side become `lines`, each with its line end."""

    start: int
    end: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Hunk:
    """One hunk: its lines of the new side (1-based, half-open), those of them that were added, and its changes."""

    start: int
    end: int
    added: frozenset[int]
    changes: tuple[Change, ...]
    old_lines: tuple[tuple[int, str], ...]  # number and text of every line of the old side
    new_lines: tuple[tuple[int, str], ...]  # and of the new side

    def holds(self, first: int, last: int) -> bool:
        """Whether all lines from `first` to `last` (inclusive) of the new side lie in this hunk."""
        return self.start <= first <= last < self.end


@dataclass(frozen=True)
class FileDiff:
    """One file of a diff. `path` is its new name (its old one when it was deleted)."""

    path: str
    old_path: str
    status: Status
    hunks: tuple[Hunk, ...]
    binary: bool = False
    no_newline: bool = False  # the diff shows a last line without a line feed
    mode: str = ""  # of git, where the diff names one: "160000" is a submodule, "120000" a link

    def hunk_of(self, first: int, last: int) -> Hunk | None:
        """The hunk that holds all of these lines of the new side, or None."""
        return next((hunk for hunk in self.hunks if hunk.holds(first, last)), None)


def read_diff(text: bytes | str) -> tuple[FileDiff, ...]:
    """The files of a unified diff, as git writes it. Raises DiffError."""
    if len(text) > _MAX_BYTES:
        raise DiffError(f"a diff of {len(text)} bytes exceeds the limit of {_MAX_BYTES}")
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    try:
        # Only a line feed ends a line in git; splitlines would also end it at a form feed or U+2028.
        return tuple(_file(file) for file in PatchSet(_lines(text)))
    except (UnidiffParseError, ValueError, IndexError) as error:
        raise DiffError(f"the diff cannot be read: {str(error)[:200]}") from None


def read_patch(path: str, patch: str, *, old_path: str = "", status: Status = "modified") -> FileDiff:
    """The diff of one file from its hunks alone, as GitHub's list of files gives them. Raises DiffError."""
    if not patch:
        return FileDiff(path, old_path or path, status, ())
    header = "--- a/file\n+++ b/file\n"
    found = read_diff(header + patch + ("" if patch.endswith("\n") else "\n"))
    if len(found) != 1:
        raise DiffError("the patch is not a list of hunks", path)
    one = found[0]
    return FileDiff(path, old_path or path, status, one.hunks, one.binary, one.no_newline)


def _lines(text: str) -> list[str]:
    lines = [line + "\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _file(file: PatchedFile) -> FileDiff:
    status: Status = "modified"
    if file.is_added_file:
        status = "added"
    elif file.is_removed_file:
        status = "deleted"
    elif file.is_rename:
        status = "renamed"
    hunks = tuple(_hunk(hunk) for hunk in file)
    old = _plain(file.source_file, "a/")
    mode = "160000" if file.is_submodule else "120000" if file.is_symlink else ""
    ended = any(line.line_type == "\\" for hunk in file for line in hunk)
    return FileDiff(file.path, old if status != "added" else file.path, status, hunks, file.is_binary_file, ended, mode)


def _plain(name: str, prefix: str) -> str:
    return name.removeprefix(prefix)


def _hunk(hunk: Iterable[object]) -> Hunk:
    old, new = int(getattr(hunk, "source_start", 0)), int(getattr(hunk, "target_start", 0))
    # A side without lines is named by the line before it.
    at = old if getattr(hunk, "source_length", 0) else old + 1
    line = begin = new if getattr(hunk, "target_length", 0) else new + 1
    added: set[int] = set()
    changes: list[Change] = []
    old_lines: list[tuple[int, str]] = []
    new_lines: list[tuple[int, str]] = []
    first, text = at, list[str]()
    open_ = False
    for item in hunk:
        kind, value = str(getattr(item, "line_type", "")), str(getattr(item, "value", ""))
        if kind == "\\":
            continue
        if kind not in "+-":
            if open_:
                changes.append(Change(first, at, tuple(text)))
                open_ = False
            old_lines.append((at, value))
            new_lines.append((line, value))
            at, line = at + 1, line + 1
            continue
        if not open_:
            first, text, open_ = at, [], True
        if kind == "-":
            old_lines.append((at, value))
            at += 1
        else:
            text.append(value)
            added.add(line)
            new_lines.append((line, value))
            line += 1
    if open_:
        changes.append(Change(first, at, tuple(text)))
    return Hunk(begin, line, frozenset(added), tuple(changes), tuple(old_lines), tuple(new_lines))
