"""Removes comments about statements that a rewrite removed."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

from engine.cuda.items import pieces_of
from engine.model import Program

_ALIKE = 0.75  # of two lines' tokens: from here on a statement was edited, and its comment stays. Ours
_MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class _Comment:
    """A comment on line `number` (from 0), and the line of code that it is about: its own where `trailing`, else the next."""

    text: str
    number: int
    trailing: bool
    about: str


def without_stale_comments(before: Program, after: Program) -> Program:
    """`after` without comments about statements that it no longer has; everything else stays byte for byte.

    A comment is removed if its line of code occurs less often than in `before`, and the code in its place is another statement (less
    than three quarters of the tokens agree). Comments outside of function bodies, block comments of several lines, spec lines and
    comments that the rewrite added stay.
    """
    files = dict(after.files)
    for path, data in after.files.items():
        old = before.files.get(path)
        if old is not None and old != data and len(old) + len(data) <= _MAX_BYTES:
            files[path] = _cleaned(old, data)
    return after if files == dict(after.files) else Program(files, after.kernel_file)


def _cleaned(old: bytes, new: bytes) -> bytes:
    try:
        first, second = _Lines(old.decode("utf-8")), _Lines(new.decode("utf-8"))
    except UnicodeDecodeError:
        return new
    known: dict[str, list[str]] = {}
    for comment in first.comments():
        known.setdefault(comment.text, []).append(comment.about)
    was, now = Counter(first.code), Counter(second.code)
    lines: list[str] = list(second.lines)
    for comment in second.comments():
        about = known.get(comment.text)
        if about is None or any(now[line] >= was[line] or _alike(line, comment.about) for line in about):
            continue
        line = lines[comment.number]
        end = line[len(line.rstrip("\r\n")) :]
        lines[comment.number] = second.before_comment[comment.number].rstrip() + end if comment.trailing else ""
    return "".join(lines).encode()


def _alike(one: str, other: str) -> bool:
    return SequenceMatcher(None, one.split(" "), other.split(" "), autojunk=False).ratio() >= _ALIKE


class _Lines:
    """A file by lines. `code` is each line's tokens with blanks between, `before_comment` the text in front of its comment."""

    def __init__(self, text: str) -> None:
        self.lines = text.split("\n")
        self.lines[:-1] = [line + "\n" for line in self.lines[:-1]]
        count = len(self.lines)
        tokens: list[list[str]] = [[] for _ in range(count)]
        self._comment, self.before_comment = [""] * count, [""] * count
        self._skipped = [False] * count  # a comment of several lines, or with something behind it
        self._body = [False] * count  # whether the line begins in a function's or type's body
        braces: list[bool] = []  # of a body, not of a namespace
        head: list[str] = []  # tokens since the last statement
        at, written = 0, ""
        for piece in pieces_of(text):
            if piece.startswith(("//", "/*")):
                self._skipped[at] |= bool(self._comment[at]) or "\n" in piece
                self._comment[at], self.before_comment[at] = " ".join(piece.split()), written
            elif piece.strip():
                tokens[at].append(" ".join(piece.split()))
                self._skipped[at] |= bool(self._comment[at])
                if piece == "{":
                    braces.append("namespace" not in head and head[:1] != ["extern"])
                elif piece == "}" and braces:
                    braces.pop()
                head = [] if piece in "{};" else [*head[:8], piece]
            written += piece
            for _ in range(piece.count("\n")):
                at, written = at + 1, ""
                self._body[at] = any(braces)
                self._skipped[at] = piece != "\n"
        self.code = [" ".join(line) for line in tokens]

    def comments(self) -> Iterator[_Comment]:
        """The comments in bodies that are about one line of code."""
        for number, comment in enumerate(self._comment):
            if not comment or self._skipped[number] or not self._body[number] or "optiml:" in comment:
                continue
            trailing, last = bool(self.code[number]), number
            while not trailing and last + 1 < len(self.lines) and not self.code[last] and self._comment[last]:
                last += 1
            if self.code[last]:
                yield _Comment(comment, number, trailing, self.code[last])
