"""Compare-exchange stages in shared memory, as of a bitonic sort, through registers and warp shuffles.

A thread and its partner, whose number differs in one bit, exchange elements at every stage, and the whole block meets after each.
Stages within a warp need neither shared memory nor barriers (CUDA C++ Programming Guide, "Warp Shuffle Functions").
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from engine.cuda.questions import Declared, variables, written
from engine.cuda.syntax import THREAD_NAMES, called, children, compact, inside, names, strip, text, walk
from engine.rewrite import Edit, Node, Pattern, Proposals, SharedArray, Site, Span, once, proposal, reindent, template
from engine.rules.idioms import SHUFFLED, WARP, doubles, halves, is_barrier, is_block, is_thread, one_dimensional
from engine.rules.idioms.strided_loop import with_pragma

_STAGES = Pattern(
    *(
        f"for ($I $stride = $first; {condition}; $step) {{ $J $partner = {xor}; if ($partner > $t) $work; $barrier; }}"
        for condition in ("$stride > 0", "$stride >= 1", "$stride != 0", "$stride")
        for xor in ("$t ^ $stride", "$stride ^ $t")
    )
)
_COMPARED = ("($x > $y) == $up", "$up == ($x > $y)", "$up ? $x > $y : $x < $y")
_SWAPPED = "{ $T $z = $own; $own = $other; $other = $z; }"
# The smaller element goes to the lower thread where `up` holds, else the larger one.
_ORDERED = Pattern(
    *(
        f"{{ $J $flag = $up; $T $x = $own; $T $y = $other; if ({c.replace('$up', '$flag')}) "
        "{ $own = $y; $other = $x; } }"
        for c in _COMPARED
    ),
    *(f"{{ $T $x = $own; $T $y = $other; if ({c}) {{ $own = $y; $other = $x; }} }}" for c in _COMPARED),
    *(f"if ({c.replace('$x', '$own').replace('$y', '$other')}) {_SWAPPED}" for c in _COMPARED),
    f"if ($up) {{ if ($own > $other) {_SWAPPED} }} else {{ if ($own < $other) {_SWAPPED.replace('$z', '$w')} }}",
)
_RUNS = Pattern(
    *(f"for ($I $s = 2; {last}; $step) $merge;" for last in ("$s <= $block", "$s < 2 * $block", "$s < $block * 2"))
)
_MERGE = Pattern(*(f"for ($I $stride = {half}; $condition; $step) $body;" for half in ("$size / 2", "$size >> 1")))
_UP = Pattern("($t & $size) == 0", "($size & $t) == 0", "!($t & $size)")
_DOWN = Pattern("($t & $size) != 0", "($size & $t) != 0")
# Equal elements cannot be told apart, and there are no NaNs.
_INTEGERS = SHUFFLED - {"float", "double"}
_COMPARISONS = frozenset({"==", "!=", "<", ">", "<=", ">="})
_LEAVES = ("return_statement", "break_statement", "continue_statement", "goto_statement")
_DEPTH = 12


@dataclass(frozen=True)
class Stages:
    """A nest of loops over stages. `work` is what the lower thread of a pair does with both elements of each of `arrays`."""

    site: Site
    nest: Node
    loop: Node
    stride: str
    partner: str
    thread: str
    work: Node
    arrays: tuple[SharedArray, ...]


class WarpExchange:
    """Elements that pairs of threads compare and exchange in shared memory stay in registers; warps exchange by shuffles.

    `buffers` 2 takes a second array for the stages between warps, which then need one barrier instead of two.
    """

    name = "warp_exchange"
    summary = "Use warp shuffles for compare-exchange instead of shared memory"

    def propose(self, site: Site) -> Proposals:
        stages = stages_of(site)
        if stages is None:
            return
        said = "Use warp shuffles for compare-exchange within warps"
        yield from proposal(self.name, said, site.in_file(*_edits(stages, twice=False)), 0.6, buffers=1)
        if not any(array.dynamic for array in stages.arrays):
            edits = site.in_file(*_edits(stages, twice=True))
            yield from proposal(self.name, f"{said}, with two buffers between warps", edits, 0.55, buffers=2)


@once
def stages_of(site: Site) -> Stages | None:
    """The first nest of stages in which all of a block's threads take part, each with an element; None where there is none."""
    blocks = one_dimensional(site) if site.sound and site.manageable else set()
    # Partners of a warp are then in it, and those of the block.
    if not blocks or any(block % WARP or block & (block - 1) for block in blocks):
        return None
    found = (_stages(site, node) for node in walk(site.body) if node.type == "for_statement")
    return next((each for each in found if each is not None), None)


