"""The part of a row that a thread reads in several loops stays in registers between them.

Each thread loads its elements once, all loads in flight together; what is longer than the registers hold is read as
before. Source: CUDA C++ Best Practices Guide, "Registers"; the residency of rows in Milakov and Gimelshein, "Online
normalizer calculation for softmax" (2018).
"""

import re
from dataclasses import dataclass, replace

from engine.cuda.questions import Number, assigned, unconditional, written
from engine.cuda.syntax import children, inside, names, root_name, strip, text, tokens, walk
from engine.rewrite import Case, Edit, Node, Proposals, Scope, Site, Span, is_plain, proposal, reindent
from engine.rules.idioms import StrideLoop, definition, size_of, stride_loop

_MOST_BYTES = 256  # of one thread: a quarter of its registers
_FEWEST = 2  # elements of a thread: below that there is nothing to overlap
_PACK = re.compile(r"struct\s+alignas\((\d+)\)\s+(\w+)\b")
_CAST = re.compile(r"reinterpret_cast\s*<\s*const\s+(\w+)\s*\*\s*>\s*\(")


@dataclass(frozen=True)
class _Kept:
    """One element that several loops use: its type, bytes, and where each loop reads it.

    `first` is the assignment from which it is known, where a loop computes it (else it is loaded); `last` the one that
    gives the array's element its final value, where a later loop has one.
    """

    type: str
    size: int
    reads: dict[int, list[Node]]  # by the loop's number
    first: Node | None = None
    last: Node | None = None

    def begins(self) -> int:
        """The number of the first loop that uses it."""
        return min(self.reads)


class RowKeep:
    """Keep in registers what several loops over a row read."""

    name = "row_keep"
    summary = "Keep a row in registers between the loops that read it"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.manageable or not site.configs or not site.pointers_distinct:
            return
        scope = site.scope
        changed = _changed_arrays(site, scope)
        if changed is None:
            return
        for order, loops in enumerate(_groups(site)):
            kept = _kept(site, scope, loops, changed)
            kept += [k for a in sorted(changed) if (k := _computed(site, scope, loops, a)) is not None]
            count = _count(site, loops[0])
            if not kept or count is None or count < _FEWEST or count * sum(k.size for k in kept) > _MOST_BYTES:
                continue
            yield from proposal(
                self.name,
                f"Keep {count} elements of the row per thread in registers across {len(loops)} loops",
                site.in_file(*_rewrite(site, loops, kept, count)),
                0.6 - 0.05 * order,
                count=count,
                line=site.unit.line_of(loops[0].node.start_byte),
            )


def _groups(site: Site) -> list[list[StrideLoop]]:
    """Loops of one block of statements that give a thread the same iterations, where there are several."""
    groups: dict[tuple[str, str, str, int], list[StrideLoop]] = {}
    for node in walk(site.body):
        loop = stride_loop(node, memory=True)
        if loop is None or node.parent is None or node.parent.type != "compound_statement":
            continue
        key = (tokens(strip(loop.start)), tokens(strip(loop.bound)), loop.step.replace(" ", ""), node.parent.id)
        groups.setdefault(key, []).append(loop)
    return [g for g in groups.values() if len(g) > 1 and _same_until_last(g) and not any(_ends_early(x) for x in g)]


def _ends_early(loop: StrideLoop) -> bool:
    """Whether something may end the loop before its bound: the iterations become those of two loops."""
    return any(n.type in ("break_statement", "return_statement") for n in walk(loop.body))


def _same_until_last(loops: list[StrideLoop]) -> bool:
    """Whether nothing that the bounds are made of changes from the first loop to the last."""
    used = names(loops[0].start) | names(loops[0].bound) | set(re.findall(r"[A-Za-z_]\w*", loops[0].step))
    node: Node | None = loops[0].node
    while node is not None and node != loops[-1].node:
        if used & written(node):
            return False
        node = node.next_named_sibling
    return True


