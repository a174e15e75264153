"""The lines of a text, and where two texts are equal or differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

from engine.report.safe_text import short

_FAR = re.compile(r"[ \t]{2,}\\$")


def lines_of(data: bytes, most: int) -> list[str]:
    """The lines of a file, each of at most so many characters."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    # A backslash far to the right would take a line of its own.
    lines = [short(_FAR.sub(r" \\", line.removesuffix("\r")), most) for line in text.split("\n")]
    return lines[:-1] if lines and not lines[-1] else lines


def blocks(a: Sequence[str], b: Sequence[str], pairs: int) -> Iterator[tuple[bool, int, int, int, int]]:
    """Stretches that are equal (True) or differ, as half-open ranges of both sides.

    Where more than so many pairs of lines would be compared, what differs is one stretch.
    """
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    yield True, 0, head, 0, head
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if len(middle_a) * len(middle_b) > pairs:
        yield False, head, len(a) - tail, head, len(b) - tail
    else:
        for tag, i0, i1, j0, j1 in SequenceMatcher(None, middle_a, middle_b, autojunk=False).get_opcodes():
            yield tag == "equal", head + i0, head + i1, head + j0, head + j1
    yield True, len(a) - tail, len(a), len(b) - tail, len(b)
