"""A reduction tree in shared memory becomes shuffles between registers.

Source of the method: CUDA C++ Programming Guide, "Warp Shuffle Functions", and M. Harris, "Optimizing Parallel Reduction
in CUDA": the tree passes one barrier at each of its levels, shuffles need two or three in all.
"""

import re
from dataclasses import dataclass
from functools import partial
from typing import Literal

from engine.cuda.questions import ancestors, children, compact, inside, polynomial, span, strip, text, walk
from engine.rewrite import Edit, Node, Pattern, Proposals, Site, Span, proposal, template
from engine.rules.idioms import SHUFFLED, WARP, doubles, halves, is_barrier, is_block, is_thread, one_dimensional
from engine.rules.idioms.strided_loop import with_pragma

Operation = Literal["sum", "max", "min"]
_FUNCTIONS: dict[str, Operation] = {
    "fmaxf": "max", "fmax": "max", "max": "max", "fminf": "min", "fmin": "min", "min": "min",
}  # fmt: skip
_OWN, _OTHERS = "$a[$p]", ("$a[$p + $d]", "$a[$d + $p]")
_SUM = Pattern(*(f"{_OWN} += {other}" for other in _OTHERS))
_CALL = Pattern(*(f"{_OWN} = $f({a}, {b})" for o in _OTHERS for a, b in ((_OWN, o), (o, _OWN))))
_LARGER, _SMALLER = (
    Pattern(
        *(f"if ({o} {sign}{e} {_OWN}) {_OWN} = {o};" for o in _OTHERS for e in ("", "=")),
        *(f"{_OWN} = {o} {sign}{e} {_OWN} ? {o} : {_OWN}" for o in _OTHERS for e in ("", "=")),
        *(f"{_OWN} = {_OWN} {sign}{e} {o} ? {_OWN} : {o}" for o in _OTHERS for e in ("", "=")),
    )
    for sign in "><"
)
_LOOP = Pattern("for ($I $s = $start; $until; $step) $body;")
_UNTIL = Pattern("$s < $block")
_PLACE = Pattern("$I $p = $product;")
_WORK = Pattern("if ($p < $limit) $work;")
_REMAINDER = Pattern(
    "if ($t % (2 * $s) == 0) $work;", "if ($t % ($s * 2) == 0) $work;", "if ($t % ($s << 1) == 0) $work;"
)
_VIEW = Pattern("$T* $view = $array;")
_REDUCED = Pattern("$f($array, $t)", "$f($array)")
_FIRST = Pattern("$t == 0", "!$t")
_LOOPS = ("for_statement", "while_statement", "do_statement")
_LIVE = {"{}>0": 1, "{}>=1": 1, "{}!=0": 1, "{}": 1, "0<{}": 1, "{}>32": 64, "{}>=64": 64, "{}>16": 32, "{}>=32": 32}


@dataclass(frozen=True)
class Combined:
    """`array[place] = array[place] (op) array[place + distance]`. `function` is the author's, "" for operators."""

    array: str
    operation: Operation
    function: str


@dataclass(frozen=True)
class ReductionTree:
    """A loop that reduces the block's elements of some arrays into their first elements.

    `live`: elements that are left when the loop ends (1: the result). `tail`: the statement that reduces those.
    """

    loop: Node
    combined: tuple[Combined, ...]
    live: int
    descending: bool
    barrier_first: bool
    condition: Node
    variable: str
    tail: Node | None


class WarpReduce:
    """Reduction trees over shared memory by warp shuffles: all levels, or the last five."""

    name = "warp_reduce"
    summary = "Reduce with warp shuffles instead of a tree in shared memory"

    def propose(self, site: Site) -> Proposals:
        types = SHUFFLED | site.type_names
        kinds = {s.name: s.type for s in site.kernel.shared if len(s.extents) == 1}
        blocks = one_dimensional(site) if kinds and site.sound and site.manageable else set()
        if not blocks or any(block < WARP or block & (block - 1) for block in blocks):
            return
        found = (reduction_tree(site, node, blocks) for node in walk(site.body))
        trees = [t for t in found if t is not None and all(kinds.get(c.array) in types for c in t.combined)]
        trees = [t for t in trees if _only_first_used(site, t, trees)]
        for form, prior in (("registers", 0.6), ("tail", 0.45)):
            chosen = [t for t in trees if form == "registers" or (t.descending and min(blocks) >= 2 * WARP)]
            if not chosen or (form == "tail" and all(t.live == 1 and t.tail is not None for t in chosen)):
                continue
            what = "whole reduction" if form == "registers" else "last levels of the reduction"
            edits = site.in_file(*_edits(site, chosen, kinds, form))
            yield from proposal(
                self.name, f"Use warp shuffles for the {what}", edits, prior, form=form, trees=len(chosen)
            )


