"""A block's prefix sum over an array of any length, round by round, with several elements for each thread in a round.

One block adds up, and each round waits for its loads, its barriers and the sum of the round before: fewer and larger rounds wait less
often. Source of the method: as in `scan_items`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from engine.cuda.questions import Declared, assigned, variables, written
from engine.cuda.syntax import called, children, is_unroll, names, operands, strip, text, walk
from engine.rewrite import Edit, Edits, Node, Pattern, Proposals, SharedArray, Site, Span, proposal, reindent
from engine.rules.idioms import WARP, StrideLoop, is_barrier, is_block, is_thread, one_dimensional, stride_loop
from engine.rules.idioms.packs import element_size
from engine.rules.reduction import scan_items, warp_scan
from engine.rules.warp_exchange import element_of

_ITEMS = (8, 4, 16, 2)
_CARRY = Pattern("$before += $a[$last];")


@dataclass(frozen=True)
class _Rounds:
    """A loop of rounds around a scan. `before` is the sum of all rounds before, `elements` their number in a round."""

    site: Site
    loop: StrideLoop
    scan: warp_scan.BlockScan
    array: SharedArray
    before: str
    carry: Node
    elements: int


class ScanRounds:
    """Rounds of several elements for each thread, in a prefix sum that one block computes round by round."""

    name = "scan_rounds"
    summary = "Several elements per thread in each round of a block's prefix sum"

    def propose(self, site: Site) -> Proposals:
        rounds = _rounds(site)
        if rounds is None:
            return
        held = element_size(site, rounds.array.type) or 0
        for rank, items in enumerate(_ITEMS):
            if items * rounds.elements * held > site.target.shared_per_block - WARP * held:
                continue
            edits = _edits(rounds, items)
            said = f"Prefix sum in rounds of {items} elements for each of {rounds.elements} threads"
            if edits is not None:
                yield from proposal(self.name, said, edits, 0.6 - 0.05 * rank, items=items)


def _rounds(site: Site) -> _Rounds | None:
    scans, blocks = warp_scan.block_scans(site), one_dimensional(site)
    if len(scans) != 1 or len(blocks) != 1 or len(site.kernel.shared) != 1 or site.kernel.shared[0].dynamic:
        return None
    (scan,), (array,), (elements,) = scans, site.kernel.shared, blocks
    around = scan.loop.parent
    loop = stride_loop(around.parent) if around is not None and around.parent is not None else None
    if loop is None or around != loop.body or not _steps_by_block(site, loop, elements):
        return None
    carries = [(c, m) for c in children(loop.body) if (m := _CARRY.match(c)) is not None]
    if len(carries) != 1 or text(carries[0][1]["a"]) != scan.array or carries[0][0].start_byte < scan.loop.end_byte:
        return None
    carry, match = carries[0]
    rounds = _Rounds(site, loop, scan, array, text(match["before"]), carry, elements)
    if site.constant(match["last"]) != elements - 1 or strip(match["before"]).type != "identifier":
        return None
    return rounds if _any_length(rounds) else None


def _steps_by_block(site: Site, loop: StrideLoop, elements: int) -> bool:
    update = loop.node.child_by_field_name("update")
    step = update.child_by_field_name("right") if update is not None else None
    return step is not None and text(step) == loop.step and is_block(site, step, {elements})


def _any_length(rounds: _Rounds) -> bool:
    """Whether the loop does the same in rounds of any length.

    A thread's element is `start + thread`, its sum `before + array[thread]`, and nothing else depends on where a round begins.
    """
    site, body, thread = rounds.site, rounds.loop.body, partial(is_thread, rounds.site)
    if any(thread(n) for part in (rounds.loop.start, rounds.loop.bound) for n in walk(part)) or not _stored_first(
        rounds
    ):
        return False
    for statement in children(body):
        if statement in (rounds.scan.loop, rounds.carry) or is_barrier(site, statement) or is_unroll(statement):
            continue
        if statement.type not in ("declaration", "expression_statement", "if_statement"):
            return False
        if not site.local_only(statement) or any(
            n.type in ("return_statement", "for_statement") for n in walk(statement)
        ):
            return False
        if any("sync" in called(n) for n in walk(statement) if n.type == "call_expression"):
            return False
        for node in walk(statement):
            target = assigned(node)
            # Only elements of arrays change, and what a thread declares in a round.
            if target is not None and strip(target).type == "identifier":
                return False
            if node.type == "declaration" and any(v.shape != "scalar" or not v.alone for v in variables(node)):
                return False
            if node.type not in ("identifier", "field_expression") or (
                node.parent and node.parent.type == "field_expression"
            ):
                continue
            if text(node) == rounds.loop.variable:
                if not _sum_of(node, thread):
                    return False
            elif thread(node):
                own = _own_element(node, rounds.scan.array)
                if own is None and not _sum_of(node, lambda n: text(n) == rounds.loop.variable):
                    return False
                if own is not None and statement.start_byte > rounds.scan.loop.end_byte and not _after_sum(own, rounds):
                    return False
            elif text(node) in (rounds.scan.array, rounds.before) and not _known(node, rounds):
                return False
    return rounds.before not in written(rounds.scan.loop)


def _stored_first(rounds: _Rounds) -> bool:
    """Whether a round begins to use the array with a store of each thread's element: nothing of the round before is read."""
    first = next(s for s in children(rounds.loop.body) if rounds.scan.array in names(s))
    inner = children(first)[0] if first.type == "expression_statement" else first
    left, right = inner.child_by_field_name("left"), inner.child_by_field_name("right")
    if inner.type != "assignment_expression" or left is None or right is None or rounds.scan.array in names(right):
        return False
    index = element_of(left, rounds.scan.array)
    return index is not None and is_thread(rounds.site, index)


