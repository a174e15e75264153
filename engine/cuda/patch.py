"""Writes the difference of two programs as a patch that `git apply` takes."""

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TypeVar

from engine.model import Program

_CONTEXT = 3
_MAX_COMPARED = 4_000_000  # pairs of lines
_NO_NEWLINE = b"\\ No newline at end of file\n"
_ESCAPES = {7: "\\a", 8: "\\b", 9: "\\t", 10: "\\n", 11: "\\v", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}

T = TypeVar("T", bytes, str)
Block = tuple[bool, int, int, int, int]  # equal, then the half-open line ranges before and after


def make_patch(before: Program, after: Program) -> bytes:
    """A git unified diff with three lines of context, paths relative to the repository's root; b"" where nothing differs.

    Bytes are kept as they are: line endings, byte order marks, a missing newline at the end. The format is that of
    git-diff's manual, "Generating patch text with -p".
    """
    parts: list[bytes] = []
    for path in sorted(before.files.keys() | after.files.keys()):
        old, new = before.files.get(path), after.files.get(path)
        if old != new:
            parts += _file(path, old, new)
    return b"".join(parts)


def _file(path: str, old: bytes | None, new: bytes | None) -> Iterator[bytes]:
    yield b"diff --git " + _name(f"a/{path}") + b" " + _name(f"b/{path}") + b"\n"
    if old is None:
        yield b"new file mode 100644\n"
    if new is None:
        yield b"deleted file mode 100644\n"
    a, b = _lines(old or b""), _lines(new or b"")
    if a == b:
        return
    yield b"--- " + (_header(f"a/{path}") if old is not None else b"/dev/null") + b"\n"
    yield b"+++ " + (_header(f"b/{path}") if new is not None else b"/dev/null") + b"\n"
    for hunk in _hunks(line_blocks(a, b, _MAX_COMPARED)):
        first, last = hunk[0], hunk[-1]
        yield b"@@ -%s +%s @@\n" % (_range(first[1], last[2]), _range(first[3], last[4]))
        for equal, a0, a1, b0, b1 in hunk:
            if equal:
                yield from (_line(b" ", line) for line in a[a0:a1])
            else:
                yield from (_line(b"-", line) for line in a[a0:a1])
                yield from (_line(b"+", line) for line in b[b0:b1])


def _lines(data: bytes) -> list[bytes]:
    """Lines with their ends. Only a line feed ends a line, as in git."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _line(mark: bytes, line: bytes) -> bytes:
    return mark + line if line.endswith(b"\n") else mark + line + b"\n" + _NO_NEWLINE


def _range(start: int, end: int) -> bytes:
    length = end - start
    # An empty range is named by the line before it.
    return b"%d,%d" % (start + 1 if length else start, length)


def line_blocks(a: Sequence[T], b: Sequence[T], pairs: int) -> list[Block]:
    """Stretches of lines that are equal or differ, none of them empty on both sides.

    Where more than so many pairs of lines would be compared, what differs is one stretch.
    """
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    middle_a, middle_b = a[head : len(a) - tail], b[head : len(b) - tail]
    blocks: list[Block] = [(True, 0, head, 0, head)] if head else []
    if len(middle_a) * len(middle_b) > pairs:
        blocks.append((False, head, len(a) - tail, head, len(b) - tail))
    else:
        for tag, a0, a1, b0, b1 in SequenceMatcher(None, middle_a, middle_b, autojunk=False).get_opcodes():
            blocks.append((tag == "equal", a0 + head, a1 + head, b0 + head, b1 + head))
    if tail:
        blocks.append((True, len(a) - tail, len(a), len(b) - tail, len(b)))
    return blocks


def _hunks(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    hunk: list[Block] = []
    for index, (equal, a0, a1, b0, b1) in enumerate(blocks):
        if not equal:
            hunk.append((equal, a0, a1, b0, b1))
            continue
        length, last = a1 - a0, index == len(blocks) - 1
        if hunk and (last or length > 2 * _CONTEXT):
            keep = min(length, _CONTEXT)
            yield [*hunk, (True, a0, a0 + keep, b0, b0 + keep)]
            hunk = []
        if last:
            continue
        keep = length if hunk else min(length, _CONTEXT)
        hunk.append((True, a1 - keep, a1, b1 - keep, b1))
    if hunk:
        yield hunk


def _name(path: str) -> bytes:
    """The name as git quotes it: in C style where it holds a quote, a backslash or a control character."""
    raw = path.encode("utf-8", "surrogateescape")
    if not any(byte < 32 or byte in (34, 92, 127) for byte in raw):
        return raw
    quoted = "".join(_ESCAPES.get(byte) or (f"\\{byte:03o}" if byte < 32 or byte >= 127 else chr(byte)) for byte in raw)
    return b'"' + quoted.encode("ascii") + b'"'


def _header(path: str) -> bytes:
    # A tab ends a name with blanks; without it, `patch` and git would take a part for a date.
    name = _name(path)
    return name + b"\t" if b" " in name and not name.startswith(b'"') else name
