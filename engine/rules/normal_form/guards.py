"""Guards behind the indices that they test, and nothing behind the work: `return;` at the end of a kernel goes."""

from engine.cuda.questions import children, declarators, names, pure, text, walk
from engine.rewrite import Edit, Edits, Node, Site, Span
from engine.rules.idioms.thread_index import Index, thread_indices


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