def _stages(site: Site, node: Node) -> Stages | None:
    thread = partial(is_thread, site)
    found = _STAGES.match(node, t=thread, barrier=partial(is_barrier, site))
    if found is None or not halves(found["step"], text(found["stride"])):
        return None
    work, partner, stride = found["work"], text(found["partner"]), text(found["stride"])
    nest = _outermost(node)
    shared = {array.name: array for array in site.kernel.shared}
    used = [array for name, array in shared.items() if name in names(nest)]
    if not used or any(a.type not in SHUFFLED or len(a.extents) != 1 for a in used):
        return None
    arrays = {array.name for array in used}
    outside = {text(n) for n in walk(nest) if n.type == "identifier" and not inside(n, work)}
    if not all(_written_before(site, nest, name) for name in arrays) or outside & arrays:
        return None
    loops = {text(n) for header in _headers(nest) for n in walk(header) if n.type == "identifier"}
    if not _alone(site, work, arrays, partner) or not _same_for_all(site, work, arrays | loops | {partner}):
        return None
    return Stages(site, nest, node, stride, partner, text(found["t"]), work, tuple(used))


def _outermost(loop: Node) -> Node:
    """The outermost of the loops that do nothing but run this one."""
    while (around := loop.parent) is not None:
        if around.type == "compound_statement" and children(around) == [loop] and around.parent is not None:
            around = around.parent
        if around.type != "for_statement":
            break
        loop = around
    return loop


def _headers(nest: Node) -> Iterator[Node]:
    for loop in walk(nest):
        if loop.type == "for_statement":
            yield from (part for part in children(loop) if part != loop.child_by_field_name("body"))


def _written_before(site: Site, nest: Node, array: str) -> bool:
    """Whether every thread that reaches the nest stored its own element, so that it has one."""
    above = nest.prev_named_sibling
    while above is not None:
        stored = [_stored(part, array) for part in _branches(above)]
        if any(index is not None for index in stored):
            return all(index is not None and is_thread(site, index) for index in stored)
        above = above.prev_named_sibling
    return False


def _branches(statement: Node) -> list[Node]:
    """The statement, or both of an `if` with an `else`."""
    other = statement.child_by_field_name("alternative")
    then = statement.child_by_field_name("consequence")
    if statement.type != "if_statement" or then is None or other is None:
        return [statement]
    return [then, children(other)[0] if other.type == "else_clause" else other]


def _stored(statement: Node, array: str) -> Node | None:
    """The index of what a statement stores in the array; None where it is no such store, or one of several statements' at once."""
    while statement.type == "compound_statement" and len(children(statement)) == 1:
        statement = children(statement)[0]
    for node in children(statement) if statement.type == "expression_statement" else ():
        left = node.child_by_field_name("left") if node.type == "assignment_expression" else None
        if left is not None and left.type == "subscript_expression":
            return element_of(left, array)
    return None


def element_of(node: Node, array: str) -> Node | None:
    """The index of `array[index]`."""
    parts = children(node)
    if node.type != "subscript_expression" or len(parts) != 2 or text(parts[0]) != array:
        return None
    inner = children(parts[1]) if parts[1].type == "subscript_argument_list" else [parts[1]]
    return strip(inner[0]) if len(inner) == 1 else None


def _accesses(site: Site, work: Node, array: str, partner: str) -> dict[Node, bool] | None:
    """Each access of the array and whether it is the thread's own element, not its partner's; None for any other use."""
    found = {}
    for node in walk(work):
        index = element_of(node, array)
        if index is not None:
            own = is_thread(site, index)
            if not own and text(index) != partner:
                return None
            found[node] = own
    uses = [n for n in walk(work) if n.type == "identifier" and text(n) == array]
    return found if len(uses) == len(found) else None


def _locals(work: Node) -> list[Declared]:
    return [v for node in walk(work) if node.type == "declaration" for v in variables(node)]


