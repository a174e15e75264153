"""The source side by side: original and best, line by line, with what a diagnosis says of a line beneath it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from engine.report.read import Run
from engine.report.text import short

# Unchanged lines around a change; below `_FOLD` hidden lines hiding saves nothing. Rows and characters that are shown. Ours.
_CONTEXT, _FOLD, _ROWS, _LINE = 8, 4, 3000, 1000
_COMPARED = 4_000_000  # pairs of lines; above, what differs is shown as replaced as a whole
_FAR = re.compile(r"[ \t]{2,}\\$")
_WHERE = re.compile(r"\blines? (\d{1,7})\b")


@dataclass(frozen=True)
class Row:
    """One row: line numbers (1-based) and texts of both sides, None where a side has no line. `gap`: so many equal lines are left out."""

    kind: Literal["same", "changed", "gap"]
    left: int | None = None
    before: str | None = None
    right: int | None = None
    after: str | None = None
    gap: int = 0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Listing:
    """One file. `sides` is 1 without a suggestion, else 2; `cut` when there are more rows than are shown."""

    path: str
    sides: int
    rows: tuple[Row, ...]
    cut: bool


def listings(run: Run) -> list[Listing]:
    """Every file that the suggestion changes, the kernel's first; the kernel's file alone without a suggestion."""
    result = run.result
    found = []
    for source in run.sources:
        here = source.path == result.file
        before = _by_line(result.diagnosis, "the original") if here else {}
        last = result.trajectory[-1].diagnosis if result.trajectory else ()
        after = _by_line(last, "the best") if here and source.after is not None else {}
        a = _lines(source.before)
        b = a if source.after is None else _lines(source.after)
        rows = list(_folded(_rows(a, b, before, after)))
        found.append(Listing(source.path, 1 if source.after is None else 2, tuple(rows[:_ROWS]), len(rows) > _ROWS))
    return found


def _by_line(sentences: Sequence[str], whose: str) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    for sentence in sentences:
        for line in dict.fromkeys(int(number) for number in _WHERE.findall(sentence)):
            found[line].append(f"{whose}: {sentence}")
    return found


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    # A backslash far to the right would take a line of its own.
    lines = [short(_FAR.sub(r" \\", line.removesuffix("\r")), _LINE) for line in text.split("\n")]
    return lines[:-1] if lines and not lines[-1] else lines


def _rows(
    a: Sequence[str], b: Sequence[str], before: Mapping[int, list[str]], after: Mapping[int, list[str]]
) -> Iterator[Row]:
    for equal, a0, a1, b0, b1 in _blocks(a, b):
        for step in range(max(a1 - a0, b1 - b0)):
            i = a0 + step if a0 + step < a1 else None
            j = b0 + step if b0 + step < b1 else None
            left, right = (None if i is None else i + 1), (None if j is None else j + 1)
            notes = (*before.get(left or 0, ()), *after.get(right or 0, ()))
            yield Row(
                "same" if equal else "changed",
                left,
                None if i is None else a[i],
                right,
                None if j is None else b[j],
                0,
                notes,
            )


def _blocks(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[bool, int, int, int, int]]:
    """Stretches that are equal or differ, as half-open ranges of both sides."""
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    yield True, 0, head, 0, head
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    if len(middle_a) * len(middle_b) > _COMPARED:
        yield False, head, len(a) - tail, head, len(b) - tail
    else:
        for tag, i0, i1, j0, j1 in SequenceMatcher(None, middle_a, middle_b, autojunk=False).get_opcodes():
            yield tag == "equal", head + i0, head + i1, head + j0, head + j1
    yield True, len(a) - tail, len(a), len(b) - tail, len(b)


def _folded(rows: Iterator[Row]) -> Iterator[Row]:
    """The rows without equal ones that are far from a change and from a diagnosed line; all of them where nothing differs or is said."""
    every = list(rows)
    marks = [at for at, row in enumerate(every) if row.kind == "changed" or row.notes]
    if not marks:
        yield from every
        return
    near = bytearray(len(every))
    for at in marks:
        low, high = max(0, at - _CONTEXT), min(len(every), at + _CONTEXT + 1)
        near[low:high] = b"\1" * (high - low)
    at = 0
    while at < len(every):
        end = at
        while end < len(every) and not near[end]:
            end += 1
        if end - at > _FOLD:
            yield Row("gap", gap=end - at)
        else:
            yield from every[at:end]
        if end < len(every):
            yield every[end]
        at = end + 1
