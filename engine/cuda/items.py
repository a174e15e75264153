"""Cuts a C++ file into its top-level items without a grammar: what a body holds is of no concern, its braces are.

A tree of the grammar breaks at syntax that it does not know; the device slice must not. So this reads tokens: comments,
strings, directives, brackets. Both arms of an `#if` are followed, each from the brackets at the `#if`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from engine.cuda.kernel import Span

_TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r\f\v]|\\\r?\n)+)"
    r"|(?P<newline>\n)"
    r"|(?P<comment>//(?:[^\n\\]|\\\r?\n|\\)*|/\*.*?(?:\*/|\Z))"
    r'|(?P<string>(?:u8|[uUL])?R"(?P<tag>[^()\\\s]{0,16})\(.*?(?:\)(?P=tag)"|\Z)'
    r"|(?:u8|[uUL])?\"(?:\\.|[^\"\\\n])*\"?|(?:u8|[uUL])?'(?:\\.|[^'\\\n])+'?)"
    r"|(?P<name>[A-Za-z_$\u0080-\U0010ffff][\w$]*)"
    r"|(?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.])*)"
    r"|(?P<op>::|.)",
    re.S,
)
_DIRECTIVE = re.compile(r"\#[ \t]*(?P<word>[A-Za-z_]*)(?P<rest>(?:/\*.*?\*/|//[^\n]*|\\\r?\n|[^\n])*)", re.S)
_LEAST_CACHED = 512  # characters: shorter texts are directives and the like
_TYPES = ("struct", "class", "union", "enum")
ATTRIBUTES = frozenset(  # that may take arguments in a head
    {"__align__", "alignas", "__attribute__", "__launch_bounds__", "__declspec", "__cluster_dims__", "decltype",
     "__block_size__", "noexcept", "requires", "explicit", "__maxnreg__"}
)  # fmt: skip
_MAX_GROUPS = 64  # of brackets in one head, each looked at again: a hostile file has a million
_MAX_CALL = 64  # tokens of a macro's call that opens or closes a brace
_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")

ItemKind = Literal["function", "type", "typedef", "using", "variable", "directive", "open", "close", "other"]


class Token(NamedTuple):
    """One token. `kind` is name, number, string, op or directive; offsets count characters."""

    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Item:
    """One definition, declaration, directive, or the opening or closing of a namespace or `extern "C"` block.

    `span` counts characters. `defines` are the names that others may use it by. `head` are the tokens outside of braces.
    `conditional` is how many `#if` it stands in.
    """

    kind: ItemKind
    span: Span
    line: int
    tokens: tuple[Token, ...]
    head: tuple[Token, ...] = ()
    defines: tuple[str, ...] = ()
    conditional: int = 0
    word: str = ""  # of a directive: "include", "define", …
    rest: str = ""  # of a directive: what follows the word, without comments and continued lines


@dataclass
class _Branch:
    """Where the brackets stood at an `#if`, for its other arms."""

    depth: int
    scopes: int


def pieces_of(text: str) -> list[str]:
    """The text cut into tokens, spaces and comments, within directives as well: put together they are the text."""
    return [match[0] for match in _TOKEN.finditer(text)]


def tokens_of(text: str) -> Sequence[Token]:
    """All tokens but spaces and comments. A directive with its continued lines is one token. A file's are cached by content."""
    return _tokens(text) if len(text) < _LEAST_CACHED else _kept_tokens(text)


@lru_cache(maxsize=32)
def _kept_tokens(text: str) -> Sequence[Token]:
    return tuple(_tokens(text))


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at, fresh, end = 0, True, len(text)
    match_token, match_directive = _TOKEN.match, _DIRECTIVE.match
    while at < end:
        if fresh and text[at] == "#":
            directive = match_directive(text, at)
            assert directive is not None
            found.append(Token("directive", directive[0], at, directive.end()))
            at, fresh = directive.end(), False
            continue
        match = match_token(text, at)
        assert match is not None
        kind = match.lastgroup or "op"
        if kind == "tag":
            kind = "string"
        if kind == "newline":
            fresh = True
        elif kind not in ("space", "comment"):
            fresh = False
            found.append(Token(kind, match[0], at, match.end()))
        at = match.end()
    return found


def directive_parts(text: str) -> tuple[str, str]:
    """("include", "<x.h>") for a directive's text; comments and continued lines are gone from the rest."""
    match = _DIRECTIVE.match(text)
    if match is None:
        return "", ""
    rest = re.sub(r"\\\r?\n", " ", match["rest"])
    rest = re.sub(r"(\"(?:\\.|[^\"\\])*\"|<[^>\n]*>)|/\*.*?\*/|//.*", lambda m: m[1] or " ", rest, flags=re.S)
    return match["word"], rest.strip()


