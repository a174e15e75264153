"""The enumerations of a program: their values, and the type that holds one."""

import re
from collections.abc import Iterator

from tree_sitter import Node

from engine.arith import ArithmeticError_, evaluate_int
from engine.cuda.parse import parse, text, walk
from engine.model import Program

_UNDERLYING = "int"  # of an enumeration that names none; CUDA's compilers take four bytes


def underlying(node: Node) -> str:
    """The type that holds a value of an `enum_specifier`."""
    base = node.child_by_field_name("base")
    return text(base) if base is not None else _UNDERLYING


def enumerators(program: Program, kind: str) -> list[str]:
    """The values of an enumeration of the program, as they are written behind its name; none where it is not seen."""
    return [f"{kind}::{text(each.children[0])}" for each in _listed(program, kind)]


def first_value(program: Program, kind: str) -> tuple[str, int] | None:
    """The first enumerator of an enumeration with its value; None where it is not seen, or its value is no plain number."""
    for each in _listed(program, kind):
        value = each.child_by_field_name("value")
        try:
            return text(each.children[0]), evaluate_int(text(value), {}) if value is not None else 0
        except ArithmeticError_:
            return None
    return None


def holding(program: Program, kind: str) -> str:
    """The type that holds a value of an enumeration of the program; "" where the name is none."""
    listed = _listed(program, kind)
    above = listed[0].parent.parent if listed and listed[0].parent is not None else None
    return underlying(above) if above is not None else ""


def _listed(program: Program, kind: str) -> list[Node]:
    name = kind.split()[-1].rpartition("::")[2] if kind.split() else ""
    for path, data in program.files.items():
        if path.endswith(".toml") or not name or name.encode() not in data:
            continue
        alone = re.search(
            rb"\benum\s+(?:class\s+|struct\s+)?%s\s*(?::[\w\s:]+)?\{[^{}]*\}" % re.escape(name.encode()), data
        )
        roots = [parse(data, path).root]
        if alone is not None:  # where the grammar loses what is around it
            roots.append(parse(alone[0] + b";").root)
        for node in (each for root in roots for each in _specifiers(root, name)):
            body = node.child_by_field_name("body")
            if body is not None:
                return [each for each in body.named_children if each.type == "enumerator"]
    return []


def _specifiers(root: Node, name: str) -> Iterator[Node]:
    for node in walk(root):
        if node.type != "enum_specifier":
            continue
        named, above = node.child_by_field_name("name"), node.parent
        if named is None and above is not None and above.type == "type_definition":
            named = above.child_by_field_name("declarator")
        if named is not None and text(named) == name:
            yield node
