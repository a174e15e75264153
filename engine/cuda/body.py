"""What the body of a kernel holds: loops, array accesses, shared arrays, calls and names."""

from collections.abc import Iterator
from typing import Literal

from tree_sitter import Node

from engine.cuda.declarations import variables
from engine.cuda.kernel import Access, Held, Kernel, Loop, SharedArray
from engine.cuda.parse import declared, span, text, walk


def held(kernel: Kernel) -> Held:
    """Reads a kernel's body."""
    node = kernel.node
    body = node.child_by_field_name("body") or node
    bounds = next((c for c in walk(node) if c.type == "launch_bounds"), None)
    loops: list[Loop] = []
    accesses: list[Access] = []
    shared: list[SharedArray] = []
    calls: dict[str, None] = {}
    names: set[str] = set()
    arrays = {p.name for p in kernel.parameters if p.pointer}
    nodes = list(walk(body))
    for current in nodes:
        if current.type == "declaration":
            arrays.update(v.name for v in variables(current) if v.shape != "scalar")
            shared.extend(_shared(current))
    for current in nodes:
        match current.type:
            case "for_statement" | "while_statement" | "do_statement":
                loops.append(_loop(current, body))
            case "subscript_expression":
                access = _access(current, arrays)
                if access is not None:
                    accesses.append(access)
            case "call_expression":
                called = current.child_by_field_name("function")
                if called is not None:
                    calls[text(called).split("<", 1)[0]] = None
            case "identifier" | "type_identifier" | "namespace_identifier":
                names.add(text(current))
    return Held(
        launch_bounds=text(bounds).partition("(")[2].rpartition(")")[0].strip() if bounds is not None else "",
        loops=tuple(loops),
        accesses=tuple(accesses),
        shared=tuple(shared),
        calls=tuple(calls),
        names=frozenset(names),
    )


def _shared(declaration: Node) -> Iterator[SharedArray]:
    if not any(c.type == "type_qualifier" and text(c) == "__shared__" for c in declaration.children):
        return
    kind = declaration.child_by_field_name("type")
    external = any(c.type == "storage_class_specifier" and text(c) == "extern" for c in declaration.children)
    for declarator in declaration.children_by_field_name("declarator"):
        extents: list[str] = []
        current: Node | None = declarator
        while current is not None and current.type == "array_declarator":
            size = current.child_by_field_name("size")
            extents.insert(0, text(size) if size is not None else "")
            current = current.child_by_field_name("declarator")
        name = declared(declarator)
        if name is not None:
            yield SharedArray(
                text(name), text(kind) if kind is not None else "", tuple(extents), span(declaration), external
            )


def _loop(node: Node, body: Node) -> Loop:
    inner = node.child_by_field_name("body")
    depth = 0
    parent = node.parent
    while parent is not None and parent != body:
        depth += parent.type in ("for_statement", "while_statement", "do_statement")
        parent = parent.parent
    kind: Literal["for", "while", "do"] = (
        "for" if node.type == "for_statement" else "while" if node.type == "while_statement" else "do"
    )
    variable = start = condition = step = ""
    if kind == "for":
        initial = node.child_by_field_name("initializer")
        test, update = node.child_by_field_name("condition"), node.child_by_field_name("update")
        variable, start = _initial(initial)
        if variable and test is not None and update is not None:
            condition, step = text(test), text(update)
        else:
            variable = start = ""
    return Loop(
        kind, span(node), span(inner) if inner is not None else span(node), variable, start, condition, step, depth,
        node,
    )  # fmt: skip


def _initial(node: Node | None) -> tuple[str, str]:
    """(variable, first value) of a loop that declares or sets exactly one."""
    if node is None:
        return "", ""
    if node.type == "declaration":
        declarators = node.children_by_field_name("declarator")
        if len(declarators) == 1 and declarators[0].type == "init_declarator":
            name, value = declarators[0].child_by_field_name("declarator"), declarators[0].child_by_field_name("value")
            if name is not None and value is not None and name.type == "identifier":
                return text(name), text(value)
    if node.type == "assignment_expression":
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left is not None and right is not None and left.type == "identifier":
            return text(left), text(right)
    return "", ""


def _access(node: Node, arrays: set[str]) -> Access | None:
    parent = node.parent
    if parent is not None and parent.type == "subscript_expression" and parent.child_by_field_name("argument") == node:
        return None  # part of a longer chain, which is the access
    indices: list[str] = []
    current: Node | None = node
    while current is not None and current.type == "subscript_expression":
        index = current.child_by_field_name("indices")
        indices.insert(0, text(index)[1:-1].strip() if index is not None else "")
        current = current.child_by_field_name("argument")
    if current is None or current.type != "identifier" or text(current) not in arrays:
        return None
    kind: Literal["read", "write", "update"] = "read"
    target = node
    while target.parent is not None and target.parent.type in ("field_expression", "parenthesized_expression"):
        target = target.parent
    outer = target.parent
    if outer is not None and outer.type == "assignment_expression" and outer.child_by_field_name("left") == target:
        operator = outer.child_by_field_name("operator")
        kind = "write" if operator is None or text(operator) == "=" else "update"
    elif outer is not None and outer.type == "update_expression":
        kind = "update"
    elif outer is not None and outer.type == "pointer_expression" and text(outer).startswith("&"):
        kind = "update"  # its address goes to a call (atomicAdd and the like)
    return Access(text(current), tuple(indices), kind, span(node), node.start_point[0] + 1, node)
