"""Load and store several neighbouring elements at once in loops over rows."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from engine.cuda.definitions import expression
from engine.cuda.questions import Polynomial, atom, declarators, number, pure, written
from engine.cuda.subscripts import always, in_other_arm, index_of, is_target, only_stored
from engine.cuda.syntax import THREAD_NAMES, called, children, names, operands, strip, text, walk
from engine.rewrite import Edit, Edits, Node, Proposals, Site, Span, factor_text, merge, proposal, reindent
from engine.rules.idioms import StrideLoop, aligned, definition, global_axis, in_parameters, packs, stride_loop, widths
from engine.rules.idioms.packs import pack_bytes, pack_size
from engine.rules.idioms.shared_elements import combining, counters, lasting, orderless, own_elements
from engine.rules.rows.row_pointers import row_pointers

T = TypeVar("T")

_LANE = re.compile(r"threadIdx\.x(?:%(\w+)|&\((\w+)-1\)|&(31))")
_LOOPS = frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop"})
_MAX_POINTERS = 8
_MEETING = re.compile(
    r"__shfl|__sync|__ballot|__any|__all|__reduce|__match|atomic|(?:cg::|cooperative_groups::)?(?:reduce|sync)"
)


@dataclass(frozen=True)
class RowUse:
    """An access `pointer[base + j]`."""

    node: Node
    pointer: str
    base: str  # "" for pointer[j]
    kind: str
    size: int
    stored: bool

    @property
    def key(self) -> tuple[str, str]:
        return self.pointer, self.base

    @property
    def address(self) -> str:
        return f"{self.pointer} + {self.base}" if self.base else self.pointer


@dataclass(frozen=True)
class VectorLoop:
    """Names of a loop over vectors of `count` elements: the vector's number, the element within it, vectors by access, their types."""

    count: int
    vector: str
    lane: str
    named: Mapping[tuple[str, str], str]
    kinds: Mapping[str, str]


class RowVectorize:
    """Vector loads and stores in every loop of a kernel that runs over the same row in the same way."""

    name = "row_vectorize"
    summary = "Vector loads and stores along a row"

    def propose(self, site: Site) -> Proposals:
        if not site.sound:
            return

        def kept(loop: StrideLoop) -> StrideLoop | None:
            shared = shared_by(site, loop.start, loop.step)
            # Lanes that share a row stay together in its loop; what a thread does alone with each element may be a loop too.
            nested = shared != "thread" and any(n.type in _LOOPS for n in walk(loop.body))
            return None if shared == "" or nested else loop

        for order, loops in enumerate(alike_loops(site, kept)):
            uses = vector_uses(site, loops, together=shared_by(site, loops[0].start, loops[0].step) != "thread")
            if uses is None:
                continue
            sizes = [u.size for listed in uses for u in listed]
            for rank, count in enumerate(widths(sizes)):
                yield from proposal(
                    self.name,
                    f"Vector loads and stores of {count} elements in the loops over {text(loops[0].bound)}",
                    _vectorized(site, loops, uses, count),
                    0.45 - 0.1 * rank - 0.05 * order,
                    width=count,
                    line=site.unit.line_of(loops[0].node.start_byte),
                )


def alike_loops(site: Site, kept: Callable[[StrideLoop], T | None]) -> list[list[T]]:
    """What is kept of the kernel's loops, those of one block of statements together that run over the same in the same way."""
    groups: dict[tuple[str, str, str, int], list[T]] = {}
    for node in walk(site.body):
        loop = stride_loop(node)
        if loop is None or loop.node.parent is None or loop.node.parent.type != "compound_statement":
            continue
        if (one := kept(loop)) is not None:
            key = (text(loop.start), text(loop.bound), loop.step, loop.node.parent.id)
            groups.setdefault(key, []).append(one)
    return list(groups.values())


