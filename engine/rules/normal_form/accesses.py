"""Accesses in the plain way: without hints for the caches (`__ldcs(x + i)` as `x[i]`), and through pointers that nobody moves."""

import re

from engine.cuda.questions import called, children, names, operands, pure, strip, text, walk
from engine.rewrite import Edit, Edits, Node, Site, Span

_LOADS = frozenset({"__ldcs", "__ldcg", "__ldca", "__ldlu", "__ldg"})
_STORES = frozenset({"__stcs", "__stcg", "__stwb", "__stwt"})


def plain_accesses(site: Site) -> Edits | None:
    """The accesses by `&array[index]` or `array + index`, where blocks do not wait for each other's stores.

    What the caches are told does not change a value then.
    """
    edits: list[Edit] = []
    if any(c.startswith("__threadfence") or c in ("__nanosleep", "atomicCAS", "atomicExch") for c in site.kernel.calls):
        return None
    if "volatile" in site.unit.text(site.kernel.span):
        return None
    for call in (n for n in walk(site.body) if n.type == "call_expression"):
        arguments = call.child_by_field_name("arguments")
        given = children(arguments) if arguments is not None else []
        statement = call.parent is not None and call.parent.type == "expression_statement"
        if called(call) in _LOADS and len(given) == 1:
            place = _element(site, given[0])
            edits += [Edit.replace(call, place)] if place else []
        elif called(call) in _STORES and len(given) == 2 and statement:
            place = _element(site, given[0])
            if place:
                edits.append(Edit(Span(call.start_byte, given[1].start_byte), f"{place} = "))
                edits.append(Edit(Span(given[1].end_byte, call.end_byte), ""))
    return site.in_file(*edits) if edits else None


def _hinted(node: Node) -> bool:
    return any(called(n) in _LOADS | _STORES for n in walk(node) if n.type == "call_expression")


def _element(site: Site, address: Node) -> str:
    """`array[index]` for the address of an element; "" for others."""
    address = strip(address)
    if address.type == "pointer_expression" and text(address).startswith("&"):
        target = address.child_by_field_name("argument")
        plain = target is not None and strip(target).type == "subscript_expression" and not _hinted(target)
        return text(strip(target)) if plain and target is not None else ""
    terms = operands(address, "+")
    arrays = [t for t in terms if t.type == "identifier" and _is_pointer(site, t)]
    if len(arrays) != 1 or len(terms) < 2 or _hinted(address):
        return ""
    return f"{text(arrays[0])}[{' + '.join(text(t) for t in terms if t != arrays[0])}]"


def _is_pointer(site: Site, name: Node) -> bool:
    declared = site.scope.lookup(text(name), name)
    return declared.shape == "pointer" if declared is not None else text(name) in site.scope.pointers


_BINDING_LESS = frozenset({"-", "<<", ">>", "&", "|", "^"})


def row_starts(site: Site) -> Edits | None:
    """The parameters that one statement at the top of the body moves before they are used."""
    pointers = {p.name: p for p in site.kernel.parameters if p.pointer and p.type.count("*") == 1}
    fresh, edits = site.fresh_names(), []
    for statement in children(site.body):
        change = children(statement)[0] if statement.type == "expression_statement" and children(statement) else None
        if change is None or change.type != "assignment_expression":
            continue
        left, sign, offset = (change.child_by_field_name(f) for f in ("left", "operator", "right"))
        if left is None or sign is None or offset is None or text(sign) != "+=" or text(left) not in pointers:
            continue
        name = text(left)
        uses = [n for n in site.scope.same(None, name, site.body) if n != left]
        if (
            not pure(offset)
            or name in names(offset)
            or any(n.start_byte < statement.end_byte or _target(n) for n in uses)
        ):
            continue
        kind = re.sub(r"\s*\b__restrict(?:__)?\b|\s*\*\s*const\b", "", pointers[name].type).replace("*", "").strip()
        written = text(offset) if _binds(offset) else f"({text(offset)})"
        begin = fresh(f"{name}_begin")
        edits.append(Edit.replace(statement, f"{kind}* {begin} = {name} + {written};"))
        edits += [Edit.replace(n, begin) for n in uses]
    return site.in_file(*edits) if edits else None


def _target(use: Node) -> bool:
    """Whether the pointer itself may become another where it stands."""
    parent = use.parent
    if parent is None:
        return True
    if parent.type == "assignment_expression":
        return parent.child_by_field_name("left") == use
    return parent.type == "update_expression" or (parent.type == "pointer_expression" and text(parent).startswith("&"))


def _binds(node: Node) -> bool:
    """Whether the expression needs no parentheses behind a plus sign."""
    signs = {text(s) for n in walk(node) if (s := n.child_by_field_name("operator")) is not None}
    return node.type not in ("conditional_expression", "comma_expression") and not signs & _BINDING_LESS
