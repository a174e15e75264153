"""Loops over a row that count through the whole array: `for (i = row + t; i < row + n; …)` as `for (j = t; j < n; …)`, `i = row + j`."""

from __future__ import annotations

import re

from engine.cuda.questions import (
    Polynomial,
    ancestors,
    children,
    compact,
    names,
    number,
    pure,
    strip,
    text,
    walk,
    written,
)
from engine.rewrite import Edit, Edits, Node, Site, Span
from engine.rewrite.wording import addends, term_text
from engine.rules.idioms import StrideLoop, definition, stride_loop

_OWN = re.compile(r"threadIdx\.[xy](?:[%&]\(?\w+(?:-1)?\)?)?")
_MOST_TERMS = 2


def own_starts(site: Site) -> Edits | None:
    """Loops that begin at the thread's place in a segment and end where the segment does, counted from the segment's start."""
    edits: list[Edit] = []
    counters: dict[int, str] = {}
    for node in walk(site.body):
        loop = stride_loop(node)
        found = _segment(site, loop) if loop is not None else None
        if loop is None or found is None or loop.body.type != "compound_statement" or not children(loop.body):
            continue
        start, own, length = found
        around = [counters[a.id] for a in ancestors(node) if a.id in counters]
        counter, first = site.fresh("j", around), children(loop.body)[0]
        counters[node.id] = counter
        head = f"{loop.type} {counter} = {text(own)}; {counter} < {length}; "
        head += f"++{counter}" if loop.step == "1" else f"{counter} += {loop.step}"
        begin = node.children[0].end_byte  # behind the word `for`
        edits.append(Edit(Span(begin, loop.body.start_byte), f" ({head}) "))
        indent = site.indent_at(first.start_byte)
        line = f"const {loop.type} {loop.variable} = {start} + {counter};\n{indent}"
        edits.append(Edit(Span(first.start_byte, first.start_byte), line))
    return site.in_file(*edits) if edits else None


def _segment(site: Site, loop: StrideLoop) -> tuple[str, Node, str] | None:
    """Where the segment begins, the thread's place in it, and its length; None for other loops."""
    terms = addends(_resolved(site, loop.start))
    own = [t for t in terms if _OWN.fullmatch(compact(_resolved(site, t)))]
    rest = [t for t in terms if t not in own]
    changed = written(loop.body)
    if len(own) != 1 or not rest or any(names(t) & changed or not pure(t) for t in rest):
        return None
    begin: Polynomial | None = number(0)
    for term in rest:
        each = site.scope.index(term)
        begin = begin.plus(each) if begin is not None and each is not None else None
    end = site.scope.index(loop.bound)
    length = end.plus(begin, -1) if begin is not None and end is not None else None
    if length is None or not length.terms or len(length.terms) > _MOST_TERMS:
        return None
    if min(length.terms.values()) < 0 or length.names() & {"threadIdx", "blockIdx"} or length.names() & changed:
        return None
    return " + ".join(term_text(t) for t in rest), own[0], length.render()


def _resolved(site: Site, node: Node) -> Node:
    node = strip(node)
    value = definition(site, text(node)) if node.type == "identifier" else None
    return strip(value) if value is not None else node
