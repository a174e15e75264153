"""Function-like macros in index expressions: what a call of one stands for, as an expression of its own."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from engine.rules.common import called, children, text, walk, walk_directives

if TYPE_CHECKING:
    from tree_sitter import Node

_WORD = re.compile(r"[A-Za-z_]\w*")
_OTHER = re.compile(r"[#;{}=?\\]|//|/\*")
_LONGEST = 2000


@lru_cache(maxsize=16)
def definitions(data: bytes, path: str) -> dict[str, tuple[tuple[str, ...], str]]:
    """The function-like macros of a file that are defined once: parameters and replacement text by name."""
    from engine.source.parse import parse

    found: dict[str, tuple[tuple[str, ...], str]] = {}
    twice = set()
    for node in walk_directives(parse(data, path).root):
        if node.type != "preproc_function_def":
            continue
        name, given, value = (node.child_by_field_name(f) for f in ("name", "parameters", "value"))
        if name is None or given is None or value is None:
            continue
        if text(name) in found:
            twice.add(text(name))
        found[text(name)] = tuple(text(c) for c in children(given)), text(value).strip()
    return {name: macro for name, macro in found.items() if name not in twice}


def expansion(call: Node, data: bytes, path: str) -> Node | None:
    """The expression that a call of a function-like macro of the file stands for, in a tree of its own.

    None where the call is none of such a macro, or where the replacement is no plain expression.
    """
    macro = definitions(data, path).get(called(call))
    arguments = call.child_by_field_name("arguments")
    if macro is None or arguments is None:
        return None
    parameters, body = macro
    given = [text(c) for c in children(arguments)]
    if len(given) != len(parameters) or _OTHER.search(body) or any(_OTHER.search(g) for g in given):
        return None
    values = dict(zip(parameters, given, strict=True))
    expanded = _WORD.sub(lambda m: values.get(m[0], m[0]), body)
    return _expression(expanded) if len(expanded) <= _LONGEST else None


@lru_cache(maxsize=256)
def _expression(written: str) -> Node | None:
    from engine.source.parse import parse

    unit = parse(f"const int value = {written};\n".encode())
    if unit.errors:
        return None
    return next((n.child_by_field_name("value") for n in walk(unit.root) if n.type == "init_declarator"), None)