def shared_by(site: Site, first: Node, step: str) -> str:
    """Who shares the iterations of a loop from `first` on: "thread" (0, 1), "warp", "block" or "grid"; "" where the two do not fit."""
    start, local = _resolved(site, first), definition(site, step)
    step = (text(local) if local is not None else step).replace(" ", "").strip("()")
    written_step = local or expression(step)
    each = site.scope.index(written_step) if written_step is not None else None
    written_start = text(start).replace(" ", "") if start is not None else ""
    if written_start == "0" and step == "1":
        return "thread"
    blocks = {c.block for c in site.configs}
    width = blocks.pop() if len(blocks) == 1 else (0, 0, 0)
    flat = width[1:] == (1, 1)
    value = site.value_of(step)
    if written_start == "threadIdx.x" and (step == "blockDim.x" or value == width[0]):
        return "block"
    if each is not None and _all_threads(site.scope.index(first), each, width):
        return "block"
    lane = _LANE.fullmatch(written_start)
    lanes = (32 if lane[3] else site.value_of(lane[1] or lane[2])) if lane is not None else 0
    if lanes == value == 32 and flat and width[0] % 32 == 0:
        return "warp"
    shape = global_axis(start) if start is not None else None
    if shape is not None and shape[0] == "x" and shape[2] == 1:
        whole = number(int(shape[1])) if shape[1].isdigit() else atom(shape[1])
        return "grid" if each == whole.times(atom("gridDim.x")) else ""
    return ""


def _all_threads(start: Polynomial | None, step: Polynomial, width: tuple[int, int, int]) -> bool:
    """Whether the iterations are those of all threads of blocks of two dimensions, one after the other."""
    flat = ({("threadIdx.x",): 1, ("blockDim.x", "threadIdx.y"): 1}, {("threadIdx.x",): 1, ("threadIdx.y",): width[0]})
    whole = ({("blockDim.x", "blockDim.y"): 1}, {(): width[0] * width[1]})
    return start is not None and width[2] == 1 and start.terms in flat and step.terms in whole


def _resolved(site: Site, node: Node) -> Node | None:
    node = strip(node)
    return definition(site, text(node)) if node.type == "identifier" else node


def vector_uses(site: Site, loops: list[StrideLoop], *, together: bool) -> list[list[RowUse]] | None:
    """The vectorisable accesses of each loop; None where a loop of the group stands in the way.

    `together`: several threads share the iterations, and will share them in another way.
    """
    pointers = row_pointers(site)
    body = site.body
    roots_written: set[str] = set()
    reached: set[tuple[str, str]] = set()  # what this loop or one before it reads or stores at every index
    found: list[list[RowUse]] = []
    for loop in loops:
        leaves = any(n.type in ("break_statement", "return_statement") for n in walk(loop.body))
        if leaves or not site.local_only(loop.body, counters(loop.body)):
            return None
        uses = _uses(site, loop, pointers)
        if uses is None or (together and not orderless(loop, combining(body))):
            return None
        if together and not _meets(site) and lasting(loop):
            return None  # each thread's own result would be made of other elements
        here = {u.key for u in uses if always([v.node for v in uses if v.key == u.key], loop.body)}
        if {u.key for u in uses if u.stored} - here:
            return None
        reached |= here
        roots_written |= {pointers[u.pointer][1] for u in uses if u.stored}
        found.append([u for u in uses if u.key in reached])
    if not any(found):
        return None
    invariants = set().union(
        *(set(re.findall(r"(?<![.\w])[A-Za-z_]\w*", u.base)) | {u.pointer} for listed in found for u in listed)
    )
    later = {n: value for n in invariants if (value := _later(site, n, loops[0].node)) is not None}
    invariants = (invariants - later.keys()).union(*(names(value) for value in later.values()))
    if not _available(site, invariants | names(loops[0].start) | names(loops[0].bound), loops[0].node):
        return None
    if roots_written and not site.pointers_distinct:
        return None
    if together and roots_written and not _contained(body, loops, found, pointers, roots_written):
        return None
    if together and not own_elements(body, loops, pointers):
        return None
    return found


