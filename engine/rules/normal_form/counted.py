"""Loops that count by hand: `int i = t; while (i < n) { …; i += step; }` as `for (int i = t; i < n; i += step) { …; }`."""

from __future__ import annotations

from engine.cuda.questions import (
    Declared,
    assigned,
    children,
    inside,
    is_integer_type,
    names,
    pure,
    strip,
    text,
    walk,
    written,
)
from engine.rewrite import Edit, Edits, Node, Site, Span


def counted_loops(site: Site) -> Edits | None:
    """Loops over a variable of whole numbers that nothing outside of them uses, as `for` loops that declare it."""
    edits: list[Edit] = []
    for loop in walk(site.body):
        found = _by_hand(loop) if loop.type == "while_statement" else _headless(loop)
        if found is None:
            continue
        update, heading = found
        declared = _counter(site, loop, update)
        if declared is None or declared.value is None:
            continue
        head = f"{declared.type} {declared.name} = {text(declared.value)}"
        edits.append(Edit(site.line_span(declared.node), ""))
        if loop.type == "for_statement":
            edits.append(Edit(Span(heading.start_byte, heading.start_byte), head))
            continue
        condition, body = loop.child_by_field_name("condition"), loop.child_by_field_name("body")
        if condition is None or body is None:
            return None
        written_head = f"for ({head}; {text(strip(condition))}; {text(update)}) "
        edits.append(Edit(Span(loop.start_byte, body.start_byte), written_head))
        edits.append(Edit(site.line_span(heading), ""))
    return site.in_file(*edits) if edits else None


def _by_hand(loop: Node) -> tuple[Node, Node] | None:
    """The update at the end of a `while` loop's body, and its statement; None where the body may go on before it."""
    body = loop.child_by_field_name("body")
    last = children(body)[-1] if body is not None and body.type == "compound_statement" and children(body) else None
    if body is None or last is None or last.type != "expression_statement" or not children(last):
        return None
    update = children(last)[0]
    goes_on = any(n.type == "continue_statement" for n in walk(body))
    return (update, last) if assigned(update) is not None and not goes_on else None


def _headless(loop: Node) -> tuple[Node, Node] | None:
    """The update of a `for` loop without an initialiser, and the semicolon that stands for that."""
    if loop.type != "for_statement" or loop.child_by_field_name("initializer") is not None:
        return None
    update, first = loop.child_by_field_name("update"), next((c for c in loop.children if c.type == ";"), None)
    return (update, first) if update is not None and first is not None and assigned(update) is not None else None


def _counter(site: Site, loop: Node, update: Node) -> Declared | None:
    """The variable that the loop counts with; None where it is more than that."""
    target, condition = assigned(update), loop.child_by_field_name("condition")
    if target is None or target.type != "identifier" or condition is None or text(target) not in names(condition):
        return None
    declared = site.scope.lookup(text(target), loop)
    if declared is None or declared.value is None or not declared.alone or declared.shape != "scalar":
        return None
    if not is_integer_type(declared.type) or declared.scope != loop.parent or not pure(declared.value):
        return None
    if names(declared.value) & written(declared.scope):
        return None
    uses = site.scope.same(declared, declared.name, declared.scope)
    return declared if all(inside(u, loop) or inside(u, declared.node) for u in uses) else None
