"""Names of a file whose meaning depends on the compiler that reads it: they are defined under `#if` of a compiler's own macros."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import lru_cache

from engine.cuda.items import Token, directive_parts, items_of, tokens_of

COMPILER_MACROS = r"__CUDACC\w*|__CUDA_ARCH\w*|__NVCC__|__CUDA_\w*VER\w*|CUDART_VERSION|NDEBUG|__GNUC__|__clang__|_?_MSC_VER|__cplusplus"
_ASKS = re.compile(rf"\b(?:{COMPILER_MACROS})\b")
_IF = ("if", "ifdef", "ifndef")


def names_by_compiler(texts: Iterable[str], kernels: Collection[str]) -> frozenset[str]:
    """Macros, functions, types and variables that NVRTC, nvcc and the CPU's compiler may define differently.

    Conditions that enclose one of `kernels` do not count: what stands beside a kernel is selected with it.
    """
    ours = frozenset(kernels)
    return frozenset().union(*(_of_text(text, ours) for text in texts))


@lru_cache(maxsize=64)
def _of_text(text: str, kernels: frozenset[str]) -> frozenset[str]:
    if not _ASKS.search(text):
        return frozenset()
    found: set[str] = set()
    tokens, items = tokens_of(text), items_of(text)
    ours = [item.span for item in items if set(item.defines) & kernels]
    for start, end in _ranges(tokens):
        if any(start <= span.start and span.end <= end for span in ours):
            continue
        for token in tokens:
            if start <= token.start < end and token.kind == "directive":
                word, rest = directive_parts(token.text)
                if word == "define" and (name := re.match(r"\w+", rest)):
                    found.add(name[0])
        found.update(name for item in items if start <= item.span.start < end for name in item.defines)
    return frozenset(found)


def _ranges(tokens: Iterable[Token]) -> Iterator[tuple[int, int]]:
    """Where conditions that name a compiler's macro begin and end, in characters."""
    opened: list[tuple[int, bool]] = []
    for token in tokens:
        if token.kind != "directive":
            continue
        word, rest = directive_parts(token.text)
        asks = _ASKS.search(rest) is not None
        if word in _IF:
            opened.append((token.start, asks))
        elif word in ("elif", "elifdef", "elifndef") and opened:
            opened[-1] = (opened[-1][0], opened[-1][1] or asks)
        elif word == "endif" and opened:
            start, dependent = opened.pop()
            if dependent:
                yield start, token.end