def _uses(site: Site, loop: StrideLoop, pointers: dict[str, tuple[str, str]]) -> list[RowUse] | None:
    """Accesses at `base + variable` with an invariant base. None where a stored array is used in another way."""
    changed = written(loop.body)
    declared = {n for d in walk(loop.body) if d.type == "declaration" for n, _ in declarators(d)}
    found: list[RowUse] = []
    others: set[str] = set()
    for node in walk(loop.body):
        if node.type == "identifier" and text(node) in pointers:
            parent = node.parent
            if (
                parent is None
                or parent.type != "subscript_expression"
                or parent.child_by_field_name("argument") != node
            ):
                others.add(pointers[text(node)][1])
                continue
            index = index_of(parent)
            terms = operands(index, "+") if index is not None else []
            own = [t for t in terms if text(t) == loop.variable]
            rest = [t for t in terms if text(t) != loop.variable]
            used = set().union(*(names(t) for t in rest)) if rest else set()
            above = parent.parent
            taken = above is not None and above.type == "pointer_expression"
            if (
                len(own) != 1
                or used & (changed | declared | {loop.variable})
                or not all(pure(t) for t in rest)
                or taken
            ):
                others.add(pointers[text(node)][1])
                continue
            if any(n.type in ("subscript_expression", "call_expression") for t in rest for n in walk(t)):
                others.add(pointers[text(node)][1])
                continue
            kind = pointers[text(node)][0]
            base = " + ".join(text(t) for t in rest)
            found.append(RowUse(parent, text(node), base, kind, pack_size(site, kind) or 0, is_target(parent)))
    stored = {pointers[u.pointer][1] for u in found if u.stored}
    counted = {pointers[n][1] for n in changed if n in pointers and _only_counted(loop.body, n)}
    if stored & others or {pointers[n][1] for n in changed if n in pointers} - stored - counted or "" in changed:
        return None
    for root in stored:
        bases = {u.key: u.base for u in found if pointers[u.pointer][1] == root}
        if len(bases) != 1 and not _apart(site, loop, bases):
            return None
    return found if len({u.key for u in found}) <= _MAX_POINTERS else None


def _apart(site: Site, loop: StrideLoop, bases: Mapping[tuple[str, str], str]) -> bool:
    """Whether accesses through one pointer are further from each other than the loop is long."""
    bound = in_parameters(site, loop.bound)
    length = site.value_of(bound) if bound is not None else None
    places = sorted(place for base in bases.values() if (place := site.value_of(base or "0")) is not None)
    if length is None or len(places) != len(bases) or len({pointer for pointer, _ in bases}) != 1:
        return False
    return all(b - a >= length for a, b in pairwise(places))


def _only_counted(body: Node, array: str) -> bool:
    """Whether every use of the array below the node is the target of an atomic."""
    for node in walk(body):
        if node.type == "identifier" and text(node) == array:
            above = node.parent
            while above is not None and above.type in ("subscript_expression", "pointer_expression"):
                above = above.parent
            call = above.parent if above is not None and above.type == "argument_list" else None
            first = children(above)[0] if above is not None and call is not None else None
            if call is None or first is None or not called(call).startswith("atomic"):
                return False
            if not first.start_byte <= node.start_byte < first.end_byte:
                return False
    return True


def _meets(site: Site) -> bool:
    """Whether threads may put together what each of them found: by shared memory, shuffles, atomics, or in a function."""
    functions = {f.name for unit in (site.unit, *site.headers) for f in unit.functions} | site.function_macros.keys()
    return bool(site.kernel.shared) or any(_MEETING.match(c) or c in functions for c in site.kernel.calls)


def _begin(site: Site, use: RowUse, at: Node) -> str:
    """The address of a use's first element where `at` stands, before which its pointer may not be declared yet."""
    value = _later(site, use.pointer, at)
    return use.address if value is None else f"{text(value)} + {use.base}" if use.base else text(value)


def _later(site: Site, name: str, at: Node) -> Node | None:
    """What a pointer is defined as that is declared behind the node; None for others."""
    found = [d for d in site.scope.declared.get(name, []) if d.shape == "pointer" and not site.scope.changed(d)]
    behind = len(found) == 1 and found[0].node.start_byte > at.start_byte
    return found[0].value if behind else None