def reduction_tree(site: Site, node: Node, blocks: set[int]) -> ReductionTree | None:
    """The `for` statement as a reduction tree over the block; None for other statements."""
    loop = _LOOP.match(node)
    if loop is None:
        return None
    s, live, descending = text(loop["s"]), 1, halves(loop["step"], text(loop["s"]))
    if descending:
        until = re.sub(r"(?<=\d)u$", "", compact(strip(loop["until"])))
        live = next((left for end, left in _LIVE.items() if end.format(s) == until), 0)
        if not live or not is_block(site, loop["start"], blocks, 2) or min(blocks) < 2 * live:
            return None
    else:
        until_block = _UNTIL.match(loop["until"], s=lambda n: text(n) == s, block=lambda n: is_block(site, n, blocks))
        if until_block is None or not doubles(loop["step"], s) or compact(loop["start"]) not in ("1", "1u"):
            return None
    found = _level(site, _statements(loop["body"]), s, descending)
    if found is None:
        return None
    combined, barrier_first = found
    tail = _tail(site, node, combined, live) if live > 1 else None
    if live > 1 and tail is None:
        return None
    return ReductionTree(node, combined, live, descending, barrier_first, loop["until"], s, tail)


def _statements(body: Node) -> list[Node]:
    return children(body) if body.type == "compound_statement" else [body]


def _level(site: Site, statements: list[Node], s: str, descending: bool) -> tuple[tuple[Combined, ...], bool] | None:
    """What a level of the tree combines, and whether its barrier comes before it."""
    barriers = [k for k, n in enumerate(statements) if is_barrier(site, n)]
    if len(barriers) != 1 or barriers[0] not in (0, len(statements) - 1):
        return None
    *before, last = (n for k, n in enumerate(statements) if k not in barriers)
    thread = partial(is_thread, site)
    if descending:
        found = _WORK.match(last, p=thread, limit=lambda n: compact(n) == s) if not before else None
    elif before:
        placed = _PLACE.match(before[0], product=lambda n: _doubled(site, n, s)) if len(before) == 1 else None
        found = _WORK.match(last, p=lambda n: placed is not None and text(n) == text(placed["p"]))
    else:
        found = _REMAINDER.match(last, t=thread, s=lambda n: text(n) == s)
    if found is None:
        return None
    place = compact(found.get("p") or strip(found["t"]))
    combined = [c for n in _statements(found["work"]) if (c := _combined(n, place, s)) is not None]
    return (tuple(combined), barriers[0] == 0) if len(combined) == len(_statements(found["work"])) > 0 else None


def _doubled(site: Site, product: Node, s: str) -> bool:
    """Whether the expression is two times `s` times the thread's number."""
    value = polynomial(product, lambda node: None)
    if value is None or len(value.terms) != 1:
        return False
    ((names, factor),) = value.terms.items()
    leaves = {compact(n): n for n in walk(product) if n.type in ("identifier", "field_expression")}
    other = [name for name in names if name != s]
    return factor == 2 and len(names) == 2 and len(other) == 1 and is_thread(site, leaves.get(other[0]))


def _combined(statement: Node, place: str, distance: str) -> Combined | None:
    """The statement as one step of a reduction between two elements of one array."""

    def match(pattern: Pattern) -> dict[str, Node] | None:
        return pattern.match(
            statement, p=lambda n: compact(n) == place, d=lambda n: compact(n) == distance, a=lambda n: n.type == "identifier"
        )  # fmt: skip

    if (found := match(_SUM)) is not None:
        return Combined(text(found["a"]), "sum", "")
    if (found := match(_CALL)) is not None:
        function = text(found["f"]).removeprefix("::").removeprefix("std::")
        return Combined(text(found["a"]), _FUNCTIONS[function], function) if function in _FUNCTIONS else None
    if (found := match(_LARGER)) is not None:
        return Combined(text(found["a"]), "max", "")
    found = match(_SMALLER)
    return Combined(text(found["a"]), "min", "") if found is not None else None


