"""New constants: allowed where their text shows numbers that nothing can change.

Memory of the device outlives a launch, and an edit could keep results in it. A table that is given its numbers where it is declared,
and whose elements are only ever operands of arithmetic, keeps none: no host code that could fill it may be added, and nothing has
its address. An operator that the file defines could take one by reference. An integer constant of the host (`static const int`) is
initialised by arithmetic on numbers and other constants, so that no code runs before `main`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from engine.cuda.items import Item, Token

_WORDS = frozenset(
    {"__constant__", "const", "static", "float", "double", "int", "unsigned", "signed", "long", "short", "char"}
)
_NUMBERS = frozenset("{},+-=")
_ARITHMETIC = frozenset("*/+-")
_BEFORE, _BEHIND = _ARITHMETIC | {"(", ",", "=", "return"}, _ARITHMETIC | {")", ",", ";"}
_INTEGERS = frozenset(
    {
        "static",
        "const",
        "bool",
        "char",
        "short",
        "int",
        "long",
        "unsigned",
        "signed",
        "size_t",
        "int32_t",
        "uint32_t",
        "int64_t",
        "uint64_t",
    }
)
_OF_INTEGERS = frozenset("+-*/%<>()")
_DEFINED = re.compile(r"#\s*define\s+(\w+)")
_MACRO = re.compile(r"#\s*define\s+(\w+)\(")


def is_constant_table(item: Item, others: Sequence[Item]) -> bool:
    """Whether an item declares one, which the other items of its file only read."""
    if item.kind != "variable" or len(item.defines) != 1 or "__constant__" not in {t.text for t in item.head}:
        return False
    (name,) = item.defines
    texts = [t.text for t in item.tokens]
    if "=" not in texts or texts[-1] != ";" or any(t.kind in ("string", "directive") for t in item.tokens):
        return False
    at = texts.index("=")
    declared = [t for t in item.tokens[:at] if t.text not in _WORDS]
    values = item.tokens[at:-1]
    macros = {m[1] for other in others for t in other.tokens if t.kind == "directive" and (m := _MACRO.match(t.text))}
    return (
        _declares(declared, name)
        and all(t.kind == "number" or t.text in _NUMBERS for t in values)
        and not any(t.text == "operator" for other in others for t in other.tokens)
        and all(_only_read(other.tokens, name, len(declared) > 1, macros) for other in others if other is not item)
    )


def is_integer_constant(item: Item, others: Sequence[Item]) -> bool:
    """Whether an item declares one, whose value the compiler works out."""
    if item.kind != "variable" or len(item.defines) != 1:
        return False
    (name,) = item.defines
    texts = [t.text for t in item.tokens]
    if texts.count("=") != 1 or texts[-1] != ";" or "const" not in texts:
        return False
    at = texts.index("=")
    known = {
        each.defines[0]
        for each in others
        if each.kind == "variable" and len(each.defines) == 1 and {"const", "constexpr"} & {t.text for t in each.head}
    }
    macros = {m[1] for other in others for t in other.tokens if t.kind == "directive" and (m := _DEFINED.match(t.text))}
    words = {t.text for t in item.tokens if t.kind == "name"}
    return (
        not words & macros
        and set(texts[:at]) - {name} <= _INTEGERS
        and all(
            t.kind == "number" or t.text in _OF_INTEGERS or t.text in known - {name} for t in item.tokens[at + 1 : -1]
        )
        and not any(t.text in known and after.text == "(" for t, after in pairwise(item.tokens[at:]))
    )


def _declares(tokens: Sequence[Token], name: str) -> bool:
    """`NAME`, or `NAME[4]`."""
    texts = [t.text for t in tokens]
    return texts == [name] or (
        len(texts) == 4 and texts[:2] == [name, "["] and tokens[2].kind == "number" and texts[3] == "]"
    )


def _only_read(tokens: Sequence[Token], name: str, array: bool, macros: set[str]) -> bool:
    """Whether each use of a name is an operand of `*`, `/`, `+` or `-`, which makes another value of it, and in no macro's argument."""
    texts = [t.text for t in tokens]
    if any(token.kind == "directive" and re.search(rf"\b{re.escape(name)}\b", token.text) for token in tokens):
        return False
    if name in texts and macros & set(texts):
        return False
    for at, token in enumerate(tokens):
        if token.text != name:
            continue
        if (texts[at + 1 : at + 2] == ["["]) is not array:
            return False  # a pointer to the first element
        end = _behind(texts, at + 1) if array else at + 1
        two_before, before = ["", "", *texts[:at]][-2:]
        behind, two_behind = [*texts[end:], "", ""][:2]
        if before not in _BEFORE or behind not in _BEHIND or not {before, behind} & _ARITHMETIC:
            return False
        if (before in _ARITHMETIC and two_before in _ARITHMETIC) or (
            behind in _ARITHMETIC and two_behind in _ARITHMETIC | {"="}
        ):
            return False  # `++`, `--` and `+=` are two tokens
    return True


def _behind(texts: Sequence[str], at: int) -> int:
    depth = 0
    for place in range(at, len(texts)):
        depth += {"[": 1, "]": -1}.get(texts[place], 0)
        if depth == 0:
            return place + 1
    return len(texts)