def _available(site: Site, wanted: set[str], at: Node) -> bool:
    """Whether all names have their final value before the node: parameters or locals that nothing changes later."""
    changed = written(site.body)
    parameters = {p.name for p in site.kernel.parameters}
    pointers = {p.name for p in site.kernel.parameters if p.pointer}
    for name in wanted:
        if name in site.unit.macros or name in site.unit.constants or name in THREAD_NAMES:
            continue
        if name in parameters:
            if name in changed and name not in pointers:
                return False
            continue
        holders = [d for d in walk(site.body) if d.type == "declaration" and re.search(rf"\b{name}\b\s*=", text(d))]
        if len(holders) != 1 or holders[0].end_byte > at.start_byte or holders[0].parent is None:
            return False
        scope, above = holders[0].parent, at.parent
        while above is not None and above != scope:
            above = above.parent
        if above is None or (name in changed and definition(site, name) is None and not _is_pointer(holders[0], name)):
            return False
    return True


def _is_pointer(declaration: Node, name: str) -> bool:
    return bool(re.search(rf"\*\s*(?:const\s+|__restrict__\s+)*{name}\b", text(declaration)))


def _contained(
    body: Node,
    loops: list[StrideLoop],
    found: list[list[RowUse]],
    pointers: dict[str, tuple[str, str]],
    roots: set[str],
) -> bool:
    """Whether arrays that the loops store are used in these loops alone, at one place per iteration.

    Other threads take other elements afterwards; a thread that reads back what it stored must still be the one. What the other arm of
    an `if` only stores is not read back.
    """
    keys = {u.key for listed in found for u in listed if pointers[u.pointer][1] in roots}
    if len({(pointers[p][1], b) for p, b in keys}) != len(roots) or len(keys) != len(roots):
        return False
    known = {u.node.id for listed in found for u in listed}
    for node in walk(body):
        if node.type == "identifier" and text(node) in pointers and pointers[text(node)][1] in roots:
            parent = node.parent
            if parent is None:
                return False
            own = parent.type != "subscript_expression" or parent.id in known
            if not own and not (only_stored([parent], text(node)) and in_other_arm(parent, loops[0].node)):
                return False
    return True


