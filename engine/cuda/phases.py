"""C++ translation phases 1 to 3: the text as a compiler's preprocessor sees it, and what compilers see differently.

A splice (backslash, newline) vanishes wherever it stands, also within a name; a digraph is the token that it stands for; a comment is a
space. NVRTC and the host preprocessor of nvcc differ: for nvcc (GCC) blanks may stand between backslash and newline and a lone carriage
return ends a line, for NVRTC neither; trigraphs count under `-std=c++11` and `-std=c++14` alone. So a text has one form for each reading.
Source: [lex.phases], [lex.digraph], [lex.trigraph] (C++14); measured with CUDA 13.0 and GCC 12.
"""

import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Reading:
    """What one compiler makes of phases 1 and 2."""

    blank_splices: bool  # backslash, blanks, newline is a splice
    lone_cr: bool  # a carriage return without a newline ends a line
    trigraphs: bool


NVRTC = Reading(blank_splices=False, lone_cr=False, trigraphs=False)
NVCC = Reading(blank_splices=True, lone_cr=True, trigraphs=False)
NVCC_14 = Reading(blank_splices=True, lone_cr=True, trigraphs=True)
NVRTC_14 = Reading(blank_splices=False, lone_cr=False, trigraphs=True)
READINGS = (NVCC, NVRTC, NVCC_14, NVRTC_14)

_TRIGRAPHS = {"=": "#", "/": "\\", "'": "^", "(": "[", ")": "]", "!": "|", "<": "{", ">": "}", "-": "~"}
_DIGRAPHS = {"%:%:": "##", "%:": "#", "<:": "[", ":>": "]", "<%": "{", "%>": "}"}
# Where readings differ, and where a text may be other than it looks.
_DIFFERS = re.compile(r"\\[ \t\f\v]+\r?\n|\r(?!\n)|\?\?[=/'()!<>-]")
_ODD = re.compile(r"\\[ \t\f\v\r\nuUN]|\r(?!\n)|%:|<:|<%|:>|%>|\?\?[=/'()!<>-]|[^\t\n\r\f\v -~]")
_TOKEN = re.compile(
    # What no phase changes, in one piece. A name before a quote may be its prefix, and digits have quotes in them.
    r"(?P<plain>(?:[A-Za-z_$][\w$]*+(?![\"'\u0080-\U0010ffff])|[ \t(){}\[\];,.+*=&|!~^?-])+)"
    r"|(?P<line_comment>//[^\n]*)"
    r"|(?P<comment>/\*.*?(?:\*/|\Z))"
    r'|(?P<raw>(?:u8|[uUL])?R")'
    r"|(?P<string>(?:u8|[uUL])?\"(?:\\.|[^\"\\\n])*\"?|(?:u8|[uUL])?'(?:\\.|[^'\\\n])+'?)"
    r"|(?P<name>[A-Za-z_$\u0080-\U0010ffff][\w$]*)"
    r"|(?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)"
    # `<::` that no `:` or `>` follows is `<` and `::` ([lex.pptoken]).
    r"|(?P<digraph>%:%:|%:|<:(?!:[^:>])|:>|<%|%>)"
    r"|(?P<newline>\n)"
    r"|(?P<other>::|.)",
    re.S,
)
_RAW = re.compile(r'"([^()\\\s"]{0,16})\(.*?(?:\)\1"|\Z)', re.S)
_BLANK = frozenset("\t\n\r\f\v ")
# Letters without a glyph: Hangul fillers, the blank Braille pattern.
_UNSEEN = frozenset("\u115f\u1160\u3164\uffa0\u2800")
_UNSEEN_KINDS = frozenset({"Cf", "Cc", "Co", "Cn", "Cs", "Zl", "Zp", "Zs", "Mn", "Me"})


@dataclass(frozen=True)
class Form:
    """The text of a file under one reading. `code` has no splice, digraph or comment; `comments` and `strings` are in their order."""

    code: str
    comments: tuple[str, ...]
    strings: tuple[str, ...]


@lru_cache(maxsize=64)
def form_of(text: str, reading: Reading) -> Form:
    """The text as the compiler of this reading sees it. Cached by content."""
    return _Scanner(text, reading).form


def as_it_stands(before: str, after: str) -> Iterator[tuple[Reading, Form, Form]]:
    """Both texts as if there were no phases 1 and 2: what a reader that knows of neither works on."""
    old, new = form_of(before, NVRTC), form_of(after, NVRTC)
    yield NVRTC, Form(before, old.comments, old.strings), Form(after, new.comments, new.strings)


def forms_of(before: str, after: str) -> Iterator[tuple[Reading, Form, Form]]:
    """Both texts under every reading, where the readings differ; under one alone where all agree."""
    seen: list[tuple[Form, Form]] = []
    for reading in READINGS:
        pair = form_of(before, reading), form_of(after, reading)
        if pair not in seen:
            seen.append(pair)
            yield reading, *pair
        if not (_DIFFERS.search(before) or _DIFFERS.search(after)):
            return


@lru_cache(maxsize=64)
def oddities(text: str) -> Counter[tuple[str, str]]:
    """(what it is, its line) for each form that compilers or people read differently. Cached: not to be changed.

    They are: digraphs, trigraphs, splices outside of directives or with blanks, lone carriage returns, universal character names,
    names with letters outside of ASCII, characters that are invisible or change the direction of text.
    """
    found: Counter[tuple[str, str]] = Counter()
    if not _ODD.search(text):
        return found
    lines = text.split("\n")
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line) + 1)
    for what, at in _odd(text):
        row = bisect_right(offsets, at) - 1
        found[what, lines[row].strip(" \t\r")] += 1
    return found


