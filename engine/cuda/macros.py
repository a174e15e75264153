"""The macros of a file: which text they stand for, in whatever branch of the preprocessor, and what a call expands to."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from tree_sitter import Node

from engine.cuda.definitions import expression
from engine.cuda.parse import parse, text

_WORD = re.compile(r"[A-Za-z_]\w*")
_NO_EXPRESSION = re.compile(r"[#;{}=?\\]|//|/\*")
_LONGEST = 2000
_DEFINE = re.compile(rb"#[ \t]*define\b")


@lru_cache(maxsize=256)
def function_macros(data: bytes, path: str) -> Mapping[str, tuple[tuple[tuple[str, ...], str], ...]]:
    """Every definition of each function-like macro: the names of its parameters, and the text it stands for."""
    found: dict[str, list[tuple[tuple[str, ...], str]]] = {}
    for node in _definitions(data, path, "preproc_function_def"):
        name, parameters, value = (node.child_by_field_name(f) for f in ("name", "parameters", "value"))
        if name is not None and parameters is not None:
            names = tuple(text(c) for c in parameters.named_children if c.type != "comment")
            written = re.split(r"//|/\*", text(value), maxsplit=1)[0] if value is not None else ""
            found.setdefault(text(name), []).append((names, written.replace("\\\n", " ").strip()))
    return {name: tuple(values) for name, values in found.items()}


@lru_cache(maxsize=256)
def object_macros(data: bytes, path: str) -> Mapping[str, frozenset[str]]:
    """Every text that an object-like macro is defined as, in whatever branch."""
    found: dict[str, set[str]] = {}
    for node in _definitions(data, path, "preproc_def"):
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is not None:
            written = re.split(r"//|/\*", text(value), maxsplit=1)[0] if value is not None else ""
            found.setdefault(text(name), set()).add(" ".join(written.split()))
    return {name: frozenset(texts) for name, texts in found.items()}


def _definitions(data: bytes, path: str, kind: str) -> Iterator[Node]:
    """The definitions of macros in order of text. Going through all nodes for them took a tenth of what the rules take."""
    matches = list(_DEFINE.finditer(data))
    root = parse(data, path).root if matches else None
    for match in matches if root is not None else ():
        node = root.descendant_for_byte_range(match.start(), match.end()) if root is not None else None
        while node is not None and node.start_byte == match.start():
            if node.type == kind:
                yield node
                break
            node = node.parent


def parenthesised(name: str, text: str) -> bool:
    """Whether every use of a macro's parameter stands alone in parentheses or as a whole argument."""
    uses = list(re.finditer(rf"(?<![\w.]){re.escape(name)}(?!\w)", text))
    return all(
        text[: use.start()].rstrip()[-1:] in ("(", ",") and text[use.end() :].lstrip()[:1] in (")", ",") for use in uses
    )


def expansion(name: str, arguments: Iterable[str], data: bytes, path: str) -> Node | None:
    """The expression that a call of a function-like macro of the file stands for, in a tree of its own.

    None where no such macro is defined, where it is defined more than once, or where the replacement is no plain expression.
    """
    bodies, given = function_macros(data, path).get(name, ()), list(arguments)
    if len(bodies) != 1 or len(bodies[0][0]) != len(given) or not bodies[0][1]:
        return None
    parameters, body = bodies[0]
    if any(_NO_EXPRESSION.search(written) for written in (body, *given)):
        return None
    values = dict(zip(parameters, given, strict=True))
    expanded = _WORD.sub(lambda m: values.get(m[0], m[0]), body)
    return expression(expanded) if len(expanded) <= _LONGEST else None
