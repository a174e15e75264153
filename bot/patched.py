"""Applies a patch of a stranger to the text that it was made for, by content alone: every old line must be there as it says."""

from __future__ import annotations

import itertools
import re

from bot.diff import FileDiff, read_diff
from bot.errors import DiffError

_SUFFIXES = (".cu", ".cuh", ".cpp", ".cc", ".cxx", ".c", ".h", ".hpp", ".hh", ".hxx", ".inl", ".inc", "optiml.toml")
_PART = re.compile(r"(?!\.)[^/\0-\x1f\x7f\\]{1,255}")
_MAX_FILES = 20


class NotApplied(Exception):
    """The patch is not taken; the text is a sentence of ours."""


def files_of(patch: str, allowed: tuple[str, ...]) -> tuple[FileDiff, ...]:
    """The files of a patch that changes the text of sources alone, and only the allowed ones. Raises NotApplied."""
    try:
        files = read_diff(patch)
    except DiffError:
        raise NotApplied("its patch cannot be read") from None
    if not 0 < len(files) <= _MAX_FILES or len({file.path for file in files}) != len(files):
        raise NotApplied("its patch is not one of a few files, each once")
    for file in files:
        plain = file.path.endswith(_SUFFIXES) and all(_PART.fullmatch(part) for part in file.path.split("/"))
        if file.status != "modified" or file.binary or file.mode or not file.hunks or file.path != file.old_path:
            raise NotApplied("its patch does more than change lines of a file")
        if not plain or file.path not in allowed:
            raise NotApplied("its patch reaches files that are not the suggestion's")
    return files


def patched(data: bytes, diffs: tuple[FileDiff, ...]) -> bytes:
    """The bytes with all diffs applied, which all were made for these bytes. Raises NotApplied.

    Diffs of one file may come from several suggestions; where two touch the same line or the same place, none is applied.
    """
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise NotApplied("the file is no UTF-8 text") from None
    if any(diff.no_newline for diff in diffs):
        raise NotApplied("its patch changes the end of a file without a last line feed")
    for diff in diffs:
        for hunk in diff.hunks:
            for number, text in hunk.old_lines:
                # The last of the split lines is what follows the last line feed, and is no line.
                if not 0 < number < len(lines) or lines[number - 1] != text.removesuffix("\n"):
                    raise NotApplied("its patch was made for another version of the file")
    changes = sorted((c for diff in diffs for hunk in diff.hunks for c in hunk.changes), key=lambda c: (c.start, c.end))
    for before, after in itertools.pairwise(changes):
        if after.start < before.end or after.start == before.start:
            raise NotApplied("it overlaps another suggestion: take one, then ask again")
    for change in reversed(changes):
        if not 0 < change.start <= change.end <= len(lines):
            raise NotApplied("its patch was made for another version of the file")
        lines[change.start - 1 : change.end - 1] = [line.removesuffix("\n") for line in change.lines]
    return "\n".join(lines).encode("utf-8")
