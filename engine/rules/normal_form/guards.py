"""Guards behind the indices that they test, before all the work; what does nothing goes: `return;` at the end, `(void)n;`, `UNUSED(n);`."""

import re

from engine.cuda.macros import function_macros
from engine.cuda.questions import assigned, called, children, declarators, names, pure, text, variables, walk, written
from engine.rewrite import Edit, Edits, Node, Site, Span, reindent
from engine.rules.idioms.thread_index import Index, thread_indices

_LOOPED = re.compile(r"do\s*\{(.*)\}\s*while\s*\(\s*(?:0|false)\s*\)\s*;?", re.S)
_NAMED = re.compile(r"(\w+)\s*\(.*\)\s*;?", re.S)
_CHANGES = re.compile(r"(?<![=<>!])=(?!=)|\+\+|--")


def guards_last(site: Site) -> Edits | None:
    """Indices that are declared behind guards move before them, and the guards test the indices by name."""
    statements = children(site.body)
    edits = []
    last = statements[-1] if statements else None
    if last is not None and text(last).replace(" ", "") == "return;":
        edits.append(Edit(site.line_span(last), ""))
    first = next((s for s in statements if s.type != "declaration"), None)
    late = [i for i in thread_indices(site) if first is not None and i.declaration.start_byte > first.start_byte]
    before = [s for s in statements if late and s.end_byte <= late[-1].declaration.start_byte]
    if late and first is not None and all(_guard(s) or s.type == "declaration" for s in before):
        indent = site.indent_at(first.start_byte)
        for index in late:
            if any(names(s) & {n for n, _ in declarators(index.declaration)} for s in before if s != index.declaration):
                return site.in_file(*edits) if edits else None
            edits.append(Edit(site.line_span(index.declaration), ""))
            edits.append(Edit.insert(first.start_byte, f"{text(index.declaration)}\n{indent}"))
            edits += [e for s in before if _guard(s) for e in _named(site, s, index)]
        edits = _joined(edits)
    return site.in_file(*edits) if edits else None


def work_guarded(site: Site) -> Edits | None:
    """What is worked out before a guard that does not need it, behind the guard: indices, guard and work are then apart."""
    statements = children(site.body)
    at = next(
        (k for k, s in enumerate(statements) if s.type == "if_statement" and _keeps_from_work(statements, k)), None
    )
    guard = statements[at] if at is not None else None
    condition = guard.child_by_field_name("condition") if guard is not None else None
    if at is None or guard is None or condition is None or all(s.type == "declaration" for s in statements[:at]):
        return None
    moved = [s for s in statements[:at] if s.type != "declaration"]
    set_there = {n for s in moved for n in written(s)}
    for statement in statements[:at]:
        if statement.type == "declaration" and names(statement) & set_there and _has_value(statement):
            moved.append(statement)
            set_there |= {n for n, _ in declarators(statement)}
    moved.sort(key=lambda s: s.start_byte)
    own = {d.name for s in statements[:at] if s.type == "declaration" for d in variables(s)}
    if not set_there <= own or set_there & names(condition) or not all(_movable(site, s) for s in moved):
        return None
    returns, inner = _guard(guard), guard.child_by_field_name("consequence")
    if not returns and (inner is None or inner.type != "compound_statement" or not children(inner)):
        return None
    place = guard.end_byte if returns else children(inner)[0].start_byte if inner is not None else 0
    indent = site.indent_at(guard.start_byte if returns else place)
    spans = [_commented(s) for s in moved]
    lines = [reindent(site.render(span.start, span.end), site.indent_at(span.start), indent) for span in spans]
    written_out = "\n".join(lines).lstrip()
    put = f"\n{indent}{written_out}" if returns else f"{written_out}\n{indent}"
    return site.in_file(Edit(Span(place, place), put), *(Edit(site.whole_lines(span), "") for span in spans))


def _keeps_from_work(statements: list[Node], at: int) -> bool:
    """Whether it is a guard around all that follows, or before it."""
    last = at == len(statements) - 1 and statements[at].child_by_field_name("alternative") is None
    return last or _guard(statements[at])


def _commented(statement: Node) -> Span:
    """The statement with the comment that ends its line."""
    after = statement.next_sibling
    own = after is not None and after.type == "comment" and after.start_point[0] == statement.end_point[0]
    return Span(statement.start_byte, after.end_byte if after is not None and own else statement.end_byte)


def _has_value(declaration: Node) -> bool:
    return any(d.value is not None for d in variables(declaration))


def _movable(site: Site, statement: Node) -> bool:
    """Whether a statement only computes local values: it stores nothing, and the kernel's flow goes on behind it."""
    leaves = any(n.type in ("return_statement", "goto_statement") for n in walk(statement))
    targets = (t for n in walk(statement) if (t := assigned(n)) is not None)
    return not leaves and all(t.type == "identifier" for t in targets) and site.local_only(statement)


def _guard(statement: Node) -> bool:
    condition = statement.child_by_field_name("condition")
    inner = statement.child_by_field_name("consequence")
    if statement.type != "if_statement" or statement.child_by_field_name("alternative") is not None:
        return False
    returns = inner is not None and text(inner).replace(" ", "").strip("{}\n\t") == "return;"
    return returns and condition is not None and pure(condition)


def _named(site: Site, guard: Node, index: Index) -> list[Edit]:
    """The guard's expressions that are the index, as its name."""
    value = next((v for n, v in declarators(index.declaration) if n == index.name), None)
    wanted = site.scope.index(value) if value is not None else None
    found: list[Edit] = []
    for node in walk(guard):
        within = any(e.span.start <= node.start_byte < e.span.end for e in found)
        sum_of_its_own = node.type == "binary_expression" and wanted is not None and not within
        if sum_of_its_own and site.scope.index(node) == wanted:
            found.append(Edit.replace(node, index.name))
    return found


def _joined(edits: list[Edit]) -> list[Edit]:
    """Insertions at one place as one edit."""
    joined: dict[Span, str] = {}
    for edit in edits:
        joined[edit.span] = joined.get(edit.span, "") + edit.text
    return [Edit(span, written) for span, written in joined.items()]


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
