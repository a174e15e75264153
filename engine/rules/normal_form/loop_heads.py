"""Counted loops: `for (i = 0; i <= last; …)`, `while (i < n) { …; i += step; }` and `for (i = row + t; i < row + n; …)`.

As `for (int i = 0; i < last + 1; …)`, `for (int i = t; i < n; i += step) { … }` and `for (j = t; j < n; …) { const int i = row + j; … }`.
"""

import re

from engine.cuda.questions import Declared, Polynomial, assigned, declared_type, number, pure, variables, written
from engine.cuda.syntax import ancestors, children, compact, inside, is_integer_type, names, strip, text, walk
from engine.rewrite import Edit, Edits, Node, Site, Span, addends, term_text
from engine.rules.idioms import StrideLoop, definition, stride_loop

_OWN = re.compile(r"threadIdx\.[xy](?:[%&]\(?\w+(?:-1)?\)?)?")
_MOST_TERMS = 2


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
