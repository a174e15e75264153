"""A file's named integer constants: `#define NAME 4`, `constexpr int NAME = 4` at file scope, enumerators."""

import contextlib
import re
from collections.abc import Iterable, Mapping

from engine.arith import ArithmeticError_, evaluate_int
from engine.cuda.definitions import definition_of
from engine.cuda.kernel import Span, Unit

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*", re.ASCII)
_MAX_DEPTH = 8


def integers(unit: Unit, names: Iterable[str], given: Mapping[str, int] | None = None) -> dict[str, int]:
    """The values of those names that the file defines by plain arithmetic, over other such names perhaps.

    A name in `given` has that value, whatever the file says.
    """
    known = given or {}
    wanted = list(dict.fromkeys(names))
    texts: dict[str, str] = {}
    layer = wanted
    for _ in range(_MAX_DEPTH + 1):
        layer = [name for name in dict.fromkeys(layer) if name not in texts and name not in known]
        if not layer:
            break
        texts |= {name: unit.macros.get(name) or unit.constants.get(name) or "" for name in layer}
        layer = [word for name in layer for word in words(texts[name])]
    values: dict[str, int] = dict(known)
    # What others are defined by comes first, mostly at once: each name is looked at a bounded number of times, whatever uses what.
    for _ in range(_MAX_DEPTH + 1):
        before = len(values)
        for name in reversed(texts):
            if name not in values and texts[name]:
                with contextlib.suppress(ArithmeticError_):
                    values[name] = evaluate_int(texts[name], values)
        if len(values) == before:
            break
    return {name: values[name] for name in wanted if name in values}


def words(expression: str) -> list[str]:
    """The names in an expression, each once."""
    return list(dict.fromkeys(_WORD.findall(expression)))


def value_span(unit: Unit, name: str) -> Span | None:
    """Where the value of a macro or file-scope constant stands; None where it is not defined there exactly once."""
    kind = "macro" if name in unit.macros else "constant" if name in unit.constants else ""
    return definition_of(unit, name, kind)[0] if kind else None
