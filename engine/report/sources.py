"""The source side by side: original and best, line by line, with what a diagnosis says of a line beneath it."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.cuda.patch import line_blocks
from engine.profile.line_weights import LineWeight
from engine.report.run_folder import StoredRun
from engine.report.safe_text import lines_of

# Unchanged lines around a change; below `_FOLD` hidden lines hiding saves nothing. Rows and characters that are shown. Ours.
_CONTEXT, _FOLD, _ROWS, _LINE = 8, 4, 3000, 1000
_HEAVY, _HEAVIEST = (
    0.05,
    6,
)  # the share from which on a line is shown wherever it is; lines in the table of the heaviest
_COMPARED = 4_000_000  # pairs of lines; above, what differs is shown as replaced as a whole
_WHERE = re.compile(r"\blines? (\d{1,7})\b")


@dataclass(frozen=True)
class SourceRow:
    """One row: line numbers (1-based) and texts of both sides, None where a side has no line. `gap`: so many equal lines are left out.

    The weights are the shares of the kernel's work at these lines, where they were counted.
    """

    kind: Literal["same", "changed", "gap"]
    left: int | None = None
    before: str | None = None
    right: int | None = None
    after: str | None = None
    gap: int = 0
    notes: tuple[str, ...] = ()
    left_weight: LineWeight | None = None
    right_weight: LineWeight | None = None


@dataclass(frozen=True)
class Listing:
    """One file. `titles` name its sides, one without a suggestion, else two; `cut` when there are more rows than are shown.

    `measure` is the share that stands beside its lines, "instructions" or "sectors"; "" where nothing was counted by line.
    """

    path: str
    titles: tuple[str, ...]
    rows: tuple[SourceRow, ...]
    cut: bool
    measure: str = ""

    @property
    def sides(self) -> int:
        return len(self.titles)


@dataclass(frozen=True)
class _Side:
    """One side of a listing: what a diagnosis says of its lines, and their weights."""

    notes: Mapping[int, Sequence[str]] = field(default_factory=dict)
    weights: Mapping[int, LineWeight] = field(default_factory=dict)


def listings(run: StoredRun) -> list[Listing]:
    """Every file that the suggestion changes, the kernel's first; the kernel's file alone without a suggestion."""
    result, last = run.result, run.result.trajectory[-1:]
    found = []
    for source in run.sources:
        before = after = _Side()
        if source.path == result.file:
            before = _side("the original", result.diagnosis, result.lines)
            if source.after is not None and last:
                after = _side("the best", last[0].diagnosis, last[0].lines)
        titles = ("Original",) if source.after is None else ("Original", "Best")
        texts = source.before, source.before if source.after is None else source.after
        found.append(_listing(source.path, titles, texts, (before, after)))
    return found


def compared_listings(a: StoredRun, b: StoredRun, titles: tuple[str, str]) -> list[Listing]:
    """Every file in which what two runs suggest differs, the kernel's first."""
    one, other = ({**run.original, **{s.path: s.after for s in run.sources if s.after is not None}} for run in (a, b))
    paths = sorted({*one, *other}, key=lambda path: (path != a.result.file, path))
    return [
        _listing(path, titles, (one.get(path, b""), other.get(path, b"")), (_Side(), _Side()))
        for path in paths
        if one.get(path) != other.get(path)
    ]


def heaviest_lines(run: StoredRun) -> list[tuple[str, LineWeight, str]]:
    """The lines of original and best that do most of the work: whose, the weight, the text."""
    result, found = run.result, []
    for source in run.sources:
        if source.path != result.file:
            continue
        last = result.trajectory[-1].lines if result.trajectory else ()
        for whose, weights, data in (("original", result.lines, source.before), ("best", last, source.after)):
            lines = lines_of(data, _LINE) if data is not None else []
            held = [w for w in weights if 1 <= w.line <= len(lines)]
            held.sort(key=lambda w: (-_share(w, _measure(weights)), w.line))
            found += [(whose, w, lines[w.line - 1].strip()) for w in held[:_HEAVIEST]]
    return found


def _side(whose: str, sentences: Sequence[str], weights: Sequence[LineWeight]) -> _Side:
    notes: dict[int, list[str]] = defaultdict(list)
    for sentence in sentences:
        for line in dict.fromkeys(int(number) for number in _WHERE.findall(sentence)):
            notes[line].append(f"{whose}: {sentence}")
    return _Side(notes, {weight.line: weight for weight in weights})


def _measure(weights: Iterable[LineWeight]) -> str:
    every = list(weights)
    if any(w.instructions is not None for w in every):
        return "instructions"
    return "sectors" if every else ""


def _share(weight: LineWeight | None, measure: str) -> float:
    return (getattr(weight, measure) or 0.0) if weight is not None and measure else 0.0


def _listing(path: str, titles: tuple[str, ...], texts: tuple[bytes, bytes], sides: tuple[_Side, _Side]) -> Listing:
    a, b = (lines_of(text, _LINE) for text in texts)
    measure = _measure([*sides[0].weights.values(), *sides[1].weights.values()])
    rows = list(_folded(list(_rows(a, b, *sides)), measure))
    return Listing(path, titles, tuple(rows[:_ROWS]), len(rows) > _ROWS, measure)


def _rows(a: Sequence[str], b: Sequence[str], left: _Side, right: _Side) -> Iterator[SourceRow]:
    for equal, a0, a1, b0, b1 in line_blocks(a, b, _COMPARED):
        for step in range(max(a1 - a0, b1 - b0)):
            i = a0 + step if a0 + step < a1 else None
            j = b0 + step if b0 + step < b1 else None
            at, to = (None if i is None else i + 1), (None if j is None else j + 1)
            yield SourceRow(
                "same" if equal else "changed", at, None if i is None else a[i], to, None if j is None else b[j], 0,
                (*left.notes.get(at or 0, ()), *right.notes.get(to or 0, ())), left.weights.get(at or 0), right.weights.get(to or 0),
            )  # fmt: skip


def _folded(every: Sequence[SourceRow], measure: str) -> Iterator[SourceRow]:
    """The rows without equal ones that are far from a change, from a diagnosed and from a heavy line; all of them where there is none."""
    marks = [
        at
        for at, row in enumerate(every)
        if row.kind == "changed"
        or row.notes
        or max(_share(row.left_weight, measure), _share(row.right_weight, measure)) >= _HEAVY
    ]
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
            yield SourceRow("gap", gap=end - at)
        else:
            yield from every[at:end]
        if end < len(every):
            yield every[end]
        at = end + 1
