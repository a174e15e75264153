"""Which classes of a program have certain members."""

import re
from collections.abc import Collection, Iterator
from functools import lru_cache

from tree_sitter import Node

from engine.cuda.parse import parse, text, walk
from engine.model import Program

_CLASSES = ("struct_specifier", "class_specifier", "union_specifier")
_NAMES = ("field_identifier", "identifier")


def classes_with(program: Program, members: Collection[str], missing: int = 0) -> list[tuple[str, bool]]:
    """(name with its namespaces, whether it is a template) of each class whose body declares these members, each once.

    Those with all of them come first; up to `missing` may be those of another class that stands in the same place.
    """
    found: dict[str, tuple[int, bool]] = {}
    for path, data in program.files.items():
        if path.endswith(".toml") or not any(member.encode() in data for member in members):
            continue
        for name, own, template in _classes(data, path):
            if (without := len({*members} - own)) <= missing:
                found.setdefault(name, (without, template))
    return [(name, template) for name, (_, template) in sorted(found.items(), key=lambda each: each[1][0])]


def members_used(body: str, names: Collection[str]) -> set[str]:
    """The members that a text takes of these variables: of `p`, `x` where it says `p.x`, `p->x` or `p[i].x`."""
    used: set[str] = set()
    for name in names:
        pattern = rf"(?<![\w.]){re.escape(name)}\s*(?:\[[^\]]*\])?\s*(?:\.|->)\s*(?:template\s+)?([A-Za-z_]\w*)"
        used.update(re.findall(pattern, body))
    return used


@lru_cache(maxsize=64)
def _classes(data: bytes, path: str) -> tuple[tuple[str, frozenset[str], bool], ...]:
    found = []
    for node in walk(parse(data, path).root):
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if node.type in _CLASSES and name is not None and body is not None and name.type == "type_identifier":
            template = node.parent is not None and node.parent.type == "template_declaration"
            found.append(("::".join([*_around(node), text(name)]), frozenset(_declared(body)), template))
    return tuple(found)


def _declared(body: Node) -> Iterator[str]:
    for member in body.named_children:
        inner = member.named_children[-1] if member.type == "template_declaration" and member.named_children else member
        for declarator in inner.children_by_field_name("declarator"):
            named = next((n for n in walk(declarator) if n.type in _NAMES), None)
            if named is not None:
                yield text(named)


def _around(node: Node) -> list[str]:
    """The namespaces and classes around a class, outermost first."""
    names: list[str] = []
    above = node.parent
    while above is not None:
        name = above.child_by_field_name("name")
        if above.type in ("namespace_definition", *_CLASSES) and name is not None:
            names.insert(0, text(name))
        above = above.parent
    return names
