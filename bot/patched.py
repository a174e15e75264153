"""Applies a patch of a stranger to the text that it was made for, by content alone: every old line must be there as it says."""

from __future__ import annotations

import itertools
import posixpath
import re

from bot.diff import FileDiff, read_diff
from bot.errors import DiffError
from engine.settings.suffixes import SOURCES

_SUFFIXES = (*SOURCES, ".c")
_PART = re.compile(r"(?!\.)[^/\0-\x1f\x7f\\]{1,255}")
_MAX_FILES = 20
_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\r\n]+)[>"]', re.M)
# Characters that make text look like other text. GitHub would show a suggestion without them.
HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)


class NotApplied(Exception):
    """The patch is not taken; the text is a sentence of ours."""


def screen(files: tuple[FileDiff, ...]) -> str:
    """Why these changes are neither offered as a suggestion nor committed; "" where nothing speaks against it.

    Only lines of source files change, and nothing invisible or direction-changing comes with them.
    """
    if not 0 < len(files) <= _MAX_FILES or len({file.path for file in files}) != len(files):
        return "the patch must change 1 to 20 files, each once"
    for file in files:
        if file.status != "modified" or file.binary or file.mode or not file.hunks or file.path != file.old_path:
            return "the patch does more than change lines of files"
        if not file.path.endswith(_SUFFIXES) or not all(_PART.fullmatch(part) for part in file.path.split("/")):
            return "the patch changes files that are not sources"
        added = [line for hunk in file.hunks for change in hunk.changes for line in change.lines]
        # A carriage return before the line feed is an ordinary line end.
        if any(HIDDEN.search(line.removesuffix("\n").removesuffix("\r")) for line in added):
            return "it contains invisible or direction-changing characters"
    return ""


def belongs(path: str, data: bytes, kernel_path: str, kernel: str, kernel_data: bytes) -> bool:
    """Whether a file can be part of a kernel's program: the kernel's own, one that its file includes, or one that names the kernel."""
    names = {posixpath.basename(name.decode("utf-8", "replace")) for name in _INCLUDE.findall(kernel_data)}
    name = kernel.partition("<")[0].rpartition("::")[2].encode()
    named = re.search(rb"(?<![\w])" + re.escape(name) + rb"(?![\w])", data) is not None
    return path == kernel_path or posixpath.basename(path) in names or named


def files_of(patch: str, allowed: tuple[str, ...]) -> tuple[FileDiff, ...]:
    """The files of a patch that passes the screen and changes the allowed ones alone. Raises NotApplied."""
    try:
        files = read_diff(patch)
    except DiffError:
        raise NotApplied("the patch cannot be read") from None
    reason = screen(files)
    if not reason and any(file.path not in allowed for file in files):
        reason = "the patch changes files that are not the suggestion's"
    if reason:
        raise NotApplied(reason)
    return files


def patched(data: bytes, diffs: tuple[FileDiff, ...]) -> bytes:
    """The bytes with all diffs applied, which all were made for these bytes. Raises NotApplied.

    Diffs of one file may come from several suggestions; where two touch the same line or the same place, none is applied.
    """
    try:
        lines = data.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise NotApplied("the file is not UTF-8 text") from None
    if any(diff.no_newline for diff in diffs):
        raise NotApplied("the patch changes the end of a file without a last line feed")
    for diff in diffs:
        for hunk in diff.hunks:
            for number, text in hunk.old_lines:
                # The last of the split lines is what follows the last line feed, and is no line.
                if not 0 < number < len(lines) or lines[number - 1] != text.removesuffix("\n"):
                    raise NotApplied("the patch was made for another version of the file")
    changes = sorted((c for diff in diffs for hunk in diff.hunks for c in hunk.changes), key=lambda c: (c.start, c.end))
    for before, after in itertools.pairwise(changes):
        if after.start < before.end or after.start == before.start:
            raise NotApplied("it overlaps another suggestion: apply one, then ask again")
    for change in reversed(changes):
        if not 0 < change.start <= change.end <= len(lines):
            raise NotApplied("the patch was made for another version of the file")
        lines[change.start - 1 : change.end - 1] = [line.removesuffix("\n") for line in change.lines]
    return "\n".join(lines).encode("utf-8")