@lru_cache(maxsize=64)
def items_of(text: str) -> tuple[Item, ...]:
    """The file's items in order. Every token is in exactly one. Cached by content."""
    return tuple(_Splitter(text).split())


class _Splitter:
    def __init__(self, text: str) -> None:
        self.text = text
        self.items: list[Item] = []
        self.current: list[Token] = []
        self.depth = 0  # of brackets inside the current item
        self.closed = 0  # groups of brackets in the current item
        self.scopes = 0  # open namespaces and linkage blocks
        self.branches: list[_Branch] = []
        self.line, self.line_at = 1, 0
        self.braces: dict[
            str, tuple[int, int]
        ] = {}  # macros that leave one open, or close one: 1, -1; the argument that is declared
        self.bodies: dict[int, int] = {}  # where, by the index of a token, such a macro's brace is
        self.table = False  # whether one opens the current item

    def split(self) -> list[Item]:
        tokens = tokens_of(self.text)
        for index, token in enumerate(tokens):
            if token.kind == "directive":
                self._directive(token)
                continue
            self.current.append(token)
            if token.text in self.braces and token.kind == "name":
                self.bodies[past_call(tokens, index)] = self.braces[token.text][0]
                self.table |= len(self.current) == 1 and self.braces[token.text][0] > 0
            if index in self.bodies and (token.kind == "name" or token.text == ")"):
                self.depth += self.bodies[index] - (token.text == ")")
                if self.depth <= 0:
                    self._end()
                continue
            if token.kind != "op":
                continue
            if token.text in _OPEN:
                if token.text == "{" and self.depth == 0 and _is_scope(self.current):
                    self.scopes += 1
                    self._end("open")
                else:
                    self.depth += 1
            elif token.text in _CLOSE:
                if self.depth == 0:
                    self.scopes = max(0, self.scopes - 1)
                    self._end("close")
                    continue
                self.depth -= 1
                self.closed += self.depth == 0
                if (
                    self.depth == 0
                    and token.text == "}"
                    and self.closed < _MAX_GROUPS
                    and _ends_with_body(self.current)
                ):
                    following = tokens[index + 1].text if index + 1 < len(tokens) else ""
                    if following not in (";", ",", "{"):  # the latter two behind `: a{}` of a constructor
                        self._end()
            elif token.text == ";" and self.depth == 0:
                self._end()
        if self.current:
            self._end()
        return self.items

    def _directive(self, token: Token) -> None:
        word, rest = directive_parts(token.text)
        if word == "define" and (macro := re.match(r"(\w+)(?:\(([^)]*)\))?", rest)):
            body = rest[macro.end() :]
            if abs(left := body.count("{") - body.count("}")) == 1:
                declares = re.findall(r"\w+", re.split(r"[\[={]", body)[0])[-1:]
                given = [p.strip() for p in (macro[2] or "").split(",")]
                self.braces[macro[1]] = left, given.index(declares[0]) if declares and declares[0] in given else -1
        opening = word in ("if", "ifdef", "ifndef")
        if word in ("else", "elif", "elifdef", "elifndef") and self.branches:
            self.depth = self.branches[-1].depth
            self.scopes = self.branches[-1].scopes
        elif word == "endif" and self.branches:
            self.branches.pop()
        if self.current:
            self.current.append(token)
        else:
            conditional = len(self.branches)
            self.items.append(
                Item("directive", Span(token.start, token.end), self._line(token.start), (token,), (), (), conditional, word, rest)
            )  # fmt: skip
        if opening:
            self.branches.append(_Branch(self.depth, self.scopes))

    def _end(self, kind: ItemKind | None = None) -> None:
        tokens, self.current, self.depth, self.closed = tuple(self.current), [], 0, 0
        table, self.table = self.table, False
        arm = _balanced(tokens)
        head = tuple(_head(arm))
        if table:
            kind = "variable"
        if kind is None:
            kind = _kind(head, tokens)
        defines: tuple[str, ...] = ()
        if kind == "open":
            defines = tuple(
                t.text for t in tokens if t.kind == "name" and t.text not in ("namespace", "inline", "extern")
            )
        elif table:  # one of the macro's arguments names it
            commas = [i for i in range(1, past_call(tokens, 0)) if tokens[i].text in ("(", ",")]
            at = self.braces[tokens[0].text][1]
            defines = (tokens[commas[at] + 1].text,) if 0 <= at < len(commas) else ()
        elif kind != "close":
            defines = tuple(dict.fromkeys(_defined(kind, head, arm)))
        span = Span(tokens[0].start, tokens[-1].end)
        self.items.append(Item(kind, span, self._line(span.start), tokens, head, defines, len(self.branches)))

    def _line(self, at: int) -> int:
        self.line += self.text.count("\n", self.line_at, at)
        self.line_at = at
        return self.line


