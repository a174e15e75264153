"""Pointer parameters that are moved once as local pointers: `x += row * n;` as `const float* x_begin = x + row * n;`."""

import re

from engine.cuda.questions import children, names, pure, text, walk
from engine.rewrite import Edit, Edits, Node, Site, Span

_BINDING_LESS = frozenset({"-", "<<", ">>", "&", "|", "^"})


def row_starts(site: Site) -> Edits | None:
    """The parameters that one statement at the top of the body moves before they are used."""
    pointers = {p.name: p for p in site.kernel.parameters if p.pointer and p.type.count("*") == 1}
    fresh, edits = site.fresh_names(), []
    for statement in children(site.body):
        change = children(statement)[0] if statement.type == "expression_statement" and children(statement) else None
        if change is None or change.type != "assignment_expression":
            continue
        left, sign, offset = (change.child_by_field_name(f) for f in ("left", "operator", "right"))
        if left is None or sign is None or offset is None or text(sign) != "+=" or text(left) not in pointers:
            continue
        name = text(left)
        uses = [n for n in site.scope.same(None, name, site.body) if n != left]
        if (
            not pure(offset)
            or name in names(offset)
            or any(n.start_byte < statement.end_byte or _target(n) for n in uses)
        ):
            continue
        kind = re.sub(r"\s*\b__restrict(?:__)?\b|\s*\*\s*const\b", "", pointers[name].type).replace("*", "").strip()
        written = text(offset) if _binds(offset) else f"({text(offset)})"
        begin = fresh(f"{name}_begin")
        edits.append(Edit(Span(statement.start_byte, statement.end_byte), f"{kind}* {begin} = {name} + {written};"))
        edits += [Edit(Span(n.start_byte, n.end_byte), begin) for n in uses]
    return site.in_file(*edits) if edits else None


def _target(use: Node) -> bool:
    """Whether the pointer itself may become another where it stands."""
    parent = use.parent
    if parent is None:
        return True
    if parent.type == "assignment_expression":
        return parent.child_by_field_name("left") == use
    return parent.type == "update_expression" or (parent.type == "pointer_expression" and text(parent).startswith("&"))


def _binds(node: Node) -> bool:
    """Whether the expression needs no parentheses behind a plus sign."""
    signs = {text(s) for n in walk(node) if (s := n.child_by_field_name("operator")) is not None}
    return node.type not in ("conditional_expression", "comma_expression") and not signs & _BINDING_LESS