def _changed_arrays(site: Site, scope: Scope) -> set[str] | None:
    """The parameters whose arrays the kernel writes; None where that cannot be told."""
    shared = {s.name for s in site.kernel.shared}
    found = set()
    for node in walk(site.body):
        target = assigned(node)
        if node.type == "call_expression" and text(node.child_by_field_name("function") or node).startswith("atomic"):
            found |= {n for n in names(node) if n in scope.pointers}
        target = strip(target) if target is not None else None
        while target is not None and target.type == "field_expression":
            target = strip(target.child_by_field_name("argument") or target.children[0])
        if target is None or target.type == "identifier":
            continue
        origin = scope.element(target) if target.type in ("subscript_expression", "pointer_expression") else None
        if origin is not None:
            found.add(origin[0])
            continue
        declared = scope.lookup(root_name(target), target)
        if root_name(target) not in shared and (declared is None or declared.shape not in ("array", "scalar")):
            return None
    # A pointer handed to a function may be written there.
    for call in (n for n in walk(site.body) if n.type == "argument_list"):
        found |= {text(a) for a in children(call) if a.type == "identifier" and text(a) in scope.pointers}
    return found


def _kept(site: Site, scope: Scope, loops: list[StrideLoop], changed: set[str]) -> list[_Kept]:
    found: dict[str, _Kept] = {}
    moved = written(site.body)
    for number, loop in enumerate(loops):
        read: dict[tuple[str, str, int], list[Node]] = {}
        for node in walk(loop.body):
            element = _element(site, scope, loop, node, changed) if node.type == "subscript_expression" else None
            if element is not None and not names(node) & (moved - {loop.variable}):
                read.setdefault(element, []).append(node)
        for (key, kind, size), nodes in read.items():
            # The first loop fills the registers, with what is read at every index: there may be no more of the row.
            if key in found or any(unconditional(n, loop.body) for n in nodes):
                found.setdefault(key, _Kept(kind, size, {})).reads[number] = nodes
    return [k for k in found.values() if len(k.reads) > 1]


def _computed(site: Site, scope: Scope, loops: list[StrideLoop], array: str) -> _Kept | None:
    """The element of an array that one loop stores and later ones use; None where other elements may be meant."""
    accesses: list[tuple[int, Node, int, Node | None]] = []
    keys, shared = set(), {s.name for s in site.kernel.shared}
    for node in walk(site.body):
        origin = scope.element(node) if node.type == "subscript_expression" else None
        star = node.type == "pointer_expression" and text(node).startswith("*")
        if (star and (scope.element(node) or (array, None))[0] == array) or (
            node.type == "argument_list" and any(_pointer_to(scope, a, array) for a in children(node))
        ):
            return None
        if node.type == "subscript_expression" and origin is None:
            pointer = node.child_by_field_name("argument")
            if pointer is None or not (root_name(node) in shared or scope.apart(pointer)):
                return None  # a pointer that moves on may reach this array, too
        if origin is None or origin[0] != array:
            continue
        number = next((k for k, x in enumerate(loops) if inside(node, x.body)), None)
        use = _element(site, scope, loops[number], node, set(), stored=True) if number is not None else None
        if number is None or use is None or "reinterpret_cast" in text(node):
            return None
        keys.add(use)
        change = _change(node, loops[number])
        # What an assignment changes, it changes last.
        accesses.append((change.end_byte if change is not None else node.start_byte, node, number, change))
    accesses.sort(key=lambda a: a[0])
    if len(keys) != 1:
        return None
    found: _Kept | None = None
    (_, kind, size), begins = keys.pop(), accesses[0][2]
    for _, node, number, change in accesses:
        writes = node.parent is not None and assigned(node.parent) == node
        if writes and change is None:
            return None
        if found is None:
            if number != begins or (
                change is not None and text(change.child_by_field_name("operator") or change) != "="
            ):
                return None
            found = _Kept(kind, size, {number: []}, change) if change is not None else None
        elif found.last is not None or (change is not None and number == begins):
            return None
        else:
            found.reads.setdefault(number, [])
            if change is not None:
                found = replace(found, last=change)
            else:
                found.reads[number].append(node)
    return found if found is not None and len(found.reads) > 1 else None


def _pointer_to(scope: Scope, argument: Node, array: str) -> bool:
    """Whether a call's argument is a pointer into the array."""
    node = strip(argument)
    if node.type not in ("identifier", "binary_expression", "pointer_expression"):
        return False
    origin = scope.base(node)
    return origin is not None and origin[0] == array


