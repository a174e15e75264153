"""Loads and stores through hints for the caches as plain accesses: `__ldcs(x + i)` as `x[i]`, `__stcs(&y[i], v)` as `y[i] = v`."""

from engine.cuda.syntax import called, children, operands, strip, text, walk
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
            edits += [Edit(Span(call.start_byte, call.end_byte), place)] if place else []
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
