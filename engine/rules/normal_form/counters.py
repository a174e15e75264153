"""Loops with a counter of their own: `int i; … for (i = 0; …)` as `for (int i = 0; …)`."""

from __future__ import annotations

from engine.cuda.declarations import Declared, variables
from engine.cuda.syntax import ancestors, inside, is_integer_type, text, walk
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
        edits += [Edit(Span(at, at), f"{moved[0].type} ") for d in moved for at in loops[d.name]]
        left = [text(p) for p in declaration.children_by_field_name("declarator") if text(p) not in {d.name for d in moved}]
        start, end = declaration.start_byte, declaration.end_byte
        if left:
            edits.append(Edit(Span(start, end), f"{moved[0].type} {', '.join(left)};"))
        else:
            edits.append(Edit(site.line_span(declaration), ""))
    return site.in_file(*edits) if edits else None


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