def past_call(tokens: Sequence[Token], at: int) -> int:
    """The index of the `)` that ends a call of the macro at `at`; `at` itself where none follows."""
    depth = 0
    for index in range(at + 1, min(at + 1 + _MAX_CALL, len(tokens))):
        depth += {"(": 1, ")": -1}.get(tokens[index].text, 0)
        if depth <= 0:
            return index if tokens[index].text == ")" else at
    return at


def _is_scope(tokens: Sequence[Token]) -> bool:
    if len(tokens) > _MAX_GROUPS:
        return False
    words = [t.text for t in tokens if t.kind != "directive"]
    if "namespace" in words[:2] and "=" not in words:
        return True
    return len(words) == 3 and words[0] == "extern" and words[1].startswith('"')


def _balanced(tokens: Sequence[Token]) -> Sequence[Token]:
    """The tokens without later arms of conditions whose first arm opens or closes brackets: each arm has its own."""
    found: list[Token] = []
    depth = 0
    # Where the brackets stood, and whether this arm is left out; the first began before the item.
    branches = [(0, False)]
    for token in tokens:
        word = directive_parts(token.text)[0] if token.kind == "directive" else ""
        if word in ("if", "ifdef", "ifndef"):
            branches.append((depth, False))
        elif word in ("else", "elif", "elifdef", "elifndef"):
            branches[-1] = branches[-1][0], depth != branches[-1][0] or branches[-1][1]
        elif word == "endif":
            branches = branches[:-1] or [(0, False)]
        if word or not any(left for _, left in branches):
            found.append(token)
            depth += (token.text in _OPEN) - (token.text in _CLOSE) if token.kind == "op" else 0
    return found


def _head(tokens: Sequence[Token]) -> list[Token]:
    """The tokens outside of braces and of the template's parameter list; what stands in parentheses stays."""
    found: list[Token] = []
    braces = 0
    for token in tokens:
        brace = token.text if token.kind == "op" else ""
        braces -= brace == "}"
        if not braces and token.kind != "directive":
            found.append(token)
        braces += brace == "{"
    at = 0
    while at < len(found) and found[at].text == "template":
        at += 1
        if at < len(found) and found[at].text == "<":
            at = _past_angles(found, at)
    return found[at:]


def _past_angles(tokens: Sequence[Token], at: int) -> int:
    """The index behind the `>` that closes the `<` at `at`."""
    angles = brackets = 0
    while at < len(tokens):
        text = tokens[at].text
        if text in ("(", "["):
            brackets += 1
        elif text in (")", "]"):
            brackets -= 1
        elif not brackets:
            if text == "<":
                angles += 1
            elif text == ">":
                angles -= 1
            elif text in (";", "{"):
                return at
        at += 1
        if angles == 0:
            return at
    return at


def _top(head: Sequence[Token]) -> list[Token]:
    """The head without what stands in parentheses, brackets or braces, and without attributes; the brackets stay."""
    found: list[Token] = []
    depth = 0
    skip = False
    for index, token in enumerate(head):
        operator = token.kind == "op"
        if operator and token.text in _CLOSE:
            depth -= 1
            if depth == 0 and skip:
                skip = False
                continue
        if depth == 0 and not (token.kind == "name" and token.text in ATTRIBUTES):
            found.append(token)
        if operator and token.text in _OPEN:
            if depth == 0 and token.text == "(" and index and head[index - 1].text in ATTRIBUTES:
                found.pop()
                skip = True
            depth += 1
    return found


def _assigns(top: Sequence[Token]) -> bool:
    for index, token in enumerate(top):
        if token.text == "operator":
            return False
        if token.text == "(" and index:
            continue
        if token.text == "=" and token.kind == "op":
            return True
        if token.text == "{":
            return False
    return False


def _ends_with_body(tokens: Sequence[Token]) -> bool:
    """Whether the brace just closed ends a function's definition (else a `;` must follow)."""
    head = _head(tokens)
    top = _top(head)
    if not any(t.text == "(" for t in top) or _assigns(top):
        return False
    before = [t.text for t in top[:-2]] if len(top) >= 2 else []
    if before and any(t in _TYPES for t in before) and ")" not in before:
        return False
    # `Foo::Foo() : a{1}, b(2) {`: a brace right behind a name in the list of initialisers is no body.
    if ":" in before and ")" in before and before.index(")") < before.index(":"):
        return before[-1] in (")", "}", "]")
    return True