def _sum_of(node: Node, other: Callable[[Node], bool]) -> bool:
    """Whether the node is added to one of which `other` holds, and to nothing else."""
    above = node.parent
    while above is not None and above.type == "parenthesized_expression":
        above = above.parent
    sign = above.child_by_field_name("operator") if above is not None else None
    if above is None or above.type != "binary_expression" or sign is None or text(sign) != "+":
        return False
    terms = [strip(t) for t in operands(above, "+")]
    rest = [t for t in terms if t != node]
    return len(terms) == 2 and len(rest) == 1 and other(rest[0])


def _own_element(node: Node, array: str) -> Node | None:
    """The access `array[node]`."""
    above = node.parent
    while above is not None and above.type in ("parenthesized_expression", "subscript_argument_list"):
        above = above.parent
    index = element_of(above, array) if above is not None else None
    return above if index is not None and index == strip(node) else None


def _after_sum(own: Node, rounds: _Rounds) -> bool:
    """Whether an element of the sums is added to the sum of the rounds before, perhaps with the element taken off."""
    top = own
    while (above := top.parent) is not None:
        sign = above.child_by_field_name("operator")
        if above.type == "parenthesized_expression" or (
            above.type == "binary_expression"
            and sign is not None
            and (text(sign) == "+" or (text(sign) == "-" and above.child_by_field_name("left") == top))
        ):
            top = above
        else:
            break
    return sum(text(t) == rounds.before for t in _added(top)) == 1


def _added(node: Node) -> list[Node]:
    """The terms of a sum that are added, not those that are taken off."""
    node = strip(node)
    sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
    if node.type != "binary_expression" or sign is None or left is None or right is None or text(sign) not in "+-":
        return [node]
    return [*_added(left), *(_added(right) if text(sign) == "+" else [])]


