"""Turns a patch into one suggestion that a click commits, where the pull request's diff allows it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from bot.diff import FileDiff, read_diff
from bot.errors import DiffError
from bot.patched import HIDDEN, screen

_MAX_CHANGED = 40  # lines of a suggestion that change; ours: about one screen
_MAX_COMMIT = 150  # lines that a commit to somebody's branch changes; ours: what is read in one go


@dataclass(frozen=True)
class Suggestion:
    """Lines `start` to `line` (1-based, inclusive, at the head) of `path` become `text`. All lie in one hunk of the diff."""

    path: str
    start: int
    line: int
    text: str  # with a line feed after each line; "" deletes


@dataclass(frozen=True)
class Placed:
    """Where a patch can be offered: as a suggestion, or (None) only as a patch, for a reason.

    `command` is the slash command that takes it: `pr` for a rewrite that wants a review of its own, else `apply`.
    """

    suggestion: Suggestion | None
    reason: str = ""
    command: Literal["apply", "pr"] = "apply"


def place(patch: str, files: tuple[FileDiff, ...]) -> Placed:
    """Offer a verified patch against the head as one suggestion.

    What was verified is the whole patch, so it is never split: all of it lies in one hunk of the pull request's diff, or it
    is offered as a patch. Lines that the patch keeps between its changes are part of the suggestion as they are.
    """
    if not patch:
        return Placed(None, "the patch is not UTF-8 text")
    try:
        changed = read_diff(patch)
    except DiffError as error:
        return Placed(None, f"the patch cannot be read: {error.what}")
    size = sum(change.end - change.start + len(change.lines) for f in changed for h in f.hunks for change in h.changes)
    if size > _MAX_COMMIT or len(changed) > 1:
        return replace(_placed(patch, changed, files, size), command="pr")
    return _placed(patch, changed, files, size)


def _placed(patch: str, changed: tuple[FileDiff, ...], files: tuple[FileDiff, ...], size: int) -> Placed:
    if len(changed) != 1:
        return Placed(None, f"it changes {len(changed)} files together")
    mine = changed[0]
    theirs = next((file for file in files if file.path == mine.path), None)
    if mine.status != "modified" or not mine.hunks:
        return Placed(None, "it adds, deletes or renames a file")
    if theirs is None or not theirs.hunks:
        return Placed(None, "the lines are outside this pull request's diff")
    if "\r" in patch:
        return Placed(None, "the file has carriage returns")
    if HIDDEN.search(patch):  # in lines around it too: a suggestion repeats them
        return Placed(None, "it contains invisible or direction-changing characters")
    reason = screen(changed)
    if reason:
        return Placed(None, reason)
    if size > _MAX_CHANGED:
        return Placed(None, f"it changes {size} lines, and a suggestion over {_MAX_CHANGED} is hard to read")
    old = {number: text for hunk in mine.hunks for number, text in hunk.old_lines}
    changes = [change for hunk in mine.hunks for change in hunk.changes]
    first, last = min(c.start for c in changes), max(c.end for c in changes) - 1
    if first > last:
        # An insertion alone: a suggestion replaces at least one line, so the line before (or after) is repeated.
        anchor = first - 1 if first - 1 in old else first
        first, last = min(first, anchor), max(last, anchor)
    return _within(mine, theirs, old, first, last)


def _within(mine: FileDiff, theirs: FileDiff, old: dict[int, str], first: int, last: int) -> Placed:
    hunk = theirs.hunk_of(first, last)
    if hunk is None:
        return Placed(None, "the lines are not all in one hunk of this pull request's diff")
    head = dict(hunk.new_lines)
    for number, text in old.items():
        if number in head and head[number].rstrip("\n") != text.rstrip("\n"):
            return Placed(None, "it was made for another version of these lines")
    changes = {c.start: c for part in mine.hunks for c in part.changes}
    lines: list[str] = []
    number = first
    while number <= last or number in changes:
        change = changes.pop(number, None)
        if change is not None:
            lines += change.lines
            if change.end > change.start:
                number = change.end
                continue
        if number > last:
            break
        lines.append(head[number])
        number += 1
    if changes:
        return Placed(None, "the lines are not all in one hunk of this pull request's diff")
    text = "".join(line if line.endswith("\n") else line + "\n" for line in lines)
    if mine.no_newline:
        return Placed(None, "it changes the end of a file without a last line feed")
    return Placed(Suggestion(mine.path, first, last, text))


def separate(placed: list[Placed]) -> list[Placed]:
    """The same, with a suggestion that overlaps an earlier one left as a patch: only one of them could be committed."""
    kept: list[Placed] = []
    for one in placed:
        mine = one.suggestion
        if mine is not None and any(
            other.suggestion is not None
            and other.suggestion.path == mine.path
            and other.suggestion.start <= mine.line
            and mine.start <= other.suggestion.line
            for other in kept
        ):
            one = replace(one, suggestion=None, reason="it overlaps a suggestion above; commit that one first")
        kept.append(one)
    return kept
