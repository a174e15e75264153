"""An array element that a loop updates again and again is kept in a register and stored once.

The compiler has to store in every iteration where another pointer might see the element. Source: CUDA C++ Best
Practices Guide, "Device Memory Spaces"; the rule holds what the `__restrict__` qualifier would promise.
"""

from dataclasses import dataclass

from engine.cuda.questions import children, inside, names, pure_value, text, tokens, walk
from engine.rewrite import Edit, ElementAccess, Node, Proposals, Scope, Site, Span, proposal, reindent
from engine.rules.idioms import changed_names, runs, stride_loop, with_pragma

_LOOPS = ("for_statement", "while_statement", "do_statement")
_JUMPS = ("return_statement", "goto_statement")


@dataclass(frozen=True)
class _Element:
    """One array element that a loop updates. `first` is the statement right before the loop that sets it, if any."""

    array: str
    type: str
    written: str  # as the author writes it: "sums[c]"
    uses: tuple[Node, ...]
    first: Node | None
    known: bool  # the element was accessed before the loop: it exists even if the loop never runs


class RegisterAccumulate:
    """`out[i] += …` in a loop becomes a local accumulator with one store after the loop."""

    name = "register_accumulate"
    summary = "Accumulate in a register instead of global memory"

    def propose(self, site: Site) -> Proposals:
        if (
            not site.sound
            or not site.manageable
            or any(n.type == "type_qualifier" and text(n) == "volatile" for n in walk(site.kernel.node))
        ):
            return
        scope = site.scope
        done: list[Node] = []
        for loop in walk(site.body):
            if loop.type not in _LOOPS or any(inside(loop, d) for d in done):
                continue
            found = _elements(site, scope, loop)
            edits = _rewrite(site, loop, found) if found else None
            if edits is None:
                continue
            done.append(loop)
            line = site.unit.line_of(loop.start_byte)
            what = " and ".join(e.written for e in found)
            yield from proposal(
                self.name,
                f"Accumulate {what} in a register in the loop at line {line}",
                site.in_file(*edits),
                0.7,
                line=line,
            )


def _elements(site: Site, scope: Scope, loop: Node) -> list[_Element]:
    body = loop.child_by_field_name("body")
    parent = loop.parent
    if body is None or parent is None or parent.type != "compound_statement":
        return []
    if not site.local_only(loop, site.type_names):
        return []
    if any(n.type in _JUMPS for n in walk(loop)):
        return []
    uses = scope.uses(loop)
    if uses is None or (len({u.array for u in uses}) > 1 and not _apart(site, uses)):
        return []
    moving = changed_names(loop)
    found = []
    for array in sorted({u.array for u in uses if u.writes}, key=lambda a: [u.array for u in uses].index(a)):
        mine = [u for u in uses if u.array == array]
        element = _element(scope, loop, body, array, mine, moving)
        if element is not None:
            found.append(element)
    return found


def _element(
    scope: Scope, loop: Node, body: Node, array: str, uses: list[ElementAccess], moving: set[str]
) -> _Element | None:
    index = uses[0].index
    if index is None or any(u.index != index for u in uses) or index.names() & moving or "[" in index.render():
        return None
    written = text(uses[0].node)
    if "\n" in written or "(" in index.render() or not all(u.node.type == uses[0].node.type for u in uses):
        return None
    for name in names(uses[0].node):
        if scope.lookup(name, uses[0].node) != scope.lookup(name, loop):
            return None
    for use in uses:
        above = use.node.parent
        if above is not None and above.type == "pointer_expression" and text(above).startswith("&"):
            return None
    kind = scope.parameters[array].base if array in scope.parameters else ""
    if not kind or not _plain_update(uses):
        return None
    nodes = tuple(u.node for u in uses)
    first = _set_before(loop, tokens(uses[0].node))
    steady = not index.names() & changed_names(scope.body, declarations=False)
    known = first is not None or (steady and _written_before(loop, tokens(uses[0].node)))
    always = any(u.writes and _every_time(u.node, body) for u in uses)
    if not known and not (always and stride_loop(loop) is not None):
        return None
    return _Element(array, kind, written, nodes, first, known)


