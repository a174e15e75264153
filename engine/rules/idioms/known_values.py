"""What locals stand for, over the kernel's parameters."""

import re
from collections import defaultdict

from engine.cuda.questions import ArithmeticError_, declarators, evaluate, written
from engine.cuda.syntax import compact, is_integer_type, strip, text, walk
from engine.rewrite import Node, Site, once

_MAX_SUBSTITUTIONS = 8


def definition(site: Site, name: str) -> Node | None:
    """The initialiser of a local that is declared once in the kernel and never changed."""
    found = _declared(site).get(name, [])
    return found[0] if len(found) == 1 and name not in written(site.body) else None


@once
def _declared(site: Site) -> dict[str, list[Node | None]]:
    """The initialisers of each local, None for a declaration without one or of an array, pointer or reference."""
    found: defaultdict[str, list[Node | None]] = defaultdict(list)
    for node in walk(site.body):
        if node.type == "declaration":
            plain = declarators(node)
            for name, value in plain:
                found[name].append(value)
            others = {text(n) for n in walk(node) if n.type == "identifier" and _declares(n)}
            for name in others - {name for name, _ in plain}:
                found[name].append(None)
    return found


def _declares(node: Node) -> bool:
    parent = node.parent
    return parent is not None and parent.type in ("array_declarator", "pointer_declarator", "reference_declarator")


def in_parameters(site: Site, expression: Node) -> str | None:
    """The integer expression in terms of the kernel's scalar parameters, fields of structs and numbers; None where that cannot be.

    Locals that are defined once are replaced by their definitions, constants and macros by their values.
    """
    count = 0

    def write(node: Node) -> str | None:
        nonlocal count
        node = strip(node)
        if node.type == "number_literal":
            return text(node) if re.fullmatch(r"\d+[uUlL]*|0[xX][0-9a-fA-F]+", text(node)) else None
        if node.type == "identifier":
            name = text(node)
            for parameter in site.kernel.parameters:
                if parameter.name == name:
                    changed = name in written(site.body)
                    return name if not parameter.pointer and is_integer_type(parameter.base) and not changed else None
            constant = site.unit.macros.get(name, site.unit.constants.get(name))
            if constant is not None and not any(name == p.split()[-1] for p in site.kernel.template_parameters):
                try:
                    value = evaluate(constant, {})
                except ArithmeticError_:
                    return None
                return str(value) if isinstance(value, int) else None
            count += 1
            local = definition(site, name)
            return write(local) if local is not None and count <= _MAX_SUBSTITUTIONS else None
        if node.type == "field_expression":
            return _field(site, node)
        if node.type == "binary_expression":
            sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
            if sign is None or left is None or right is None or text(sign) not in ("+", "-", "*", "/"):
                return None
            a, b = write(left), write(right)
            if a is None or b is None:
                return None
            return f"{_wrap(a)} {text(sign)} {_wrap(b)}"
        return None

    return write(expression)


def _field(site: Site, node: Node) -> str | None:
    """`image.cols` of a struct that is passed by value and stays as it is, where the spec has a whole number for it."""
    name = compact(node)
    owner = next((p for p in site.kernel.parameters if p.name == name.partition(".")[0]), None)
    if owner is None or owner.pointer or "&" in owner.type or owner.name in written(site.body):
        return None
    return name if all(isinstance(site.scalar_values(case).get(name), int) for case in site.cases) else None


def _wrap(written_text: str) -> str:
    return written_text if re.fullmatch(r"[\w.]+", written_text) else f"({written_text})"
