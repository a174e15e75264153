"""Marks for the compiler that do nothing: `(void)n;`, `UNUSED(n);`."""

from __future__ import annotations

import re

from engine.cuda.macros import function_macros
from engine.cuda.questions import called, children, pure, text, walk
from engine.rewrite import Edit, Edits, Node, Site

_LOOPED = re.compile(r"do\s*\{(.*)\}\s*while\s*\(\s*(?:0|false)\s*\)\s*;?", re.S)
_NAMED = re.compile(r"(\w+)\s*\(.*\)\s*;?", re.S)
_CHANGES = re.compile(r"(?<![=<>!])=(?!=)|\+\+|--")


def without_marks(site: Site) -> Edits | None:
    """The kernel without statements that only say that something is unused."""
    marks = [n for n in walk(site.body) if n.type == "expression_statement" and _is_mark(site, n)]
    return site.in_file(*(Edit(site.line_span(n), "") for n in marks)) if marks else None


def _is_mark(site: Site, statement: Node) -> bool:
    inner = children(statement)[0] if children(statement) else None
    if inner is None:
        return False
    if inner.type == "cast_expression":
        kind, value = inner.child_by_field_name("type"), inner.child_by_field_name("value")
        return kind is not None and text(kind) == "void" and value is not None and pure(value)
    arguments = inner.child_by_field_name("arguments") if inner.type == "call_expression" else None
    if arguments is None or not all(pure(a) for a in children(arguments)):
        return False
    bodies = [
        body
        for unit in (site.unit, *site.headers)
        for _, body in function_macros(unit.data, unit.path).get(called(inner), ())
    ]
    return bool(bodies) and all(_does_nothing(site, body) for body in bodies)


def _does_nothing(site: Site, body: str) -> bool:
    """Whether the text of a macro evaluates to nothing: a conversion to void, or a call of functions without a statement."""
    looped = _LOOPED.fullmatch(body.strip())
    body = (looped[1] if looped else body).strip()
    if not body or (re.match(r"\(\s*void\s*\)", body) and not _CHANGES.search(body) and body.count(";") <= 1):
        return True
    named = _NAMED.fullmatch(body)
    functions = [f for unit in (site.unit, *site.headers) for f in unit.functions if named and f.name == named[1]]
    return bool(functions) and all(not children(f.block) for f in functions)
