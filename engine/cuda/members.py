"""What must change inside a definition so that a compiler without a host side takes it.

NVRTC refuses every function without `__device__`, nvcc makes it a host function. So member functions for the host lose
their bodies, `constexpr` functions get both annotations, and variables declared along with a type are left out.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from engine.cuda.device_headers import FOREIGN, STD_NAMES, torch_type
from engine.cuda.items import Item, Token, items_of

_RECORDS = frozenset({"struct", "class", "union"})
_LABELS = ("public", "private", "protected")
_SPACES = frozenset({"__device__", "__global__"})
_LASTING = frozenset({"const", "constexpr", "typedef", "__device__", "__constant__", "__managed__"})
_MAX_NESTED = 20  # types in types; each level is read anew
_BOTH = "__host__ __device__ "


class Cut(NamedTuple):
    """Characters of the file to leave out, and what stands there instead."""

    start: int
    end: int
    text: str


def cuts_of(text: str, item: Item, expand: Callable[[set[str]], set[str]]) -> tuple[Cut, ...]:
    """The cuts, in order and apart from each other, for one item of the file `text`.

    `expand` adds to names what their macros stand for. No cut holds a directive: conditions stay balanced.
    """
    return tuple(sorted(_cuts(text, item, item.tokens, 0, expand, 0)))


def _cuts(
    text: str, item: Item, tokens: Sequence[Token], offset: int, expand: Callable[[set[str]], set[str]], depth: int
) -> Iterator[Cut]:
    if item.kind == "function":
        yield from _lambdas(tokens, offset)
        yield from _function(item, offset, expand, member=depth > 0)
    elif item.kind in ("type", "typedef", "variable") and any(t.text in _RECORDS for t in item.head):
        brace = _first_brace(tokens)
        if brace is None or depth > _MAX_NESTED:
            return
        opening, closing = brace
        start, end = tokens[opening].end, tokens[closing].start
        inner = text[start:end] if offset == 0 else text[start + offset : end + offset]
        for child in items_of(inner):
            if child.kind not in ("directive", "open", "close"):
                yield from _cuts(text, child, child.tokens, offset + start, expand, depth + 1)
        names = {t.text for t in item.head if t.kind == "name"}
        if (
            not depth
            and not expand(names) & _LASTING
            and tokens[-1].text == ";"
            and tokens[-1] is not tokens[closing + 1]
        ):
            yield Cut(tokens[closing].end + offset, tokens[-1].start + offset, "")


def _function(item: Item, offset: int, expand: Callable[[set[str]], set[str]], *, member: bool) -> Iterator[Cut]:
    at = _label(item.head)
    head: list[Token] = []
    for token in item.head[at:]:
        if token.text == "{" and token.kind == "op":
            break
        head.append(token)
    names = {t.text for t in head if t.kind == "name"}
    if (
        not head
        or _points(head)
        or expand(names) & _SPACES
        or any(a.text == "=" and b.text in ("default", "delete") for a, b in pairwise(item.head))
    ):
        return
    constant = bool(names & {"constexpr", "consteval"})
    if not constant and not member:
        return
    body = _body(item)
    if not constant and foreign(item.tokens[: body if body >= 0 else None]):
        first = 0
        while item.tokens[first].text in _LABELS:
            first += 2
        yield from _without(item, first, "", offset)
        return
    place = head[0].start + offset
    yield Cut(place, place, _BOTH)
    if not constant and body >= 0:
        yield from _without(item, body, ";", offset)


def _points(head: Sequence[Token]) -> bool:
    """Whether a declaration is of a reference or pointer to an array or function: `T (&rows)[8]`, `int (*f)(int)`."""
    at = next((i for i, token in enumerate(head) if token.text == "("), len(head))
    texts = [token.text for token in head[at + 1 : at + 4]]
    return len(texts) == 3 and texts[0] in ("&", "*") and head[at + 2].kind == "name" and texts[2] == ")"


def _lambdas(tokens: Sequence[Token], offset: int) -> Iterator[Cut]:
    """Annotations of lambdas: in device code they say nothing, and they need a compiler's option."""
    behind = False
    for token in tokens:
        if behind and token.text in ("__device__", "__host__"):
            yield Cut(token.start + offset, token.end + offset, "")
        else:
            behind = token.text == "]"


def foreign(tokens: Sequence[Token], own: Collection[str] = ()) -> bool:
    """Whether it names something of the standard library, or of another one, that device code cannot have.

    `own` are namespaces that the files open themselves: such a library's own device code may name what is in them.
    """
    for first, colons, name in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if colons.text != "::" or torch_type(first.text, name.text):
            continue
        if (first.text in FOREIGN and name.text not in own) or (first.text == "std" and name.text not in STD_NAMES):
            return True
    return False


def _label(head: Sequence[Token]) -> int:
    """The index behind `public:` and the like."""
    at = 0
    while at + 1 < len(head) and head[at].text in _LABELS and head[at + 1].text == ":":
        at += 2
    if at < len(head) and head[at].text == "template":
        angles = 0
        for index in range(at + 1, len(head)):
            angles += {"<": 1, ">": -1}.get(head[index].text, 0)
            if angles == 0:
                return index + 1
    return at


def _body(item: Item) -> int:
    """The index of the token that begins the body, or the list of initialisers before it; -1 for a declaration."""
    depth, closed = 0, False
    for index, token in enumerate(item.tokens):
        if token.kind == "op" and token.text in ("(", "[", "{"):
            if token.text == "{" and depth == 0:
                return index
            depth += 1
        elif token.kind == "op" and token.text in (")", "]", "}"):
            depth -= 1
            closed = closed or (depth == 0 and token.text == ")")
        elif token.text == ":" and depth == 0 and closed:
            return index
    return -1


def _without(item: Item, first: int, mark: str, offset: int) -> Iterator[Cut]:
    """Cuts from a token to the item's end, around the directives there; `mark` stands in the first one's place."""
    start = item.tokens[first].start
    for token in item.tokens[first:]:
        if token.kind == "directive":
            if start < token.start:
                yield Cut(start + offset, token.start + offset, mark)
                mark = ""
            start = token.end
    if start < item.span.end:
        yield Cut(start + offset, item.span.end + offset, mark)


def _first_brace(tokens: Sequence[Token]) -> tuple[int, int] | None:
    """Indices of the braces of the type's body."""
    depth, opening = 0, -1
    for index, token in enumerate(tokens):
        if token.kind != "op":
            continue
        if token.text in ("(", "[", "{"):
            if token.text == "{" and depth == 0:
                opening = index
            depth += 1
        elif token.text in (")", "]", "}"):
            depth -= 1
            if depth == 0 and opening >= 0:
                return (opening, index) if index + 1 < len(tokens) else None
    return None
