"""What a candidate changed of the program it was made from, as the lines of a diff."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape

from engine.cuda.patch import line_blocks
from engine.report.branches import BranchLine
from engine.report.run_folder import StoredRun, unpack
from engine.report.safe_text import lines_of

# Unchanged lines around a change; lines of one file's diff, of a step and of a node of the tree, and characters of one of them; pairs of
# lines that are compared; bytes that all candidates may take on a page, for it to stay below 2 MB, and those of one without its diff. Ours.
_CONTEXT = 2
_STEP_LINES, _NODE_LINES, _LINE = 400, 80, 200
_STEP_PAIRS, _NODE_PAIRS = 4_000_000, 250_000
_TREE, _NODE = 1_500_000, 400
_SIGNS = {"old": "−", "new": "+", "same": " ", "gap": "…"}


@dataclass(frozen=True)
class Stretch:
    """Neighbouring lines of a diff: `kind` is "same", "old", "new" or "gap"; `sign` says the same without colour."""

    kind: str
    lines: tuple[str, ...]

    @property
    def sign(self) -> str:
        return _SIGNS[self.kind]


@dataclass(frozen=True)
class FileEdit:
    """The changes of one file; `cut` when there are more lines than are shown."""

    path: str
    stretches: tuple[Stretch, ...]
    cut: bool

    @property
    def size(self) -> int:
        """About the bytes that it takes on a page."""
        return sum(30 + sum(4 + len(escape(line).encode()) for line in s.lines) for s in self.stretches)


def step_edits(run: StoredRun) -> dict[int, tuple[FileEdit, ...]]:
    """What each step of the trajectory changed, by its candidate; without those whose files the journal does not hold."""
    files, found, before = _DiffReader(run), {}, run.original
    for step in run.result.trajectory:
        after = files(step.id)
        if after is not None and before:
            found[step.id] = _edits(before, after, _STEP_LINES, _STEP_PAIRS)
            before = after
    return found


def tree_edits(run: StoredRun, tree: Sequence[BranchLine]) -> dict[int, tuple[FileEdit, ...]]:
    """What each candidate changed of its parent, by its number: those on the way to the best first, then the fastest, as far as a page
    holds them."""
    files, found, left = _DiffReader(run), {}, _TREE - _NODE * len(tree)
    for branch in sorted(tree, key=lambda b: (not b.chosen, -(b.node.ratio or 0.0), b.node.id)):
        node = branch.node
        if node.parent is None or left <= 0:
            continue
        before, after = files(node.parent), files(node.id)
        if before is not None and after is not None:
            edits = _edits(before, after, _NODE_LINES, _NODE_PAIRS)
            left -= sum(edit.size for edit in edits)
            found[node.id] = edits
    return found


class _DiffReader:
    """The files of a candidate by its number; None where the journal does not hold them. Parents are asked for again and again."""

    def __init__(self, run: StoredRun) -> None:
        self._run, self._first = run, run.nodes[0].id
        self._cached = lru_cache(maxsize=64)(self._read)

    def __call__(self, id: int) -> Mapping[str, bytes] | None:
        return self._cached(id)

    def _read(self, id: int) -> Mapping[str, bytes] | None:
        if not self._run.original:
            return None
        if id == self._first:
            return self._run.original
        try:
            changed = unpack(self._run.packed[id])
        except (KeyError, ValueError, zlib.error):  # not there, or damaged: the page shows the rest
            return None
        return {**self._run.original, **changed} if changed else None


def _edits(before: Mapping[str, bytes], after: Mapping[str, bytes], most: int, pairs: int) -> tuple[FileEdit, ...]:
    found = []
    for path in sorted({*before, *after}):
        if before.get(path) != after.get(path):
            every = _diff(lines_of(before.get(path, b""), _LINE), lines_of(after.get(path, b""), _LINE), pairs)
            kept, left = [], most
            for stretch in every:
                if left > 0:
                    kept.append(Stretch(stretch.kind, stretch.lines[:left]))
                left -= len(stretch.lines)
            found.append(FileEdit(path, tuple(kept), left < 0))
    return tuple(found)


def _diff(a: Sequence[str], b: Sequence[str], pairs: int) -> Iterator[Stretch]:
    stretches = line_blocks(a, b, pairs)
    for at, (equal, a0, a1, b0, b1) in enumerate(stretches):
        if not equal:
            changed = Stretch("old", tuple(a[a0:a1])), Stretch("new", tuple(b[b0:b1]))
            yield from (stretch for stretch in changed if stretch.lines)
            continue
        head = _CONTEXT if at else 0
        tail = _CONTEXT if at + 1 < len(stretches) else 0
        if a1 - a0 <= head + tail + 1:
            yield Stretch("same", tuple(a[a0:a1]))
            continue
        if head:
            yield Stretch("same", tuple(a[a0 : a0 + head]))
        yield Stretch("gap", (f"line {b1 - tail + 1}" if tail else "",))
        if tail:
            yield Stretch("same", tuple(a[a1 - tail : a1]))