def _plain_update(uses: list[ElementAccess]) -> bool:
    """Whether the loop works on the element (reads it somewhere): a loop that only overwrites it gains nothing."""
    return any(u.writes for u in uses) and any(u.reads for u in uses)


def _apart(site: Site, uses: list[ElementAccess]) -> bool:
    """Whether what the loop writes cannot be seen through another pointer of it."""
    restricted = {p.name for p in site.kernel.parameters if p.restrict}
    written = {u.array for u in uses if u.writes}
    return written <= restricted or site.pointers_distinct


def _every_time(node: Node, body: Node) -> bool:
    """Whether the access happens in every iteration: in a plain statement of the body, before any jump."""
    statement: Node | None = node
    while statement is not None and statement.type != "expression_statement":
        statement = statement.parent
        if statement is not None and statement.type == "conditional_expression":
            return False
    if statement is None:
        return False
    if statement != body and (body.type != "compound_statement" or statement.parent != body):
        return False
    return not any(
        n.type in ("break_statement", "continue_statement") and n.start_byte < node.start_byte for n in walk(body)
    )


def _assignment(statement: Node) -> Node | None:
    parts = children(statement)
    if statement.type == "expression_statement" and len(parts) == 1 and parts[0].type == "assignment_expression":
        return parts[0]
    return None


def _set_before(loop: Node, element: str) -> Node | None:
    """The statement right before the loop where it is `element = value;`."""
    before = loop.prev_named_sibling
    while before is not None and before.type in ("comment", "preproc_call"):
        before = before.prev_named_sibling
    node = _assignment(before) if before is not None else None
    if node is None or text(node.child_by_field_name("operator") or node) != "=":
        return None
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if left is None or right is None or tokens(left) != element or element in tokens(right) or not pure_value(right):
        return None
    return before


def _written_before(loop: Node, element: str) -> bool:
    """Whether a plain statement before the loop, that runs whenever the loop does, writes the element."""
    node: Node | None = loop
    while node is not None and node.parent is not None and node.type != "function_definition":
        if node.parent.type in ("compound_statement",):
            before = node.prev_named_sibling
            while before is not None:
                change = _assignment(before)
                left = change.child_by_field_name("left") if change is not None else None
                if left is not None and tokens(left) == element:
                    return True
                before = before.prev_named_sibling
        elif node.parent.type in _LOOPS:
            return False  # names may have changed since an earlier iteration
        node = node.parent
    return False


def _rewrite(site: Site, loop: Node, found: list[_Element]) -> list[Edit] | None:
    indent, unit = site.indent_at(loop.start_byte), site.indent_unit
    taken: list[str] = []
    before, after = [], []
    edits: list[Edit] = []
    changes: list[tuple[int, int, str]] = []
    for element in found:
        name = site.fresh(f"{element.array}_value", taken)
        taken.append(name)
        if element.first is not None:
            node = _assignment(element.first)
            left = node.child_by_field_name("left") if node is not None else None
            if left is None:
                return None
            edits.append(Edit.replace(left, f"{element.type} {name}"))
        else:
            before.append(f"{element.type} {name} = {element.written};")
        after.append(f"{element.written} = {name};")
        changes += [(n.start_byte, n.end_byte, name) for n in element.uses]
    start = with_pragma(loop)
    if all(e.known for e in found):
        edits += [Edit(Span(a, b), t) for a, b, t in changes]
        if before:
            edits.append(Edit.insert(start, "".join(f"{line}\n{indent}" for line in before)))
        edits.append(Edit.insert(loop.end_byte, "".join(f"\n{indent}{line}" for line in after)))
        return edits
    counted = stride_loop(loop)
    if counted is None:
        return None
    inner = reindent(indent + site.render(start, loop.end_byte, changes), indent, indent + unit)
    lines = [f"if ({runs(counted)}) {{", *(indent + unit + line for line in before), inner]
    lines += [*(indent + unit + line for line in after), indent + "}"]
    edits.append(Edit(Span(start, loop.end_byte), "\n".join(lines)))
    return edits