def _known(node: Node, rounds: _Rounds) -> bool:
    """Whether a use of the array or of the sum before is one of those that count: at a thread's element, or beside it in a sum."""
    if text(node) == rounds.scan.array:
        above = node.parent
        index = element_of(above, rounds.scan.array) if above is not None else None
        return index is not None and is_thread(rounds.site, index)
    top = node
    while (above := top.parent) is not None and above.type in ("parenthesized_expression", "binary_expression"):
        top = above
    added = _added(top)
    sums = [t for t in added if (i := element_of(t, rounds.scan.array)) is not None and is_thread(rounds.site, i)]
    return len(sums) == 1 and sum(text(t) == rounds.before for t in added) == 1


def _edits(rounds: _Rounds, items: int) -> Edits | None:
    site, loop, elements = rounds.site, rounds.loop, rounds.elements
    name = site.fresh_names()
    k, item, call = name("k"), name("item"), name("block_scan")
    written_ = scan_items.helper(call, rounds.scan.type, items, elements)
    edits = [Edit.insert(site.declaration_start, written_), rounds.scan.call(site, call)]
    (array,) = (n for n in walk(site.body) if n.type == "array_declarator" and rounds.array.name in text(n))
    extent = array.child_by_field_name("size")
    update = loop.node.child_by_field_name("update")
    step = update.child_by_field_name("right") if update is not None else None
    carry = _CARRY.match(rounds.carry)
    if extent is None or step is None or carry is None:
        return None
    edits += [Edit(_span(extent), str(items * elements)), Edit(_span(step), str(items * elements))]
    edits.append(Edit(_span(carry["last"]), str(items * elements - 1)))
    # What a thread declares of its element and needs behind a barrier has a place for each of its elements.
    statements = [s for s in children(loop.body) if not is_unroll(s)]
    carried = _carried(rounds, statements)
    margin = site.indent_at(children(loop.body)[0].start_byte)
    held = "".join(f"{v.type.removeprefix('const ')} {v.name}[{items}];\n{margin}" for v in carried)
    for group in _groups(rounds, statements):
        begin, end = group[0].start_byte, group[-1].end_byte
        changes = []
        for node in (n for part in group for n in walk(part)):
            if node.type == "identifier" and (variable := next((v for v in carried if v.name == text(node)), None)):
                if node.parent is not None and node.parent.type == "init_declarator" and variable.node in group:
                    changes.append((variable.node.start_byte, node.start_byte, ""))
                changes.append((node.start_byte, node.end_byte, f"{text(node)}[{k}]"))
            elif node.type in ("identifier", "field_expression") and is_thread(site, node):
                changes.append((node.start_byte, node.end_byte, item))
        unit = site.indent_unit
        work = reindent(margin + site.render(begin, end, changes), margin, margin + unit)
        head = f"#pragma unroll\n{margin}for (int {k} = 0; {k} < {items}; ++{k}) {{\n{margin}{unit}"
        declared = f"const int {item} = {k} * {elements} + threadIdx.x;\n"
        first = group[0] == statements[0]
        edits.append(Edit(Span(begin, end), f"{held if first else ''}{head}{declared}{work}\n{margin}}}"))
    return site.in_file(*edits)


def _span(node: Node) -> Span:
    return Span(node.start_byte, node.end_byte)


def _groups(rounds: _Rounds, statements: Sequence[Node]) -> list[list[Node]]:
    """The statements on elements, between barriers, the scan and the sum of the rounds."""
    groups: list[list[Node]] = [[]]
    for statement in statements:
        if statement in (rounds.scan.loop, rounds.carry) or is_barrier(rounds.site, statement):
            groups.append([])
        else:
            groups[-1].append(statement)
    return [group for group in groups if group]


def _carried(rounds: _Rounds, statements: Sequence[Node]) -> list[Declared]:
    """The variables of a round that are used in another group than the one that declares them."""
    found = []
    for group in _groups(rounds, statements):
        for variable in (v for part in group if part.type == "declaration" for v in variables(part)):
            outside = [s for s in statements if s not in group and variable.name in names(s)]
            found += [variable] if outside else []
    return found
