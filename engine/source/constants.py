"""A file's named integer constants: `#define NAME 4`, `constexpr int NAME = 4` at file scope, enumerators."""

from __future__ import annotations

import re
from collections.abc import Iterable

from engine.arith import ArithmeticError_, evaluate_int
from engine.source.model import Span, Unit
from engine.source.scope import definition_of

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*", re.ASCII)
_MAX_DEPTH = 8


def integers(unit: Unit, names: Iterable[str]) -> dict[str, int]:
    """The values of those names that the file defines by plain arithmetic, over other such names perhaps."""
    found = {name: _value(unit, name, 0) for name in dict.fromkeys(names)}
    return {name: value for name, value in found.items() if value is not None}


def words(expression: str) -> list[str]:
    """The names in an expression, each once."""
    return list(dict.fromkeys(_WORD.findall(expression)))


def value_span(unit: Unit, name: str) -> Span | None:
    """Where the value of a macro or file-scope constant stands; None where it is not defined there exactly once."""
    kind = "macro" if name in unit.macros else "constant" if name in unit.constants else ""
    return definition_of(unit, name, kind)[0] if kind else None


def _value(unit: Unit, name: str, depth: int) -> int | None:
    text = unit.macros.get(name) or unit.constants.get(name)
    if not text or depth > _MAX_DEPTH:
        return None
    inner = {word: value for word in words(text) if (value := _value(unit, word, depth + 1)) is not None}
    try:
        return evaluate_int(text, inner)
    except ArithmeticError_:
        return None
