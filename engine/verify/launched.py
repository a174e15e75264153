"""A host function without what only launches some kernels: their figures, and the variables that serve these alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from engine.cuda.items import Item, Token
from engine.cuda.plain_arithmetic import plain_arithmetic
from engine.spec.kernel_spec import KernelSpec

_INTEGERS = frozenset(
    {"int", "unsigned", "long", "short", "size_t", "dim3", "auto", "const", "constexpr", "static", "std", "::",
     "uint32_t", "int32_t", "uint64_t", "int64_t", "uint", "__restrict__"}
)  # fmt: skip


def unlaunched(item: Item, kernels: set[str]) -> list[Token]:
    """A host function's tokens without the figures of these kernels' launches, and without what is declared only for these."""
    tokens = list(item.tokens)
    inside = _launch_figures(tokens, kernels)
    statements = list(_statements(tokens))
    declared: dict[str, set[int]] = {}
    for a, b in statements:
        if name := _declares(tokens[a:b]):
            declared[name] = set(range(a, b))
    for a, b in (_guarded(tokens, *statement) for statement in statements):
        # What an `else` follows decides whether other code runs.
        if (name := _assigns(tokens[a:b])) in declared and [t.text for t in tokens[b : b + 1]] != ["else"]:
            declared[name] |= set(range(a, b))
    dropped: set[str] = set(declared)
    while True:
        # A name used by anything that stays is no launch's alone.
        gone = {i for name in dropped for i in declared[name]} | inside
        used = {t.text for i, t in enumerate(tokens) if i not in gone}
        keep = {name for name in dropped if name in used}
        if not keep:
            break
        dropped -= keep
    gone = {i for name in dropped for i in declared[name]} | inside
    return [t for i, t in enumerate(tokens) if i not in gone]


def uninstantiated(tokens: Sequence[Token], spec: KernelSpec) -> list[Token]:
    """The tokens without the template arguments of the instances that the spec names: `k<float, SIZE><<<`."""
    kernels = {
        (s.kernel.rpartition("::")[2], re.sub(r"\s+", "", s.template_args)) for s in spec.steps if s.template_args
    }
    names = {name for name, _ in kernels}
    dropped: set[int] = set()
    for i, token in enumerate(tokens[:-1]):
        if token.text not in names or tokens[i + 1].text != "<":
            continue
        depth = 0
        for j in range(i + 1, len(tokens)):
            depth += (tokens[j].text == "<") - (tokens[j].text == ">")
            if depth == 0:
                arguments = "".join(t.text for t in tokens[i + 2 : j])
                if (token.text, arguments) in kernels and counts(tokens[j + 1 : j + 4], ("<", "<", "<")):
                    dropped.update(range(i + 1, j + 1))
                break
    return [t for i, t in enumerate(tokens) if i not in dropped]


def _launched(tokens: Sequence[Token], at: int) -> str:
    """The plain name of the kernel whose `<<<` stands at a place; "" where it is no name."""
    depth = 0
    for token in reversed(tokens[:at]):
        depth += (token.text == ">") - (token.text == "<")
        if depth == 0 and token.text != "<":
            return token.text if token.kind == "name" else ""
    return ""


def _launch_figures(tokens: Sequence[Token], kernels: set[str]) -> set[int]:
    inside: set[int] = set()
    i = 0
    while i + 2 < len(tokens):
        if tokens[i].text == "<" and counts(tokens[i : i + 3], ("<", "<", "<")):
            closing = (j for j in range(i + 3, len(tokens) - 2) if tokens[j].text == ">")
            end = next((j for j in closing if counts(tokens[j : j + 3], (">", ">", ">"))), None)
            figures = tokens[i + 3 : end] if end is not None else ()
            if end is not None and _launched(tokens, i) in kernels and plain_arithmetic(figures):
                # A stream, the fourth figure, decides the order of work and stays.
                commas, depth, last = 0, 0, end
                for j in range(i + 3, end):
                    depth += (tokens[j].text in "([{") - (tokens[j].text in ")]}")
                    commas += tokens[j].text == "," and depth == 0
                    if commas == 3:
                        last = j
                        break
                inside.update(range(i + 3, last))
                i = end
        i += 1
    return inside


def _statements(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    begin, depth = 0, 0
    for i, token in enumerate(tokens):
        if token.kind == "directive":
            begin = i + 1
        elif token.kind == "op":
            depth += (token.text in "([") - (token.text in ")]")
            if token.text in "{}":
                begin = i + 1
            elif token.text == ";" and depth == 0:
                yield begin, i + 1
                begin = i + 1


def _declares(statement: Sequence[Token]) -> str | None:
    """The name that a statement declares, if it is a declaration of one integer or dim3 by arithmetic."""
    i = 0
    while i < len(statement) and statement[i].text in _INTEGERS:
        i += 1
    if i == 0 or i + 1 >= len(statement) or statement[i].kind != "name" or statement[i + 1].text not in ("=", "(", "{"):
        return None
    rest = statement[i + 2 : -1] if statement[i + 1].text == "=" else statement[i + 1 : -1]
    return statement[i].text if plain_arithmetic(rest) else None


def _guarded(tokens: Sequence[Token], begin: int, end: int) -> tuple[int, int]:
    """Where a statement begins and ends with the `if (…) {` that it alone stands in, if it does."""
    around = [token.text for token in (*tokens[max(0, begin - 2) : begin], *tokens[end : end + 1])]
    if around != [")", "{", "}"]:
        return begin, end
    depth, at = 0, begin - 2
    while at > 0 and (depth := depth + (tokens[at].text == ")") - (tokens[at].text == "(")):
        at -= 1
    at -= 1
    own = at > 0 and tokens[at].text == "if" and tokens[at - 1].text in ";{}"
    return (at, end + 1) if own else (begin, end)


def _assigns(statement: Sequence[Token]) -> str:
    """The name that a statement gives another number by arithmetic, under a condition of arithmetic or none; "" of others."""
    texts = [token.text for token in statement]
    end, at = -1, 0
    if texts[:2] == ["if", "("]:
        depth, at = 1, 2
        while depth and at < len(texts):
            depth += (texts[at] == "(") - (texts[at] == ")")
            at += 1
        if texts[at : at + 1] == ["{"]:
            end, at = -2, at + 1
    if texts[at + 1 : at + 2] != ["="] or statement[at].kind != "name":
        return ""
    condition, value = statement[2:at] if at else (), statement[at + 2 : end]
    return texts[at] if plain_arithmetic([t for t in condition if t.text != "{"]) and plain_arithmetic(value) else ""


def counts(tokens: Sequence[Token], pattern: tuple[str, ...]) -> int:
    """How often tokens stand side by side without a space between them."""
    size, first = len(pattern), pattern[0]
    begins = [i for i in range(len(tokens) - size + 1) if tokens[i].text == first]
    return sum(
        all(tokens[i + k].text == pattern[k] for k in range(size))
        and tokens[i + size - 1].end - tokens[i].start == size
        for i in begins
    )
