"""Loops whose elements several threads share: whether it matters which thread takes which element, and in which order."""

from engine.cuda.questions import assigned, declarators, index_of
from engine.cuda.syntax import ancestors, called, children, names, operands, strip, text, walk
from engine.rewrite import Node
from engine.rules.idioms.strided_loop import StrideLoop

_EXTREMA = frozenset({"fmaxf", "fminf", "fmax", "fmin", "max", "min"})


def counters(body: Node) -> frozenset[str]:
    """Atomics whose result nobody uses: their order does not matter."""
    calls = [n for n in walk(body) if n.type == "call_expression" and called(n).startswith("atomic")]
    used = {called(n) for n in calls if n.parent is None or n.parent.type != "expression_statement"}
    return frozenset({called(n) for n in calls} - used - {"atomicExch", "atomicCAS"})


def lasting(loop: StrideLoop) -> bool:
    """Whether the loop changes a scalar that lives longer than an iteration."""
    declared = {n for d in walk(loop.body) if d.type == "declaration" for n, _ in declarators(d)}
    targets = (strip(t) for n in walk(loop.body) if (t := assigned(n)) is not None)
    return any(t.type == "identifier" and text(t) not in declared for t in targets)


def combining(body: Node) -> frozenset[str]:
    """Functions by which threads of a group put their results together: the order of these does not matter."""
    calls = [n for n in walk(body) if n.type == "call_expression" and called(n).rpartition("::")[2] == "reduce"]
    given = [children(listed) for n in calls if (listed := n.child_by_field_name("arguments")) is not None]
    return frozenset(text(parts[2]) for parts in given if len(parts) == 3)


def orderless(loop: StrideLoop, functions: frozenset[str]) -> bool:
    """Whether variables that live longer than an iteration are only summed, multiplied, replaced by their extremum, or combined."""
    declared = {n for d in walk(loop.body) if d.type == "declaration" for n, _ in declarators(d)}
    for node in walk(loop.body):
        if node.type == "update_expression":
            target = node.child_by_field_name("argument")
            if target is not None and target.type == "identifier" and text(target) not in declared:
                return False
        if node.type != "assignment_expression":
            continue
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or right is None or left.type != "identifier" or text(left) in declared:
            continue
        name = text(left)
        if text(sign) in ("+=", "*=") and name not in names(right):
            continue
        if text(sign) != "=":
            return False
        sums = [text(t) for t in operands(right, "+")]
        if sums.count(name) == 1 and len(sums) > 1 and "".join(sums).count(name) == 1:
            continue
        function = right.child_by_field_name("function") if right.type == "call_expression" else None
        arguments = right.child_by_field_name("arguments")
        if function is None or arguments is None or text(function) not in _EXTREMA | functions:
            return False
        if [text(a) for a in children(arguments)].count(name) != 1:
            return False
    return True


def own_elements(body: Node, loops: list[StrideLoop], pointers: dict[str, tuple[str, str]]) -> bool:
    """Whether shared and local arrays that a loop indexes by its variable are used by these loops alone, each thread's own elements.

    Another thread takes an element afterwards, in all of these loops alike.
    """
    own: set[int] = set()
    arrays: set[str] = set()
    for loop in loops:
        for node in walk(loop.body):
            array = node.child_by_field_name("argument") if node.type == "subscript_expression" else None
            if array is None or text(array) in pointers or loop.variable not in names(node) or _counted(node):
                continue
            at = index_of(node)
            if array.type != "identifier" or at is None or text(at) != loop.variable:
                return False
            own.add(array.start_byte)
            arrays.add(text(array))
    uses = [n for n in walk(body) if n.type == "identifier" and text(n) in arrays]
    return all(n.start_byte in own or _declared_here(n) for n in uses)


def _counted(element: Node) -> bool:
    """Whether an element is the target of an atomic, of whichever thread."""
    above = element.parent
    listed = above.parent if above is not None and above.type == "pointer_expression" else None
    call = listed.parent if listed is not None and listed.type == "argument_list" else None
    return (
        call is not None and listed is not None and children(listed)[0] == above and called(call).startswith("atomic")
    )


def _declared_here(name: Node) -> bool:
    return any(above.type == "declaration" for above in ancestors(name)) and not any(
        above.type in ("subscript_expression", "init_declarator") for above in ancestors(name)
    )