def _change(access: Node, loop: StrideLoop) -> Node | None:
    """The assignment to the element, where it is a statement of the loop's body itself."""
    change = access.parent
    statement = change.parent if change is not None else None
    if change is None or statement is None or change.child_by_field_name("left") != access:
        return None
    direct = (statement == loop.body or statement.parent == loop.body) and unconditional(access, loop.body)
    return change if change.type == "assignment_expression" and direct else None


def _element(
    site: Site, scope: Scope, loop: StrideLoop, node: Node, changed: set[str], *, stored: bool = False
) -> tuple[str, str, int] | None:
    """(key, type, bytes) of a read of the row by the loop's counter; None for other accesses."""
    above = node.parent
    if above is not None and (above.type == "pointer_expression" or (assigned(above) == node and not stored)):
        return None
    origin = scope.element(node)
    if origin is None or origin[0] in changed or loop.variable not in names(node):
        return None
    array, index = origin
    parameter = scope.parameters.get(array)
    cast = _CAST.match(text(node))
    if cast is not None:
        packs = {m[2]: int(m[1]) for m in _PACK.finditer(site.unit.data.decode("utf-8", "replace"))}
        size = packs.get(cast[1])
        inner = node.child_by_field_name("indices")
        if size is None or inner is None or [text(c) for c in children(inner)] != [loop.variable]:
            return None
        argument = node.child_by_field_name("argument")
        return f"{array} {tokens(argument or node)}", cast[1], size
    parts = index.split(loop.variable) if index is not None else None
    if parameter is None or parts is None or parts[0].constant != 1 or index is None:
        return None
    try:
        size = size_of(parameter.base)
    except KeyError:
        return None
    local = {d.name for same in scope.declared.values() for d in same if d.scope != scope.body}
    if "[" in index.render() or (index.names() - {loop.variable}) & local & written(loop.body):
        return None
    return f"{array} {index.renamed(loop.variable, '#').render()}", parameter.base, size


