"""Counted loops: `int i; … for (i = 0; i <= last; …)` as `for (int i = 0; i < last + 1; …)`."""

import re

from engine.cuda.questions import Declared, ancestors, declared_type, inside, is_integer_type, text, variables, walk
from engine.rewrite import Edit, Edits, Node, Site, Span


def own_counters(site: Site) -> Edits | None:
    """Counters that are declared without a value and used in loops alone that set them first, declared in these loops."""
    edits: list[Edit] = []
    for declaration in [n for n in walk(site.body) if n.type == "declaration"]:
        declared = list(variables(declaration))
        loops = {d.name: _loops(site, d) for d in declared if d.shape == "scalar" and d.value is None}
        moved = [d for d in declared if loops.get(d.name)]
        if not moved or not is_integer_type(moved[0].type):
            continue
        edits += [Edit.insert(at, f"{moved[0].type} ") for d in moved for at in loops[d.name]]
        left = [
            text(p) for p in declaration.children_by_field_name("declarator") if text(p) not in {d.name for d in moved}
        ]
        start, end = declaration.start_byte, declaration.end_byte
        if left:
            edits.append(Edit(Span(start, end), f"{moved[0].type} {', '.join(left)};"))
        else:
            edits.append(Edit(site.line_span(declaration), ""))
    return site.in_file(*edits) if edits else None


def exclusive_bounds(site: Site) -> Edits | None:
    """Loops up to an inclusive bound, of whole numbers with signs, as loops below the next number."""
    edits: list[Edit] = []
    for loop in (n for n in walk(site.body) if n.type == "for_statement"):
        head, condition = loop.child_by_field_name("initializer"), loop.child_by_field_name("condition")
        update = loop.child_by_field_name("update")
        if head is None or condition is None or update is None or head.type != "declaration":
            continue
        counter, kind = list(variables(head)), declared_type(head)
        sign, left, right = (condition.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or right is None or text(sign) != "<=" or len(counter) != 1:
            continue
        if text(left) != counter[0].name or not is_integer_type(kind) or kind.startswith("u") or "size" in kind:
            continue
        whole = right.type in ("identifier", "number_literal") or _sum(right)
        if whole and re.search(r"\+\+|\+=", text(update)):
            edits.append(Edit(Span(sign.start_byte, right.end_byte), f"< {text(right)} + 1"))
    return site.in_file(*edits) if edits else None


def _sum(node: Node) -> bool:
    """Whether the expression is a sum or product, behind which a term may be added."""
    sign = node.child_by_field_name("operator")
    return node.type == "parenthesized_expression" or (
        node.type == "binary_expression" and sign is not None and text(sign) in "+-*/%"
    )


def _loops(site: Site, declared: Declared) -> list[int]:
    """Where the loops begin to set the variable, if it is used in these alone."""
    heads: list[tuple[Node, int]] = []
    for node in walk(declared.scope):
        first = node.child_by_field_name("initializer") if node.type == "for_statement" else None
        if first is None or first.type != "assignment_expression":
            continue
        left, sign = first.child_by_field_name("left"), first.child_by_field_name("operator")
        if left is not None and sign is not None and text(left) == declared.name and text(sign) == "=":
            heads.append((node, first.start_byte))
    loops = [loop for loop, _ in heads]
    if any(above in loops for loop in loops for above in ancestors(loop)):
        return []
    uses = [n for n in site.scope.same(declared, declared.name, declared.scope) if not inside(n, declared.node)]
    return [at for _, at in heads] if all(any(inside(n, loop) for loop in loops) for n in uses) else []
