"""What declarations declare: one reading of declarators, for kernels and for what they use."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from engine.cuda.syntax import text, walk

Shape = Literal["scalar", "pointer", "array", "reference"]
_SHAPES: dict[str, Shape] = {
    "identifier": "scalar",
    "pointer_declarator": "pointer",
    "array_declarator": "array",
    "reference_declarator": "reference",
}


@dataclass(frozen=True)
class Declared:
    """One declared local variable. `type` is as written, with const; `scope` is the statement that ends its life."""

    name: str
    type: str
    shape: Shape
    value: Node | None
    node: Node  # the declaration
    scope: Node
    alone: bool  # the only variable of its declaration


def variables(node: Node) -> Iterator[Declared]:
    """The variables of a declaration, in order of text."""
    parts = node.children_by_field_name("declarator")
    if not parts:
        return
    start = node.start_byte
    written_type = (node.text or b"")[: parts[0].start_byte - start].decode("utf-8", "replace").strip()
    scope = node.parent or node
    for part in parts:
        value = part.child_by_field_name("value") if part.type == "init_declarator" else None
        target = part.child_by_field_name("declarator") if part.type == "init_declarator" else part
        shape = _SHAPES.get(target.type, "array") if target is not None else "array"
        name = ""
        for n in walk(target) if target is not None else ():
            if n.type == "identifier":
                name = text(n)
                break
        if name:
            yield Declared(name, written_type, shape, value, node, scope, len(parts) == 1)


def declarators(declaration: Node) -> list[tuple[str, Node | None]]:
    """Name and initialiser of each variable in a declaration; the name is "" for pointers and arrays."""
    return [(v.name if v.shape == "scalar" else "", v.value) for v in variables(declaration)]


def declared_type(declaration: Node) -> str:
    """The type of a declaration as written, without qualifiers such as const."""
    node = declaration.child_by_field_name("type")
    return text(node) if node is not None else ""