def _count(site: Site, loop: StrideLoop) -> int | None:
    """How many iterations a thread has in the longest timing case; None where that cannot be told."""
    longest = 0
    for case, config in zip(site.spec.time, site.configs, strict=True):
        step = loop.step.replace(" ", "").strip("()")
        stride = {"blockDim.x": config.block[0], "warpSize": 32}.get(step)
        step = site.unit.macros.get(step, site.unit.constants.get(step, step))
        if stride is None and step.isdigit():
            stride = int(step)
        if stride is None and step.isidentifier():
            local = definition(site, step)
            value = _most(site, local, case) if local is not None else None
            stride = config.block[0] if local is not None and text(local).replace(" ", "") == "blockDim.x" else value
        last = _most(site, loop.bound, case)
        if stride is None or stride < 32 or last is None or not _by_thread(site, loop.start):
            return None
        longest = max(longest, -(-last // stride))
    return longest


def _by_thread(site: Site, start: Node) -> bool:
    """Whether a loop begins at the thread's number, or a small number after it."""
    found = set()
    for name in names(start):
        local = definition(site, name)
        found |= {name} if local is None else names(local)
    return "threadIdx" in found and found <= {"threadIdx", "warpSize"}


def _most(site: Site, node: Node, case: Case, depth: int = 0) -> int | None:
    """The greatest value that an integer expression may have in one case."""
    node = strip(node)
    if depth > 8:
        return None
    if node.type == "number_literal":
        digits = text(node).rstrip("uUlL")
        return int(digits) if digits.isdigit() else None
    if node.type == "identifier":
        values: dict[str, Number] = site.scalar_values(case)
        known = values.get(text(node))
        if isinstance(known, int):
            return known
        constant = site.unit.macros.get(text(node), site.unit.constants.get(text(node), ""))
        if constant.isdigit():
            return int(constant)
        local = definition(site, text(node))
        return _most(site, local, case, depth + 1) if local is not None else None
    if node.type == "conditional_expression":
        sides = [node.child_by_field_name(f) for f in ("consequence", "alternative")]
        found = [_most(site, s, case, depth + 1) for s in sides if s is not None]
        return max((f for f in found if f is not None), default=None) if None not in found else None
    left, sign, right = (node.child_by_field_name(f) for f in ("left", "operator", "right"))
    if node.type != "binary_expression" or left is None or sign is None or right is None:
        return None
    a, b = _most(site, left, case, depth + 1), _most(site, right, case, depth + 1)
    if a is None or b is None or a < 0 or b < 0:
        return None
    match text(sign):
        case "+":
            return a + b
        case "*":
            return a * b
        case "/" if b:
            return a // b
        case "-":
            return a - b
    return None


def _rewrite(site: Site, loops: list[StrideLoop], kept: list[_Kept], count: int) -> list[Edit]:
    unit = site.indent_unit
    taken: list[str] = []

    def name(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    held = [name("kept") for _ in kept]
    at = name("slot")
    edits = []
    for number, loop in enumerate(loops):
        mine = [(k, h) for k, h in zip(kept, held, strict=True) if number in k.reads]
        if not mine:
            continue
        outer = site.indent_at(loop.node.start_byte)
        inner, deep = outer + unit, outer + unit * 2
        start, step = text(loop.start), loop.step
        start = start if is_plain(start) or "?" not in start else f"({start})"
        far = step if is_plain(step.replace(".", "")) else f"({step})"
        head = [
            "#pragma unroll",
            f"for (int {at} = 0; {at} < {count}; ++{at}) {{",
            f"{unit}const {loop.type} {loop.variable} = {start} + {at} * {far};",
            f"{unit}if ({loop.variable} < {text(loop.bound)}) {{",
        ]
        lines: list[str] = []
        first = [(k, h) for k, h in mine if k.begins() == number]
        lines += [f"{outer}{k.type} {h}[{count}];" for k, h in first]
        first = [(k, h) for k, h in first if k.first is None]
        if first:
            lines += [outer + line for line in head]
            lines += [f"{deep}{h}[{at}] = {text(k.reads[number][0])};" for k, h in first]
            lines += [f"{inner}}}", f"{outer}}}"]
        changes = [(n.start_byte, n.end_byte, f"{h}[{at}]") for k, h in mine for n in k.reads[number]]
        for k, h in mine:
            changes += _assigned(k, loop, f"{h}[{at}]")
        lines += [outer + line for line in head]
        lines.append(_body(site, loop, deep, changes))
        lines += [f"{inner}}}", f"{outer}}}"]
        lines.append(
            f"{outer}for ({loop.type} {loop.variable} = {start} + {count} * {far}; "
            f"{loop.variable} < {text(loop.bound)}; {loop.variable} += {step}) {{"
        )
        lines += [_body(site, loop, inner, []), f"{outer}}}"]
        begin = loop.node.start_byte
        pragma = loop.node.prev_sibling
        if pragma is not None and pragma.type == "preproc_call":
            begin = pragma.start_byte
        edits.append(Edit(Span(begin, loop.node.end_byte), "\n".join(lines).strip()))
    return edits


def _assigned(kept: _Kept, loop: StrideLoop, held: str) -> list[tuple[int, int, str]]:
    """Changes of the assignments that begin and end the element's life in registers."""
    changes = []
    if kept.first is not None and inside(kept.first, loop.body):
        left: Node | None = kept.first.child_by_field_name("left") or kept.first
        assert left is not None
        # A value that a later loop replaces need not be stored.
        changes.append((left.start_byte, left.end_byte, held if kept.last is not None else f"{text(left)} = {held}"))
    if kept.last is not None and inside(kept.last, loop.body):
        left, sign, right = (kept.last.child_by_field_name(f) for f in ("left", "operator", "right"))
        if left is not None and sign is not None and right is not None and text(sign) != "=":
            changes.append((sign.start_byte, sign.end_byte, f"= {held} {text(sign)[:-1]}"))
            if right.type == "binary_expression":
                changes += [(right.start_byte, right.start_byte, "("), (right.end_byte, right.end_byte, ")")]
    return changes


def _body(site: Site, loop: StrideLoop, indent: str, changes: list[tuple[int, int, str]]) -> str:
    statements = children(loop.body) if loop.body.type == "compound_statement" else [loop.body]
    start, end = statements[0].start_byte, statements[-1].end_byte
    own = site.indent_at(start)
    return reindent(own + site.render(start, end, changes), own, indent)
