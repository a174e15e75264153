"""Variables with one value each: `int rest = i % n; … rest = rest % m;` as `int rest = i % n; … int rest2 = rest % m;`."""

from collections.abc import Callable

from engine.cuda.questions import Declared, assigned, children, inside, is_integer_type, pure, text, variables, walk
from engine.rewrite import Edit, Edits, Node, Site, Span


def single_values(site: Site) -> Edits | None:
    """Whole numbers that statements beside their declaration set anew, under another name from there on."""
    edits: list[Edit] = []
    fresh = site.fresh_names()
    for declaration in [n for n in walk(site.body) if n.type == "declaration"]:
        for declared in variables(declaration):
            kind = declared.type.removeprefix("const ").strip()
            if declared.shape == "scalar" and declared.value is not None and is_integer_type(kind):
                edits += _renamed(site, declared, kind, fresh)
    return site.in_file(*edits) if edits else None


def _renamed(site: Site, declared: Declared, kind: str, fresh: Callable[[str], str]) -> list[Edit]:
    uses = site.scope.same(declared, declared.name, declared.scope)
    sets: list[tuple[Node, Node]] = []  # the statement, the assignment
    for use in uses:
        parent = use.parent
        if parent is None or (parent.type == "pointer_expression" and text(parent).startswith("&")):
            return []
        if assigned(parent) != use:
            continue
        statement = parent.parent
        plain = (
            parent.type == "assignment_expression"
            and statement is not None
            and statement.type == "expression_statement"
        )
        if (
            not plain
            or statement is None
            or statement.parent != declared.scope
            or not pure(parent.child_by_field_name("right") or parent)
        ):
            return []
        sets.append((statement, parent))
    edits: list[Edit] = []
    name = declared.name
    for order, (statement, change) in enumerate(sets):
        later = sets[order + 1][0].start_byte if order + 1 < len(sets) else declared.scope.end_byte
        right, sign = change.child_by_field_name("right"), change.child_by_field_name("operator")
        if right is None or sign is None:
            return []
        value = _with(site, right, declared, name)
        if text(sign) != "=":
            value = f"{name} {text(sign)[:-1]} ({value})" if children(right) else f"{name} {text(sign)[:-1]} {value}"
        name = fresh(f"{declared.name}{order + 2}")
        edits.append(Edit(Span(statement.start_byte, statement.end_byte), f"const {kind} {name} = {value};"))
        mine = [u for u in uses if statement.end_byte <= u.start_byte < later]
        edits += [Edit(Span(u.start_byte, u.end_byte), name) for u in mine]
    return edits


def _with(site: Site, node: Node, declared: Declared, name: str) -> str:
    """The expression's text with the variable under the name that its value has there."""
    uses = [u for u in site.scope.same(declared, declared.name, declared.scope) if inside(u, node)]
    return site.render(node.start_byte, node.end_byte, [(u.start_byte, u.end_byte, name) for u in uses])