def _kind(head: Sequence[Token], tokens: Sequence[Token]) -> ItemKind:
    words = [t.text for t in head]
    if not words:
        return "other"
    if words[0] == "typedef":
        return "typedef"
    if words[0] == "using" or words[0] == "namespace":
        return "using"
    if words[0] in ("static_assert", "_Static_assert", "asm"):
        return "other"
    top = _top(head)
    texts = [t.text for t in top]
    if "(" in texts and not _assigns(top):
        return "function"
    if any(word in _TYPES for word in texts) and not _assigns(top) and ("{" in texts or len(texts) <= 4):
        return "type"
    return "variable"


def _defined(kind: str, head: Sequence[Token], tokens: Sequence[Token]) -> list[str]:
    top = _top(head)
    names: list[str] = []
    if kind == "function":
        for index, token in enumerate(top):
            if token.text == "{" or token.text == ":":
                break
            if token.text == "operator":
                names.append("operator")
                break
            if token.text == "(" and index:
                names += _called(top, index)
    elif kind == "type":
        for index, token in enumerate(top):
            if token.text in _TYPES or token.text == "final":
                continue
            if token.kind == "name":
                following = top[index + 1].text if index + 1 < len(top) else ""
                names.append(token.text)
                if following in (":", "<", "{"):
                    break
        names += _enumerators(tokens) if any(t.text == "enum" for t in top) else []
        names += _after_braces(top)
    elif kind == "typedef":
        names += _after_braces(top) or [t.text for t in top if t.kind == "name"][-1:]
        for index, token in enumerate(head[:-1]):
            if token.text == "*" and index and head[index - 1].text == "(" and head[index + 1].kind == "name":
                names.append(head[index + 1].text)
        if any(t.text == "enum" for t in top):
            names += _enumerators(tokens)
        for index, token in enumerate(top[:-1]):
            if token.text in _TYPES and top[index + 1].kind == "name":
                names.append(top[index + 1].text)
    elif kind == "using":
        plain = [t.text for t in head if t.kind == "name" and t.text not in ("using", "namespace", "typename")]
        if any(t.text == "=" for t in head):
            names += plain[:1]
        else:
            names += plain[-1:]
    elif kind == "variable":
        names += _declarators(top)
        for index, token in enumerate(top[:-1]):
            if token.text in _TYPES and top[index + 1].kind == "name":
                names.append(top[index + 1].text)
        if any(t.text == "enum" for t in top):
            names += _enumerators(tokens)
    return names


def _called(top: Sequence[Token], at: int) -> list[str]:
    """The names before a parameter list: the function's, and the class's that it belongs to."""
    names, last, at = list[str](), max(0, at - _MAX_GROUPS * 4), at - 1
    while at >= last:
        if top[at].text == ">":
            angles = 0
            while at >= last:
                angles += {">": 1, "<": -1}.get(top[at].text, 0)
                at -= 1
                if angles == 0:
                    break
        if at < last or top[at].kind != "name":
            break
        names.append(top[at].text)
        at -= 1
        if at < last or top[at].text != "::":
            break
        at -= 1
    return names


def _after_braces(top: Sequence[Token]) -> list[str]:
    """Names declared behind the braces of a type: `struct S { … } a, *b;`."""
    closing = [index for index, t in enumerate(top) if t.text == "}"]
    return [t.text for t in top[closing[-1] :] if t.kind == "name"] if closing else []


def _enumerators(tokens: Sequence[Token]) -> list[str]:
    names, depth = list[str](), 0
    for before, token in pairwise(tokens):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(before.text, 0)
        if depth == 1 and token.kind == "name" and (before.kind == "directive" or before.text in ("{", ",")):
            names.append(token.text)
    return names


def _declarators(top: Sequence[Token]) -> list[str]:
    names, at, value = list[str](), 0, False
    while at < len(top):
        token = top[at]
        if token.text == "<" and not value:
            at = max(_past_angles(top, at), at + 1)
            continue
        if token.text == "=":
            value = True
        following = top[at + 1].text if at + 1 < len(top) else ";"
        if (
            token.kind == "name"
            and following in ("=", "[", "{", ",", ";", "(")
            and (not value or top[at - 1].text in (",", "*", "&"))
        ):
            names.append(token.text)
        at += 1
    return names