def _alone(site: Site, work: Node, arrays: set[str], partner: str) -> bool:
    """Whether the work changes only the two elements and variables of its own, and always runs to its end."""
    own = {v.name: v for v in _locals(work)}
    if own.keys() & arrays or partner in own or any(n.type in _LEAVES for n in walk(work)) or not site.local_only(work):
        return False
    # What a pointer or reference of the work's own points to is not its own.
    alone = {
        name for name, v in own.items() if v.shape == "array" or (v.shape == "scalar" and "auto" not in v.type.split())
    }
    if any(_accesses(site, work, name, partner) is None for name in arrays) or not written(work) <= arrays | alone:
        return False
    pointers = {p.name for p in site.kernel.parameters if p.pointer}
    arguments = (n.child_by_field_name("arguments") for n in walk(work) if n.type == "call_expression" and called(n))
    return not any(names(part) & pointers and part.type == "identifier" for a in arguments if a for part in children(a))


def _same_for_all(site: Site, work: Node, known: set[str]) -> bool:
    """Whether nothing in the work but the two elements and the thread's number tells threads apart."""
    own = {v.name for v in _locals(work)}
    fixed = {p.name for p in site.kernel.parameters} - written(site.body)

    def steady(node: Node, depth: int = 0) -> bool:
        if depth > _DEPTH:
            return False
        for n in walk(node):
            if n.type == "field_expression" and compact(n).startswith("threadIdx"):
                if depth or not is_thread(site, n):
                    return False
            elif n.type == "identifier" and text(n) not in known | own | fixed | THREAD_NAMES:
                if (depth == 0 and is_thread(site, n)) or _is_called(n) or site.constant(n) is not None:
                    continue
                declared = site.scope.lookup(text(n), n)
                if declared is None or declared.value is None or site.scope.changed(declared):
                    return False
                if not steady(declared.value, depth + 1):
                    return False
        return True

    return steady(work)


def _is_called(node: Node) -> bool:
    call = node.parent
    return call is not None and call.type == "call_expression" and call.child_by_field_name("function") == node


