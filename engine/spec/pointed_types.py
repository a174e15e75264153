"""What a pointer to `void` points to, as the kernel's own casts and vectors say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.cuda.declarations import variables
from engine.cuda.parse import text, walk
from engine.cuda.records import split_arguments
from engine.errors import SpecError
from engine.spec.dtypes import DType, parse_dtype

if TYPE_CHECKING:
    from tree_sitter import Node

    from engine.spec.drafted_type import ParameterTypes

_CASTS = ("static_cast", "reinterpret_cast")
_QUALIFIERS = re.compile(r"\b(?:const|volatile|typename|__restrict__)\b")
_POINTER = re.compile(r"(.+?)\*\s*(?:const|__restrict__|\s)*$", re.S)
_MAX_STEPS = 8  # names for names; also ends a cycle


def pointed_type(types: ParameterTypes, body: Node, name: str) -> DType | None:
    """The type of the elements behind a pointer, a parameter or a field by its full name; None where it is not one alone.

    A kernel casts the pointer, or hands it to a method of a vector, `Vec<float, 4> v; v.load(x, i)`: then it is the vector's.
    """
    local = _local_names(body)
    found: dict[DType, DType] = {}  # by what they are, whatever their names
    for written in _seen(body, re.sub(r"\s+", "", name)):
        plain = written
        for _ in range(_MAX_STEPS):
            plain = " ".join(_QUALIFIERS.sub(" ", plain).split())
            following = local.get(plain) or types.plain(plain)
            if following == plain:
                break
            plain = following
        dtype = _element(types, plain)
        if dtype is None:
            return None  # it is seen as something that no number stands for
        found.setdefault(replace(dtype, name=""), dtype)
    return next(iter(found.values())) if len(found) == 1 else None


def _element(types: ParameterTypes, plain: str) -> DType | None:
    """The number type of a type, or of the elements of a vector: `float` for `float4` and for `Vec<float, 4>`."""
    inner = split_arguments(plain.partition("<")[2].rstrip("> "))[:1] if "<" in plain else [plain]
    try:
        dtype = parse_dtype(types.plain(inner[0])) if inner else None
        if dtype is not None and dtype.lanes > 1:
            dtype = parse_dtype(dtype.lane)
    except SpecError:
        return None
    # Bytes say nothing: they are read as something else later.
    return dtype if dtype is not None and dtype.kind in ("float", "int") and dtype.itemsize > 1 else None


def _seen(body: Node, name: str) -> Iterator[str]:
    """The types, as written, that the pointer is cast to or read through."""
    declared = {v.name: v.type for n in walk(body) if n.type == "declaration" for v in variables(n)}
    own = re.compile(rf"(?:&)?{re.escape(name)}(?![\w(])(?!\.)")
    for node in walk(body):
        if node.type == "cast_expression":
            value, kind = node.child_by_field_name("value"), node.child_by_field_name("type")
            if value is not None and kind is not None and own.match(_squeezed(value).lstrip("(")):
                yield from _pointed(text(kind))
        if node.type != "call_expression":
            continue
        function, given = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        passed = [_squeezed(n) for n in given.named_children] if given is not None else []
        if function is None or not any(own.match(each) for each in passed):
            continue
        if function.type == "template_function":
            called, kind = function.child_by_field_name("name"), function.child_by_field_name("arguments")
            if called is not None and kind is not None and text(called) in _CASTS:
                yield from _pointed(text(kind).strip()[1:-1])
        elif function.type == "field_expression":
            owner = function.child_by_field_name("argument")
            kind_of = declared.get(re.split(r"[\[.(]", text(owner))[0]) if owner is not None else None
            if kind_of is not None:
                yield kind_of


def _pointed(kind: str) -> Iterator[str]:
    match = _POINTER.fullmatch(kind.strip())
    if match is not None and "*" not in match[1]:
        yield match[1]


def _local_names(body: Node) -> dict[str, str]:
    """The other names for types that a function defines for itself."""
    found: dict[str, str] = {}
    for node in walk(body):
        kind = node.child_by_field_name("type")
        name = node.child_by_field_name("name") or node.child_by_field_name("declarator")
        if node.type in ("alias_declaration", "type_definition") and kind is not None and name is not None:
            found.setdefault(text(name), text(kind))
    return found


def _squeezed(node: Node) -> str:
    return re.sub(r"\s+", "", text(node))
