"""A reduction over a block whose threads bring one element each: let each add up several in a register before.

Source of the method: M. Harris, "Optimizing Parallel Reduction in CUDA" (2007), algorithm cascading: the tree and its barriers, and the
atomic at its end, are for a block's elements, so the more of them the less they cost; by Brent's theorem no work is lost.
"""

from dataclasses import dataclass

from engine.cuda.questions import THREAD_NAMES, assigned, children, compact, names, strip, text, walk
from engine.rewrite import Edit, Edits, Node, Proposals, Site, Span, merge, proposal, reindent
from engine.rules.coarsen import at_most, numbered_results
from engine.rules.idioms import Index, changed_names, covers, in_parameters, is_thread
from engine.rules.idioms.strided_loop import neutral
from engine.rules.idioms.thread_index import thread_indices
from engine.rules.reduction.warp_reduce import reduction_tree

_TIMES = (1, 2, 4)  # as many blocks as the target holds at once, and more: blocks do not end together


@dataclass(frozen=True)
class _Bringing:
    """How each thread brings its element to the tree: the statements between the index and the store into shared memory."""

    index: Index
    between: tuple[Node, ...]
    store: Node
    value: Node
    place: str  # as the author writes it: "partial[threadIdx.x]"
    type: str
    bound: Node
    size: str  # the bound over the kernel's parameters


class Cascade:
    """Several elements to each thread of a block that sums up: a grid-stride loop in front of the tree, and fewer blocks."""

    name = "cascade"
    summary = "Sum several elements per thread before the block reduction"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.launch_visible or not site.manageable or not site.kernel.shared:
            return
        before = site.configs_after({})
        if before is None or any(c.grid[1:] != (1, 1) or c.block[1:] != (1, 1) for c in before):
            return
        threads = {c.block[0] for c in before}
        bringing = _bringing(site, threads) if len(threads) == 1 and not numbered_results(site) else None
        if bringing is None or not covers(site, bringing.size, tuple((c.grid[0], c.block[0]) for c in before), 1):
            return
        (block,) = threads
        at_once = site.target.blocks_at_once(block)
        for rank, times in enumerate(_TIMES):
            blocks = site.target.multiprocessors * at_once * times
            if not any(c.grid[0] >= 2 * blocks for c in before):
                continue  # there are no elements to share out
            yield from proposal(
                self.name,
                f"Sum several elements per thread before the block reduction, in at most {blocks} blocks",
                _edits(site, bringing, blocks, block),
                0.62 - 0.06 * rank,
                blocks=blocks,
            )


def _bringing(site: Site, threads: set[int]) -> _Bringing | None:
    """None where the kernel is of another form."""
    body = site.body
    shared = {s.name: s.type for s in site.kernel.shared if len(s.extents) == 1}
    trees = [
        tree for n in walk(body) if n.type == "for_statement" and (tree := reduction_tree(site, n, threads)) is not None
    ]
    indices = thread_indices(site)
    if len(trees) != 1 or len(trees[0].combined) != 1 or trees[0].combined[0].operation != "sum" or len(indices) != 1:
        return None
    array, index = trees[0].combined[0].array, indices[0]
    if array not in shared or index.axis != "x" or index.factor != 1 or not index.alone:
        return None
    statements = children(body)
    stores = [s for s in statements if _stored(site, s, array) is not None]
    if len(stores) != 1 or not index.declaration.end_byte < stores[0].start_byte < trees[0].loop.start_byte:
        return None
    store = stores[0]
    found = _stored(site, store, array)
    at = statements.index(store)
    between = tuple(s for s in statements[:at] if s.start_byte > index.declaration.start_byte)
    if found is None or any(s.type not in ("declaration", "if_statement", "expression_statement") for s in between):
        return None
    # What is done for each element: it must be one thread's own work, leave nothing behind, and not leave the kernel.
    own = {name for s in between if s.type == "declaration" for name in changed_names(s)}
    for statement in between:
        if not site.local_only(statement) or any(n.type == "return_statement" for n in walk(statement)):
            return None
        targets = [strip(t) for n in walk(statement) if (t := assigned(n)) is not None]
        if any(t.type != "identifier" or text(t) not in own for t in targets):
            return None
    place, value = found
    if not site.local_only(value) or names(value) & (THREAD_NAMES | {array}):
        return None
    if any(names(s) & (own | {index.name}) for s in statements[at + 1 :]):
        return None
    if any(names(s) & THREAD_NAMES for s in between):
        return None
    bound = _bound(site, index, (*between, store))
    size = in_parameters(site, bound) if bound is not None else None
    if bound is None or size is None:
        return None
    return _Bringing(index, between, store, value, place, shared[array], bound, size)