def _edits(match: Stages, *, twice: bool) -> list[Edit]:
    site, arrays = match.site, match.arrays
    taken: list[str] = []

    def fresh(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    lower, source = fresh("lower"), fresh("from")
    own = {a.name: fresh(f"{a.name}_own") for a in arrays}
    other = {a.name: fresh(f"{a.name}_other") for a in arrays}
    first = {a.name: fresh(f"{a.name}_first") for a in arrays}
    second = {a.name: fresh(f"{a.name}_second") for a in arrays}
    stage = {a.name: fresh(f"{a.name}_stage") if twice else a.name for a in arrays}
    spare = {a.name: fresh(f"{a.name}_spare") for a in arrays} if twice else {}
    t, s = match.thread, match.stride

    declared = [f"{a.type} {own[a.name]} = {a.name}[{t}];" for a in arrays]
    for a in arrays if twice else ():
        declared += [
            f"__shared__ {a.type} {spare[a.name]}[{a.extents[0]}];",
            f"{a.type} *{stage[a.name]} = {spare[a.name]};",
        ]

    def lines(form: str) -> str:
        return "\n".join(
            form.format(T=a.type, a=a.name, own=own[a.name], other=other[a.name], first=first[a.name],
                        second=second[a.name], stage=stage[a.name], spare=spare.get(a.name, ""))
            for a in arrays
        )  # fmt: skip

    up = upwards(match)
    if up is None:
        chosen = lines(f"{{T}} {{first}} = {lower} ? {{own}} : {{other}};")
        chosen += "\n" + lines(f"{{T}} {{second}} = {lower} ? {{other}} : {{own}};")
        work, kept = worked(match, first, second), lines(f"{{own}} = {lower} ? {{first}} : {{second}};")
    else:
        chosen, kept = "", ""
        work = lines(f"{{own}} = {lower} == ({up}) ? min({{own}}, {{other}}) : max({{own}}, {{other}});")
    snippet = template("engine.rules", "warp_exchange").sections()
    step = snippet["step"].render(
        lower=lower, thread=t, stride=s, received=lines("{T} {other} = {own};"),
        shuffles=lines(f"{{other}} = __shfl_xor_sync(0xffffffffu, {{own}}, {s});"),
        stores=lines(f"{{stage}}[{t}] = {{own}};"), loads=lines(f"{{other}} = {{stage}}[{source}];"),
        swaps=lines("{stage} = {stage} == {a} ? {spare} : {a};") if twice else "__syncthreads();",
        chosen=chosen, work=work, kept=kept, **{"from": source},
    )  # fmt: skip
    nest, body = match.nest, match.loop.child_by_field_name("body")
    assert body is not None  # the pattern has one
    outer, inner = site.indent_at(nest.start_byte), site.indent_at(match.loop.start_byte) + site.indent_unit
    before = snippet["before"].render(declared="\n".join(declared))
    begin = with_pragma(nest)
    stores = [f"{a.name}[{t}] = {own[a.name]};" for a in arrays]
    after = [*(["__syncthreads();"] if twice else []), *stores, "__syncthreads();"]
    return [
        Edit.insert(begin, reindent(before, "", outer).lstrip() + outer),
        Edit(
            Span(body.start_byte, body.end_byte),
            f"{{\n{reindent(step, '', inner)}{inner.removesuffix(site.indent_unit)}}}",
        ),
        Edit.insert(nest.end_byte, "".join(f"\n{outer}{line}" for line in after)),
    ]


def upwards(match: Stages) -> str | None:
    """The condition under which the lower thread keeps the smaller of two whole numbers; None for other work."""
    up = _upwards(match)
    return None if up is None else match.site.render(up.start_byte, up.end_byte, _of_lower(match, up))


def _upwards(match: Stages) -> Node | None:
    """That condition as the author wrote it."""
    site = match.site
    found = _ORDERED.match(match.work, own=partial(_is_element, match, True), other=partial(_is_element, match, False))
    own = {"min", "max"} & (
        site.function_macros.keys() | {f.name for f in site.unit.functions} | site.unit.macros.keys()
    )
    if found is None or own or match.arrays[0].type not in _INTEGERS or len(match.arrays) > 1:
        return None
    up = strip(found["up"])
    sign = up.child_by_field_name("operator")
    if up.type != "binary_expression" or sign is None or text(sign) not in _COMPARISONS:
        return None
    locals_ = {text(found[hole]) for hole in ("x", "y", "z", "w", "flag") if hole in found}
    if text(found["T"]) != match.arrays[0].type or names(up) & (locals_ | {match.arrays[0].name}):
        return None
    return up


@dataclass(frozen=True)
class BitonicSort:
    """Stages that leave all of a block's whole numbers in order. `size` is the variable of the runs' length."""

    size: str
    ascending: bool


def sorted_by(match: Stages, elements: int) -> BitonicSort | None:
    """The sort that the nest is of so many elements: runs of doubled length, each merged at halved strides; None for other stages.

    Source: K. Batcher, "Sorting networks and their applications" (1968).
    """
    site, up = match.site, _upwards(match)
    runs, merge = _RUNS.match(match.nest), _MERGE.match(match.loop)
    if up is None or runs is None or merge is None or match.loop not in (runs["merge"], *children(runs["merge"])):
        return None
    size = text(runs["s"])
    ways = (_UP.match(up, t=partial(is_thread, site)), _DOWN.match(up, t=partial(is_thread, site)))
    if not any(way is not None and text(way["size"]) == size for way in ways) or text(merge["size"]) != size:
        return None
    if not doubles(runs["step"], size) or not is_block(site, runs["block"], {elements}):
        return None
    return BitonicSort(size, ways[0] is not None)


def _is_element(match: Stages, own: bool, node: Node) -> bool:
    index = element_of(node, match.arrays[0].name)
    return index is not None and (is_thread(match.site, index) if own else text(index) == match.partner)


def _of_lower(match: Stages, part: Node, but: Sequence[Node] = ()) -> list[tuple[int, int, str]]:
    """Changes that give the thread's and its partner's number as the lower thread of the pair has them."""
    changes = []
    for node in walk(part):
        if any(inside(node, access) for access in but):
            continue
        if node.type == "identifier" and text(node) == match.partner:
            changes.append((node.start_byte, node.end_byte, f"({match.thread} | {match.stride})"))
        elif node.type in ("identifier", "field_expression") and is_thread(match.site, node):
            changes.append((node.start_byte, node.end_byte, f"({match.thread} & ~{match.stride})"))
    return changes


def worked(match: Stages, first: Mapping[str, str], second: Mapping[str, str]) -> str:
    """The work on the two elements in registers, done by both threads of a pair as the lower one does it."""
    site, work = match.site, match.work
    changes = []
    accesses: list[Node] = []
    for array in first:
        for node, own in (_accesses(site, work, array, match.partner) or {}).items():
            accesses.append(node)
            changes.append((node.start_byte, node.end_byte, (first if own else second)[array]))
    changes += _of_lower(match, work, accesses)
    whole = work if work.type.endswith("statement") or work.parent is None else work.parent
    lines = site.render(whole.start_byte, whole.end_byte, changes).split("\n")
    margin = site.indent_at(whole.start_byte)
    return "\n".join(line.removeprefix(margin) for line in lines)
