"""Turns a patch into one suggestion that a click commits, where the pull request's diff allows it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bot.diff import FileDiff, read_diff
from bot.errors import DiffError

# Characters that make text look like other text. GitHub would show a suggestion without them.
HIDDEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    r"\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff\ud800-\udfff]"
)
_MAX_LINES = 400


@dataclass(frozen=True)
class Suggestion:
    """Lines `start` to `line` (1-based, inclusive, at the head) of `path` become `text`. All lie in one hunk of the diff."""

    path: str
    start: int
    line: int
    text: str  # with a line feed after each line; "" deletes


@dataclass(frozen=True)
class Placed:
    """Where a patch can be offered: as a suggestion, or (None) only as a patch, for a reason."""

    suggestion: Suggestion | None
    reason: str = ""


def place(patch: str, files: tuple[FileDiff, ...]) -> Placed:
    """Offer a verified patch against the head as one suggestion.

    What was verified is the whole patch, so it is never split: all of it lies in one hunk of the pull request's diff, or it
    is offered as a patch. Lines that the patch keeps between its changes are part of the suggestion as they are.
    """
    if not patch:
        return Placed(None, "it came without a patch that can be shown as text")
    try:
        changed = read_diff(patch)
    except DiffError as error:
        return Placed(None, f"the patch cannot be read: {error.what}")
    if len(changed) != 1:
        return Placed(None, f"it changes {len(changed)} files together")
    mine = changed[0]
    theirs = next((file for file in files if file.path == mine.path), None)
    if mine.status != "modified" or not mine.hunks:
        return Placed(None, "it adds, deletes or renames a file")
    if theirs is None or not theirs.hunks:
        return Placed(None, "its lines are not part of this pull request's diff")
    if "\r" in patch:
        return Placed(None, "the file has carriage returns")
    if HIDDEN.search(patch):
        return Placed(None, "it holds invisible or direction-changing characters")
    old = {number: text for hunk in mine.hunks for number, text in hunk.old_lines}
    changes = [change for hunk in mine.hunks for change in hunk.changes]
    first, last = min(c.start for c in changes), max(c.end for c in changes) - 1
    if first > last:
        # An insertion alone: a suggestion replaces at least one line, so the line before (or after) is repeated.
        anchor = first - 1 if first - 1 in old else first
        first, last = min(first, anchor), max(last, anchor)
    return _within(mine, theirs, old, first, last)


def _within(mine: FileDiff, theirs: FileDiff, old: dict[int, str], first: int, last: int) -> Placed:
    if last - first >= _MAX_LINES:
        return Placed(None, f"it spans over {_MAX_LINES} lines")
    hunk = theirs.hunk_of(first, last)
    if hunk is None:
        return Placed(None, "its lines do not all lie in one hunk of this pull request's diff")
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
        return Placed(None, "its lines do not all lie in one hunk of this pull request's diff")
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
            one = Placed(None, "it overlaps a suggestion above; take that one first, then ask again")
        kept.append(one)
    return kept
