"""Array elements by the array and all that is added to it: `const int at = row + i; x[at]` and `p = x + i; *p` as `x[row + i]`, `x[i]`."""

from collections.abc import Sequence

from engine.cuda.questions import Declared, index_of, polynomial, pure, variables, written
from engine.cuda.syntax import inside, is_integer_type, names, operands, strip, text, walk
from engine.rewrite import Edit, Edits, Node, Site, Span, addends, term_text
from engine.rules.idioms import StrideLoop, stride_loop

_PLAIN = frozenset({"identifier", "number_literal", "binary_expression", "parenthesized_expression"})


def summed_indices(site: Site) -> Edits | None:
    """Indices by variables that are a loop's counter and something that does not change in the loop, as these sums."""
    edits: list[Edit] = []
    for node in walk(site.body):
        loop = stride_loop(node, memory=True)
        sums = _sums(site, loop) if loop is not None else []
        if loop is not None and sums:
            edits += _substituted(site, loop, sums)
    return site.in_file(*edits) if edits else None


def _sums(site: Site, loop: StrideLoop) -> list[Declared]:
    """The variables that the loop's body declares as its counter plus something that does not change there."""
    changed = written(loop.body)
    declared = [d for n in walk(loop.body) if n.type == "declaration" for d in variables(n)]
    fixed = changed | {d.name for d in declared}
    found: list[Declared] = []
    for one in declared:
        kind = one.type.removeprefix("const ").strip()
        plain = one.shape == "scalar" and one.value is not None and one.name not in changed
        if not plain or one.value is None or not (is_integer_type(kind) or kind == "auto") or not pure(one.value):
            continue
        terms = [text(t) for t in operands(one.value, "+")]
        others = [t for t in operands(one.value, "+") if text(t) != loop.variable]
        if terms.count(loop.variable) != 1 or not others:
            continue
        if not any(names(t) & (fixed | {loop.variable}) for t in others):
            found.append(one)
    return found


def _substituted(site: Site, loop: StrideLoop, sums: Sequence[Declared]) -> list[Edit]:
    by_name = {d.name: d for d in sums}

    def resolve(node: Node) -> Node | None:
        one = by_name.get(text(node))
        return one.value if one is not None and site.scope.lookup(one.name, node) == one else None

    edits: list[Edit] = []
    for access in (n for n in walk(loop.body) if n.type == "subscript_expression"):
        index = index_of(access)
        if index is None or not names(index) & by_name.keys() or any(n.type not in _PLAIN for n in _inner(index)):
            continue
        sum_of = polynomial(index, resolve)
        if sum_of is None or sum_of.terms.get((loop.variable,)) != 1:
            continue
        others = sum_of.renamed(loop.variable, "").terms
        rest = [p for p in others if p != ("",)]
        first = next((d for d in sums if text(index) == d.name), None)
        # As the author wrote the sum, where nothing is added to it.
        plain = text(first.value) if first is not None and first.value is not None else sum_of.render()
        edits.append(Edit(Span(index.start_byte, index.end_byte), plain if rest else loop.variable))
    for one in sums:
        uses = [u for u in site.scope.same(one, one.name, one.scope) if not inside(u, one.node)]
        gone = all(any(e.span.start <= u.start_byte < e.span.end for e in edits) for u in uses)
        if gone and one.alone and uses:
            edits.append(Edit(site.line_span(one.node), ""))
    return edits


def _inner(node: Node) -> list[Node]:
    return [n for n in walk(node) if n.is_named]


def element_pointers(site: Site) -> Edits | None:
    """Elements by pointers to single ones (`*p`), by the array that the pointer leads into."""
    edits: list[Edit] = []
    for declaration in [n for n in walk(site.body) if n.type == "declaration"]:
        for declared in variables(declaration):
            if declared.shape == "pointer" and declared.value is not None:
                edits += _by_array(site, declared, declared.value)
    return site.in_file(*edits) if edits else None


def _by_array(site: Site, declared: Declared, value: Node) -> list[Edit]:
    place = _place(site, declared, value)
    if place is None:
        return []
    array, offset = place
    used = [u for u in site.scope.same(declared, declared.name, declared.scope) if not inside(u, declared.node)]
    edits, single = [], False
    for use in used:
        access = use.parent
        if access is None:
            return []
        if access.type == "pointer_expression" and text(access).startswith("*"):
            single = True
            edits.append(Edit(Span(access.start_byte, access.end_byte), f"{array}[{offset}]"))
        elif access.type == "subscript_expression" and access.child_by_field_name("argument") == use:
            index = index_of(access)
            if index is None:
                return []
            edits.append(Edit(Span(access.start_byte, access.end_byte), f"{array}[{offset} + {term_text(index)}]"))
        else:
            return []
    if not single:
        return []
    return [*edits, Edit(site.line_span(declared.node), "")] if declared.alone else edits


def _place(site: Site, declared: Declared, value: Node) -> tuple[str, str] | None:
    """The array that a pointer leads into and how far, as text; None where they may become others."""
    value = strip(value)
    if value.type == "pointer_expression" and text(value).startswith("&"):
        target = value.child_by_field_name("argument")
        target = strip(target) if target is not None else None
        array = target.child_by_field_name("argument") if target is not None else None
        index = index_of(target) if target is not None and target.type == "subscript_expression" else None
        terms = [array, index] if array is not None and index is not None else []
    else:
        terms = addends(value)
    if len(terms) < 2 or site.scope.changed(declared):
        return None
    first, *rest = [t for t in terms if t is not None]
    parameter = next((p for p in site.kernel.parameters if p.name == text(first)), None)
    if parameter is None or not parameter.pointer or parameter.type.count("*") != 1 or not all(pure(t) for t in rest):
        return None
    kind = declared.type.removeprefix("const ").strip()
    if _compact(kind) != _compact(parameter.base) or {parameter.name} & written(site.body) - _stored(site):
        return None
    if set().union(*(names(t) for t in rest)) & written(declared.scope):
        return None
    return parameter.name, " + ".join(term_text(t) for t in rest)


def _stored(site: Site) -> frozenset[str]:
    """Arrays whose elements are stored, and which stay where they are."""
    targets = [n.child_by_field_name("left") for n in walk(site.body) if n.type == "assignment_expression"]
    whole = {text(t) for t in targets if t is not None and t.type == "identifier"}
    return frozenset(written(site.body)) - whole


def _compact(written_type: str) -> str:
    """A type without white space and `const`."""
    return "".join(w for w in written_type.split() if w != "const")