def _odd(text: str) -> Iterator[tuple[str, int]]:
    for match in re.finditer(r"\r(?!\n)", text):
        yield "a lone carriage return", match.start()
    for match in re.finditer(r"\?\?[=/'()!<>-]", text):
        yield "a trigraph", match.start()
    for match in re.finditer(r"[^\t\n\r\f\v -~]", text):
        char = match[0]
        if char in _UNSEEN or unicodedata.category(char) in _UNSEEN_KINDS:
            yield f"the invisible character U+{ord(char):04X}", match.start()
    for reading in (NVCC, NVRTC):
        yield from _Scanner(text, reading).odd


class _Scanner:
    """Phases 1 and 2 with the places of what they changed, then the tokens of phase 3."""

    def __init__(self, text: str, reading: Reading) -> None:
        self._text = text
        # (place in the phase-2 text, place in the file) behind each change
        self._edges: list[tuple[int, int]] = [(0, 0)]
        self.odd: list[tuple[str, int]] = []
        self._splices: list[tuple[int, int, bool]] = []  # place in the phase-2 text, in the file, with blanks
        self._raws: list[tuple[int, int]] = []  # raw strings, in the file
        self.form = self._scan(self._second_phase(reading))

    def _second_phase(self, reading: Reading) -> str:
        backslash = r"(?:\\|\?\?/)" if reading.trigraphs else r"\\"
        blanks = r"[ \t\f\v]*" if reading.blank_splices else ""
        newline = r"(?:\r\n|\n|\r)" if reading.lone_cr else r"\r?\n"
        pattern = rf"(?P<splice>{backslash}{blanks}{newline})"
        if reading.trigraphs:
            pattern += r"|\?\?(?P<trigraph>[=/'()!<>-])"
        if reading.lone_cr:
            pattern += r"|(?P<cr>\r(?!\n))"
        parts: list[str] = []
        at = size = 0
        for match in re.finditer(pattern, self._text):
            parts.append(self._text[at : match.start()])
            size += match.start() - at
            groups = match.groupdict()
            if groups.get("splice"):
                self._splices.append((size, match.start(), match[0][1] not in "\r\n" if len(match[0]) > 1 else False))
            else:
                parts.append(_TRIGRAPHS[groups["trigraph"]] if groups.get("trigraph") else "\n")
                size += 1
            at = match.end()
            self._edges.append((size, at))
        parts.append(self._text[at:])
        return "".join(parts)

    def _origin(self, place: int) -> int:
        edge, origin = self._edges[bisect_right(self._edges, (place, len(self._text) + 1)) - 1]
        return origin + place - edge

    def _scan(self, text: str) -> Form:
        code: list[str] = []
        comments: list[str] = []
        strings: list[str] = []
        directives: list[tuple[int, int]] = []
        at, fresh, directive = 0, True, -1
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match is not None
            kind, piece, end = match.lastgroup, match[0], match.end()
            if kind == "plain":
                fresh = fresh and piece.isspace()
            elif kind == "newline":
                if directive >= 0:
                    directives.append((directive, at))
                    directive = -1
                fresh = True
            elif kind in ("comment", "line_comment"):
                comments.append(piece)
                piece = " "
            elif kind == "raw":
                piece, end = self._raw(text, match)
                strings.append(piece)
                fresh = False
            elif kind == "string":
                strings.append(piece)
                fresh = False
            else:
                if kind == "digraph":
                    self.odd.append((f"the digraph '{piece}'", self._origin(at)))
                    piece = _DIGRAPHS[piece]
                elif kind == "name" and not piece.isascii():
                    self.odd.append(("a name with non-ASCII letters", self._origin(at)))
                elif piece == "\\" and re.match(r"\\[uUN]", text[at : at + 2]):
                    self.odd.append(("a universal character name", self._origin(at)))
                if piece == "#" and fresh:
                    directive = at
                fresh = fresh and piece in _BLANK
            code.append(piece)
            at = end
        if directive >= 0:
            directives.append((directive, len(text)))
        self._judge_splices(directives)
        return Form("".join(code), tuple(comments), tuple(strings))

    def _raw(self, text: str, match: re.Match[str]) -> tuple[str, int]:
        """A raw string, whose content is the file's own: phases 1 and 2 are undone within its quotes."""
        quote = match.end() - 1
        origin = self._origin(quote)
        found = _RAW.match(self._text, origin)
        if found is None:
            return match[0], match.end()
        self._raws.append((origin, found.end()))
        # The content ends with a quote, so no splice reaches over its end.
        edge, place = self._edges[bisect_right(self._edges, found.end(), key=lambda e: e[1]) - 1]
        return text[match.start() : quote] + found[0], max(edge + found.end() - place, match.end())

    def _judge_splices(self, directives: list[tuple[int, int]]) -> None:
        begins, raws = [begin for begin, _ in directives], [begin for begin, _ in self._raws]
        for place, origin, blanks in self._splices:
            raw = bisect_right(raws, origin) - 1
            if raw >= 0 and origin < self._raws[raw][1]:
                continue
            index = bisect_right(begins, place) - 1
            if blanks:
                self.odd.append(("a backslash with blanks before the end of its line", origin))
            elif index < 0 or place > directives[index][1]:
                self.odd.append(("a line splice outside a directive", origin))