def _stored(site: Site, statement: Node, array: str) -> tuple[str, Node] | None:
    """Place and value of `array[threadIdx.x] = value;`."""
    inner = children(statement)
    if statement.type != "expression_statement" or len(inner) != 1 or inner[0].type != "assignment_expression":
        return None
    left, sign, right = (inner[0].child_by_field_name(f) for f in ("left", "operator", "right"))
    if left is None or sign is None or right is None or text(sign) != "=" or left.type != "subscript_expression":
        return None
    indices, base = left.child_by_field_name("indices"), left.child_by_field_name("argument")
    if base is None or text(base) != array or indices is None or len(children(indices)) != 1:
        return None
    return (text(left), right) if is_thread(site, children(indices)[0]) else None


def _bound(site: Site, index: Index, statements: tuple[Node, ...]) -> Node | None:
    """What the index is compared with, in every comparison alike: `i < n`. None without one, or with others."""
    found: list[Node] = []
    for node in (n for s in statements for n in walk(s) if n.type == "binary_expression"):
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or right is None or text(sign) not in ("<", ">", "<=", ">=", "==", "!="):
            continue
        if index.name not in names(node):
            continue
        this, other = (left, right) if text(sign) == "<" else (right, left)
        if text(sign) not in ("<", ">") or text(strip(this)) != index.name or index.name in names(other):
            return None
        found.append(other)
    return found[0] if len({text(f) for f in found}) == 1 else None


def _edits(site: Site, bringing: _Bringing, blocks: int, threads: int) -> Edits | None:
    index, store = bringing.index, bringing.store
    outer = site.indent_at(index.declaration.start_byte)
    inner = outer + site.indent_unit
    total = site.fresh("thread_sum")
    chosen = _known_choices(bringing)

    def written(start: int, end: int) -> str:
        return site.render(start, end, [c for c in chosen if start <= c[0] and c[1] <= end])

    work = written(index.declaration.end_byte, store.start_byte).strip("\n").rstrip()
    value = written(bringing.value.start_byte, bringing.value.end_byte)
    lines = [
        f"{bringing.type} {total} = {neutral(bringing.type, 'sum')};",
        *(outer + line for line in index.grid_stride(site, bringing.bound)),
        *([reindent(work, outer, inner)] if work.strip() else []),
        f"{inner}{total} += {value};",
        f"{outer}}}",
        f"{outer}{bringing.place} = {total};",
    ]
    body = site.in_file(Edit(Span(index.declaration.start_byte, store.end_byte), "\n".join(lines)))
    return merge(body, site.launch_edits(grid=[at_most(site, {(bringing.size, threads)}, blocks)]))


def _known_choices(bringing: _Bringing) -> list[tuple[int, int, str]]:
    """`i < n ? x[i] : 0` as `x[i]`: the loop goes no further."""
    wanted = {f"{bringing.index.name}<{compact(bringing.bound)}", f"{compact(bringing.bound)}>{bringing.index.name}"}
    found: list[tuple[int, int, str]] = []
    for node in (n for s in (*bringing.between, bringing.store) for n in walk(s) if n.type == "conditional_expression"):
        condition, taken = node.child_by_field_name("condition"), node.child_by_field_name("consequence")
        if condition is None or taken is None or compact(strip(condition)) not in wanted:
            continue
        if not any(start <= node.start_byte and node.end_byte <= end for start, end, _ in found):
            found.append((node.start_byte, node.end_byte, text(taken)))
    return found