def _tail(site: Site, loop: Node, combined: tuple[Combined, ...], live: int) -> Node | None:
    """The statement after the loop in which the first warp reduces what is left, without barriers."""
    statement = loop.next_named_sibling
    while statement is not None and (statement.type == "comment" or is_barrier(site, statement)):
        statement = statement.next_named_sibling
    first_warp = _WORK.match(
        statement, p=partial(is_thread, site), limit=lambda n: compact(n) in ("32", "warpSize")
    )  # fmt: skip
    if first_warp is None or len(combined) != 1:
        return None
    parts = _statements(first_warp["work"])
    thread, array = compact(first_warp["p"]), combined[0].array
    call = _REDUCED.match(parts[0]) if len(parts) == 1 else None
    if call is not None:
        function = next((f for f in site.unit.functions if f.name == text(call["f"])), None)
        if function is None or text(call["array"]) != array or ("t" in call and compact(call["t"]) != thread):
            return None
        pointers = [p.name for p in function.parameters if p.pointer]
        others = [p.name for p in function.parameters if not p.pointer]
        if len(pointers) != 1 or len(others) != ("t" in call):
            return None
        array, thread, parts = pointers[0], others[0] if others else "threadIdx.x", children(function.block)
    elif parts and parts[0].type == "declaration":
        view = _VIEW.match(parts[0], array=lambda n: text(n) == array)
        if view is None or not text(parts[0]).startswith("volatile"):
            return None
        array, parts = text(view["view"]), parts[1:]
    distance = live // 2
    for part in parts:
        if compact(part) == "__syncwarp();":
            continue
        step = _combined(part, thread, str(distance))
        if step is None or step.operation != combined[0].operation or step.array != array:
            return None
        distance //= 2
    return statement if distance == 0 else None


def _only_first_used(site: Site, tree: ReductionTree, trees: list[ReductionTree]) -> bool:
    """Whether nothing reads other elements of the arrays after the tree: those come out otherwise."""
    around = next((n for n in ancestors(tree.loop, site.body) if n.type in _LOOPS), None)
    end = tree.tail.end_byte if tree.tail is not None else tree.loop.end_byte
    covered = [n for t in trees for n in (t.loop, t.tail) if n is not None]
    for node in walk(site.body):
        if node.type != "identifier" or text(node) not in {c.array for c in tree.combined}:
            continue
        if any(inside(node, c) for c in covered) or (
            node.start_byte < end and not (around is not None and inside(node, around))
        ):
            continue
        access = node.parent
        if access is None or access.type != "subscript_expression":
            return False
        index = access.child_by_field_name("indices")
        at = children(index)[0] if index is not None and len(children(index)) == 1 else None
        if compact(at) == "0" or (is_thread(site, at) and _by_first(site, access)):
            continue
        above = access.parent
        if above is None or above.type != "assignment_expression" or above.child_by_field_name("left") != access:
            return False
        if text(above.child_by_field_name("operator") or above) != "=":
            return False
    return True


def _by_first(site: Site, node: Node) -> bool:
    """Whether only the first thread comes here."""
    for above in ancestors(node, site.body):
        then = above.child_by_field_name("consequence") if above.type == "if_statement" else None
        condition = above.child_by_field_name("condition") if then is not None and inside(node, then) else None
        if _FIRST.match(condition, t=partial(is_thread, site)) is not None:
            return True
    return False


def _edits(site: Site, trees: list[ReductionTree], kinds: dict[str, str], form: str) -> list[Edit]:
    helpers: dict[tuple[Operation, str, str], str] = {}
    edits: list[Edit] = []
    for tree in trees:
        indent = site.indent_at(tree.loop.start_byte)
        calls = ["__syncthreads();"] if tree.barrier_first else []
        for combined in tree.combined:
            base = f"block_{combined.operation}" if form == "registers" else f"warp_{combined.operation}"
            key = (combined.operation, kinds[combined.array], combined.function)
            name = helpers.setdefault(key, site.fresh(base, list(helpers.values())))
            calls.append(f"{name}({combined.array});")
        after = f"\n{indent}".join(calls)
        if form == "registers":
            end = tree.tail.end_byte if tree.tail is not None else tree.loop.end_byte
            edits.append(Edit(Span(with_pragma(tree.loop), end), after))
            continue
        edits.append(Edit(span(strip(tree.condition)), f"{tree.variable} >= {WARP}"))
        if tree.tail is not None:
            edits.append(Edit.replace(tree.tail, after))
        else:
            edits.append(Edit.insert(tree.loop.end_byte, f"\n{indent}{after}"))
    written = [_helper(site, name, form, *key) for key, name in helpers.items()]
    return [Edit.insert(site.declaration_start, "".join(written)), *edits]


def _helper(site: Site, name: str, form: str, operation: Operation, kind: str, function: str) -> str:
    """A device function that reduces the block's elements (or the first 32) of an array into its first element."""
    combined = {"sum": "value + other", "max": "other > value ? other : value", "min": "other < value ? other : value"}
    # Combining an element twice changes a sum, and nothing else.
    first = (
        f"threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : static_cast<{kind}>(0)"
        if operation == "sum"
        else "part[threadIdx.x < blockDim.x / 32 ? threadIdx.x : 0]"
    )
    return template("engine.rules", "block_reduce" if form == "registers" else "warp_reduce").render(
        What={"sum": "Adds up", "max": "Finds the largest of", "min": "Finds the smallest of"}[operation],
        header=f"template <typename {kind}>" if kind in site.type_names else "",
        name=name,
        T=kind,
        combined=f"{function}(value, other)" if function else combined[operation],
        first=first,
    )
