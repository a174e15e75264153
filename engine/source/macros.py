"""The macros of a file as text: which stand for what, in whatever branch of the preprocessor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from engine.source.parse import parse, text_of, walk


@lru_cache(maxsize=256)
def function_macros(data: bytes, path: str) -> Mapping[str, tuple[tuple[tuple[str, ...], str], ...]]:
    """Every definition of each function-like macro: the names of its parameters, and the text it stands for."""
    found: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    if b"#" in data:
        for node in walk(parse(data, path).root):
            if node.type == "preproc_function_def":
                name, parameters, value = (node.child_by_field_name(f) for f in ("name", "parameters", "value"))
                if name is not None and parameters is not None and value is not None:
                    names = tuple(text_of(c) for c in parameters.named_children)
                    text = re.split(r"//|/\*", text_of(value), maxsplit=1)[0].replace("\\\n", " ").strip()
                    found.setdefault(text_of(name), []).append((names, text))
    return {name: tuple(values) for name, values in found.items()}


@lru_cache(maxsize=256)
def object_macros(data: bytes, path: str) -> Mapping[str, frozenset[str]]:
    """Every text that an object-like macro is defined as, in whatever branch."""
    found: dict[str, set[str]] = {}
    for node in walk(parse(data, path).root) if b"#" in data else ():
        if node.type == "preproc_def":
            name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if name is not None:
                text = re.split(r"//|/\*", text_of(value), maxsplit=1)[0] if value is not None else ""
                found.setdefault(text_of(name), set()).add(" ".join(text.split()))
    return {name: frozenset(texts) for name, texts in found.items()}


def parenthesised(name: str, text: str) -> bool:
    """Whether every use of a macro's parameter stands alone in parentheses or as a whole argument."""
    uses = list(re.finditer(rf"(?<![\w.]){re.escape(name)}(?!\w)", text))
    return all(
        text[: use.start()].rstrip()[-1:] in ("(", ",") and text[use.end() :].lstrip()[:1] in (")", ",") for use in uses
    )
