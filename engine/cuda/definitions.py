"""What declarations and definitions say: names with the nodes of their values, and where those stand."""

import re
from collections.abc import Iterator
from functools import lru_cache

from tree_sitter import Node

from engine.cuda.kernel import Span, Unit
from engine.cuda.parse import parse, span, text, walk

_WRAPPED = b"auto optiml_value = "


def declarators(declaration: Node) -> Iterator[tuple[str, Node | None]]:
    """(name, value) of what a declaration declares."""
    for declarator in declaration.children_by_field_name("declarator"):
        if declarator.type == "init_declarator":
            name, value = declarator.child_by_field_name("declarator"), declarator.child_by_field_name("value")
            if name is not None:
                yield text(name).lstrip("&* "), value
        elif declarator.type == "identifier":
            yield text(declarator), None
        elif declarator.type == "function_declarator":
            # `dim3 grid(gx, gy);` with plain names reads like a function's declaration.
            name, parameters = (
                declarator.child_by_field_name("declarator"),
                declarator.child_by_field_name("parameters"),
            )
            if name is not None and parameters is not None:
                parsed = expression(f"dim3{text(parameters)}")
                if parsed is not None and parsed.type == "call_expression":
                    yield text(name), parsed


@lru_cache(maxsize=1024)
def expression(text: str) -> Node | None:
    """The node of an expression given as text; None where the text is none."""
    root = parse(_WRAPPED + text.encode() + b";").root
    if root.has_error or not root.named_children:
        return None
    declaration = root.named_children[0]
    if len(root.named_children) != 1 or declaration.type != "declaration":
        return None
    return next((value for _, value in declarators(declaration)), None)


def definition_of(unit: Unit, name: str, kind: str) -> tuple[Span | None, Span]:
    """The span of the value of a file-scope constant or macro, if it is defined exactly once, and of its definition."""
    found = _definitions(unit.data, unit.path).get((kind, name), [])
    if len(found) == 1:
        return found[0]
    return None, found[0][1] if found else Span(0, 0)


@lru_cache(maxsize=64)
def _definitions(data: bytes, path: str) -> dict[tuple[str, str], list[tuple[Span, Span]]]:
    """By kind and name, the spans of the value and of the whole: rules ask for hundreds of names of one file."""
    found: dict[tuple[str, str], list[tuple[Span, Span]]] = {}
    for node in walk(parse(data, path).root):
        if node.type == "preproc_def":
            named, value = node.child_by_field_name("name"), node.child_by_field_name("value")
            if named is not None and value is not None:
                length = len(re.split(r"//|/\*", text(value), maxsplit=1)[0].rstrip().encode())
                spans = Span(value.start_byte, value.start_byte + length), span(node)
                found.setdefault(("macro", text(named)), []).append(spans)
        if node.type == "declaration" and node.parent is not None and node.parent.type != "compound_statement":
            for declared, value in declarators(node):
                if value is not None:
                    found.setdefault(("constant", declared), []).append((span(value), span(node)))
    return found