def _vectorized(site: Site, loops: list[StrideLoop], found: list[list[RowUse]], count: int) -> Edits | None:
    taken: list[str] = []

    def name_for(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    flat = [u for listed in found for u in listed]
    vector, lane = name_for(f"{loops[0].variable}{count}"), name_for("k")
    flag, whole = name_for("aligned"), name_for("whole")
    named = {key: name_for(f"{key[0]}_pack") for key in dict.fromkeys(u.key for u in flat)}
    kinds, edits = packs(site, [u.kind for u in flat], count, taken)
    first = loops[0]
    unit = site.indent_unit
    addresses = dict.fromkeys((_begin(site, u, first.node), pack_bytes(site, u.kind, count)) for u in flat)
    condition = aligned(list(addresses))
    # Nothing is left for the vectors where an address is odd: the scalar loop then does all.
    indent = site.indent_at(first.node.start_byte)
    start = f"const bool {flag} = {condition};\n{indent}const {first.type} {whole} = "
    start += f"{flag} ? {factor_text(first.bound)} / {count} * {count} : 0;"
    for order, (loop, uses) in enumerate(zip(loops, found, strict=True)):
        outer = site.indent_at(loop.node.start_byte)
        inner = outer + unit
        lines = [start] if order == 0 else []
        lines.append(
            f"{outer if lines else ''}for ({loop.type} {vector} = {text(loop.start)}; {vector} < {whole} / {count}; "
            + (f"++{vector}) {{" if loop.step == "1" else f"{vector} += {loop.step}) {{")
        )
        lines += vector_body(site, loop, uses, VectorLoop(count, vector, lane, named, kinds), inner)
        lines.append(f"{outer}}}")
        begin = whole if text(loop.start) == "0" else f"{whole} + {text(loop.start)}"
        update = f"++{loop.variable}" if loop.step == "1" else f"{loop.variable} += {loop.step}"
        lines += [
            f"{outer}for ({loop.type} {loop.variable} = {begin}; {loop.variable} < {text(loop.bound)}; {update}) {{",
            loop_body(site, loop, [], inner),
            f"{outer}}}",
        ]
        edits = [*edits, Edit(Span(_with_pragma(loop.node), loop.node.end_byte), "\n".join(lines))]
    return merge(site.in_file(*edits))


def vector_body(site: Site, loop: StrideLoop, uses: list[RowUse], packed: VectorLoop, indent: str) -> list[str]:
    """The lines of the body for one vector of elements."""
    count, lane = packed.count, packed.lane
    lines: list[str] = []
    for key in dict.fromkeys(u.key for u in uses):
        own, name = [u for u in uses if u.key == key], packed.named[key]
        pack = packed.kinds[own[0].kind]
        const = "" if any(u.stored for u in own) else "const "
        if _first_is_plain_store(own, loop):
            lines.append(f"{indent}{pack} {name};")
        else:
            source = f"reinterpret_cast<const {pack}*>({own[0].address})[{packed.vector}]"
            lines.append(f"{indent}{const}{pack} {name} = {source};")
    deeper = indent + site.indent_unit
    lines += [f"{indent}#pragma unroll", f"{indent}for (int {lane} = 0; {lane} < {count}; ++{lane}) {{"]
    replaced = [(u.node.start_byte, u.node.end_byte, f"{packed.named[u.key]}.at[{lane}]") for u in uses]
    if _variable_used(loop, replaced):
        lines.append(f"{deeper}const {loop.type} {loop.variable} = {packed.vector} * {count} + {lane};")
    lines += [loop_body(site, loop, replaced, deeper), f"{indent}}}"]
    for key in dict.fromkeys(u.key for u in uses):
        own, name = [u for u in uses if u.key == key], packed.named[key]
        if any(u.stored for u in own):
            target = f"reinterpret_cast<{packed.kinds[own[0].kind]}*>({own[0].address})[{packed.vector}]"
            lines.append(f"{indent}{target} = {name};")
    return lines


def _with_pragma(loop: Node) -> int:
    """The start of the loop, or of the unroll pragma over it, which would otherwise hang over something else."""
    above = loop.prev_sibling
    if above is not None and re.match(r"#\s*pragma\s+unroll", text(above)):
        return above.start_byte
    return loop.start_byte


def _first_is_plain_store(uses: list[RowUse], loop: StrideLoop) -> bool:
    """Whether every element is stored before it is read, so that the old vector need not be loaded."""
    nodes = [u.node for u in uses]
    if only_stored(nodes, uses[0].pointer) and always(nodes, loop.body):
        return True
    first = min(uses, key=lambda u: u.node.start_byte).node
    parent = first.parent
    if parent is None or parent.type != "assignment_expression" or parent.child_by_field_name("left") != first:
        return False
    sign, right = parent.child_by_field_name("operator"), parent.child_by_field_name("right")
    statement = parent.parent
    top = statement is not None and (statement == loop.body or statement.parent == loop.body)
    within = right is not None and any(right.start_byte <= u.node.start_byte < right.end_byte for u in uses)
    skipped = any(n.type == "continue_statement" for n in walk(loop.body))
    return sign is not None and text(sign) == "=" and top and not within and not skipped


def _variable_used(loop: StrideLoop, replaced: list[tuple[int, int, str]]) -> bool:
    return any(
        n.type == "identifier" and text(n) == loop.variable and not any(a <= n.start_byte < b for a, b, _ in replaced)
        for n in walk(loop.body)
    )


def loop_body(site: Site, loop: StrideLoop, changes: list[tuple[int, int, str]], indent: str) -> str:
    body = loop.body
    if body.type != "compound_statement":
        return indent + site.render(body.start_byte, body.end_byte, changes)
    inside = site.render(body.start_byte + 1, body.end_byte - 1, changes).strip("\n").rstrip()
    listed = children(body)
    if "\n" not in inside:
        return indent + inside.strip()
    return reindent(inside, site.indent_at(listed[0].start_byte) if listed else "", indent)
