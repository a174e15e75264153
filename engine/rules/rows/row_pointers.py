"""Pointer parameters, and the local pointers that a kernel derives from them."""

from engine.cuda.questions import assigned, names, operands, pure, text, walk
from engine.rewrite import Site, once
from engine.rules.idioms import scalar_pointers


@once
def row_pointers(site: Site) -> dict[str, tuple[str, str]]:
    """Pointer parameters and local pointers derived from them: name to (element type, parameter)."""
    parameters = scalar_pointers(site)
    found = {name: (p.base, name) for name, p in parameters.items()}
    declared: list[str] = []
    for node in walk(site.body):
        if node.type != "declaration":
            continue
        for child in node.children_by_field_name("declarator"):
            target, value = child.child_by_field_name("declarator"), child.child_by_field_name("value")
            if (
                child.type != "init_declarator"
                or target is None
                or target.type != "pointer_declarator"
                or value is None
            ):
                continue
            name_node = target.child_by_field_name("declarator")
            roots = names(value) & set(found)
            if name_node is None or name_node.type != "identifier" or len(roots) != 1 or not pure(value):
                continue
            root = roots.pop()
            terms = [text(t) for t in operands(value, "+")]
            if root in terms and text(node.child_by_field_name("type") or node) == found[root][0]:
                declared.append(text(name_node))
                found[text(name_node)] = (found[root][0], found[root][1])
    twice = {n for n in declared if declared.count(n) > 1 or n in parameters}
    reassigned = {text(target) for node in walk(site.body) if (target := assigned(node)) is not None}
    return {n: v for n, v in found.items() if n not in twice | reassigned}
