"""Add up within the block before adding to global memory."""

from dataclasses import dataclass

from engine.cuda.questions import ArithmeticError_, called, children, evaluate_int, names, text, walk, written
from engine.rewrite import Edit, Edits, Node, Proposals, Site, Span, ceil_div, merge, proposal, reindent
from engine.rules.idioms import covered, definition, in_parameters, independent, only_bound, stride_loop, thread_map
from engine.rules.idioms.thread_index import holds, thread_indices

_ZEROS = {
    "float": "0.0f", "double": "0.0", "int": "0", "unsigned int": "0", "unsigned": "0", "unsigned long long": "0",
    "unsigned long long int": "0",
}  # fmt: skip
_BYTES = {"double": 8, "unsigned long long": 8, "unsigned long long int": 8}
_MOST_SHARED = 32768  # bytes: leaves room for several blocks per multiprocessor
_FEWEST = 4  # elements of a thread of these: fewer blocks would leave the target partly idle
_WIDE = 1024  # threads of the widest blocks: the fewest copies of the counters that fill the target


@dataclass(frozen=True)
class _Counters:
    """Elements per thread, copies of the counters per block (neighbouring lanes count in different ones), threads (0: as they are)."""

    elements: int
    copies: int
    threads: int = 0


_FORMS = (_Counters(64, 1), _Counters(64, 4), _Counters(16, 1), _Counters(64, 8), _Counters(256, 1), _Counters(256, 4))


class AtomicAggregate:
    """One atomic per block instead of one per thread: sums by shuffles, counters by a private copy in shared memory."""

    name = "atomic_aggregate"
    summary = "Combine atomics within the block"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.launch_visible or any(c.block[1:] != (1, 1) for c in site.configs):
            return
        atomics = [n for n in walk(site.body) if n.type == "call_expression" and called(n).startswith("atomic")]
        pairs = [_addition(site, n) for n in atomics]
        if not pairs or any(p is None for p in pairs) or any(_by_few(site, n) for n in atomics):
            return
        found = [p for p in pairs if p is not None]
        targets = {array for array, _, _ in found}
        if len(targets) != 1:
            return
        array = targets.pop()
        uses = [n for n in walk(site.body) if n.type == "identifier" and text(n) == array]
        if len(uses) != len(found):
            return
        if len(found) == 1 and found[0][1] is None:
            if all(c.block[0] % 32 == 0 for c in site.configs):
                # Atomics on one address are served one after the other; a block then asks once.
                edits = _summed(site, atomics[0], array, found[0][2])
                yield from proposal(
                    self.name, f"Reduce within the block before the atomic add to {array}", edits, 0.85, form="sum"
                )
        elif len(found) == 1 and found[0][1] is not None:
            yield from self._private(site, atomics[0], array, found[0][1], found[0][2])

    def _private(self, site: Site, atomic: Node, array: str, index: Node, value: Node) -> Proposals:
        argument = next(
            (a for p, a in zip(site.kernel.parameters, _arguments(site), strict=False) if p.name == array), ""
        )
        count = _most_elements(site, argument)
        kind = next(p.base for p in site.kernel.parameters if p.name == array)
        size = _BYTES.get(kind, 4)
        if count is None or not 1 <= count * size <= _MOST_SHARED or site.kernel.shared:
            return
        strided = _stride_statement(site, atomic) is not None
        counting = _Counting(atomic, array, index, value, count)
        seen: set[int] = set()
        for rank, form in enumerate((*_wide(site), *_FORMS)):
            if count * form.copies * size > _MOST_SHARED or (strided and (form.copies in seen or form.threads)):
                continue  # a loop over the grid keeps its launch: elements per thread change nothing
            seen.add(form.copies)
            edits = _privatised(site, counting, form)
            # Shared atomics run on every SM at once; each block then touches global counters once.
            spread = f", in {form.copies} copies" if form.copies > 1 else ""
            blocks = f" of {form.threads} threads" if form.threads else ""
            yield from proposal(
                self.name,
                f"Count in shared memory{spread} and add to {array} once per block{blocks}",
                edits,
                0.85 - 0.06 * rank,
                form="private",
                elements=form.elements,
                copies=form.copies,
                threads=form.threads,
            )


def _wide(site: Site) -> tuple[_Counters, ...]:
    """Blocks of 1024 threads, as many as the target holds at once in the largest timing case: each adds its counters once."""
    mapping = thread_map(site)
    bound = mapping.bounds.get("x") if mapping is not None else None
    written_bound = in_parameters(site, bound) if bound is not None else None
    if mapping is None or written_bound is None or site.kernel.launch_bounds:
        return ()
    if mapping.indices[0].extent != "blockDim.x" or site.target.max_threads_per_block < _WIDE:
        return ()
    try:
        most = max(evaluate_int(written_bound, case.sizes) for case in site.spec.time)
    except (ArithmeticError_, ValueError):
        return ()
    at_once = site.target.multiprocessors * site.target.blocks_at_once(_WIDE) * _WIDE
    each = -(-most // at_once)
    return (_Counters(each, 1, _WIDE),) if each >= _FEWEST else ()


def _most_elements(site: Site, argument: str) -> int | None:
    """The number of elements of a buffer of the spec in the case where it has most; None where it cannot be told."""
    try:
        size = site.spec.argument(argument).size
        return max(evaluate_int(size, case.sizes) for case in site.cases)
    except (KeyError, ArithmeticError_):
        return None


def _by_few(site: Site, atomic: Node) -> bool:
    """Whether only some threads of the block reach the atomic by their place in it: then it is aggregated already."""
    node = atomic.parent
    while node is not None and node != site.body:
        condition = node.child_by_field_name("condition")
        for name in names(condition) if condition is not None else ():
            origin = definition(site, name)
            place = {name} | (names(origin) if origin is not None else set())
            if "threadIdx" in place and "blockIdx" not in place:
                return True
        node = node.parent
    return False


def _arguments(site: Site) -> tuple[str, ...]:
    return site.spec.steps[site.step].arguments


def _addition(site: Site, call: Node) -> tuple[str, Node | None, Node] | None:
    """Array, index (None: one fixed address) and value of `atomicAdd(&array[index], value);` whose result is unused."""
    arguments = call.child_by_field_name("arguments")
    if (
        called(call) != "atomicAdd"
        or arguments is None
        or call.parent is None
        or call.parent.type != "expression_statement"
    ):
        return None
    parts = children(arguments)
    pointers = {p.name: p for p in site.kernel.parameters if p.pointer and p.base in _ZEROS and p.type.count("*") == 1}
    if len(parts) != 2:
        return None
    target, value = parts
    if target.type == "identifier":
        return (text(target), None, value) if text(target) in pointers else None
    inner = target.child_by_field_name("argument")
    if target.type != "pointer_expression" or inner is None or inner.type != "subscript_expression":
        return None
    array, listed = inner.child_by_field_name("argument"), inner.child_by_field_name("indices")
    if array is None or listed is None or text(array) not in pointers or len(children(listed)) != 1:
        return None
    index = children(listed)[0]
    if index.type == "number_literal":
        return (text(array), None, value) if text(index) == "0" else None
    return text(array), index, value


def _summed(site: Site, call: Node, array: str, value: Node) -> Edits | None:
    """The kernel with a block-wide sum before its one atomic."""
    body, statement = site.body, call.parent
    if statement is None or statement.parent is None:
        return None
    kind = next(p.base for p in site.kernel.parameters if p.name == array)
    zero, unit = _ZEROS[kind], site.indent_unit
    inner = site.indent_at(children(body)[0].start_byte)
    returns = [n for n in walk(body) if n.type == "return_statement"]
    taken: list[str] = []

    def name_for(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    helper, total = name_for("block_sum"), name_for("total")
    define = Edit.insert(site.declaration_start, _helper(helper, kind, zero))
    closing = [
        f"{inner}const {kind} {total} = {helper}({{}});",
        f"{inner}if (threadIdx.x == 0) {{",
        f"{inner}{unit}atomicAdd({array}, {total});",
        f"{inner}}}",
    ]
    if statement.parent == body and not returns:
        lines = [closing[0].format(text(value)).strip(), *closing[1:]] if "{" not in text(value) else []
        return merge(site.in_file(define, Edit.replace(statement, "\n".join(lines)))) if lines else None
    partial = name_for("partial")
    replaced = (statement.start_byte, statement.end_byte, f"{partial} += {text(value)};")
    after = "\n" + "\n".join([closing[0].format(partial), *closing[1:]])
    start = f"{kind} {partial} = {zero};\n{inner}"
    last = children(body)[-1]
    top = statement
    while top.parent is not None and top.parent != body:
        top = top.parent
    mapping = thread_map(site)
    if mapping is not None and mapping.style == "return":
        if len(returns) != len(mapping.guards) or not mapping.work:
            return None
        first, guard = mapping.work[0], mapping.guards[-1]
        if len(mapping.guards) != 1 or any(
            d.start_byte > guard.start_byte for d in (*mapping.derived, *mapping.invariant)
        ):
            return None
        work = reindent(
            site.render(first.start_byte, last.end_byte, [replaced]), site.indent_at(first.start_byte), inner + unit
        )
        wrapped = f"{start}if ({holds(mapping)}) {{\n{work}\n{inner}}}{after}"
        return merge(site.in_file(define, Edit(Span(guard.start_byte, last.end_byte), wrapped)))
    if returns:
        return None
    edits = [
        define,
        Edit.insert(top.start_byte, start),
        Edit(Span(replaced[0], replaced[1]), replaced[2]),
        Edit.insert(last.end_byte, after),
    ]
    return merge(site.in_file(*edits))


def _helper(name: str, kind: str, zero: str) -> str:
    return f"""// The sum of `value` over the threads of the block, in its first warp. Blocks hold whole warps.
__device__ __forceinline__ {kind} {name}({kind} value) {{
    __shared__ {kind} sums[32];
    const int lane = threadIdx.x % 32;
    for (int offset = 16; offset > 0; offset /= 2) {{
        value += __shfl_down_sync(0xffffffffu, value, offset);
    }}
    if (lane == 0) {{
        sums[threadIdx.x / 32] = value;
    }}
    __syncthreads();
    if (threadIdx.x < 32) {{
        value = lane < blockDim.x / 32 ? sums[lane] : {zero};
        for (int offset = 16; offset > 0; offset /= 2) {{
            value += __shfl_down_sync(0xffffffffu, value, offset);
        }}
    }}
    return value;
}}

"""


def _stride_statement(site: Site, atomic: Node) -> Node | None:
    """The grid-stride loop at the top of the body that holds the atomic."""
    body = site.body
    top: Node | None = atomic
    while top is not None and top.parent != body:
        top = top.parent
    loop = stride_loop(top) if top is not None else None
    return top if loop is not None and "gridDim" in text(body) else None


@dataclass(frozen=True)
class _Counting:
    """An atomic addition of a value to one of so many counters."""

    atomic: Node
    array: str
    index: Node
    value: Node
    count: int


def _privatised(site: Site, counting: _Counting, form: _Counters) -> Edits | None:
    """The kernel with its own copy of the counters in shared memory, as a grid-stride loop."""
    copies = form.copies
    atomic, array, count = counting.atomic, counting.array, counting.count
    index, value = counting.index, counting.value
    statement = atomic.parent
    kind = next(p.base for p in site.kernel.parameters if p.name == array)
    body, unit = site.body, site.indent_unit
    if statement is None or statement.parent is None:
        return None
    inner = site.indent_at(children(body)[0].start_byte)
    taken: list[str] = []

    def name_for(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    local, slot, bin_ = name_for(f"block_{array}"), name_for("b"), name_for("bin")

    def over(limit: int) -> str:
        return f"{inner}for (int {slot} = threadIdx.x; {slot} < {limit}; {slot} += blockDim.x) {{"

    head = [
        f"{inner}__shared__ {kind} {local}[{count * copies}];",
        over(count * copies),
        f"{inner}{unit}{local}[{slot}] = 0;",
        f"{inner}}}",
        f"{inner}__syncthreads();",
    ]
    deep, own, gathered = inner + unit, f"{local}[{bin_}]", f"{local}[{slot}]"
    tail = [f"{inner}__syncthreads();", over(count)]
    if copies > 1:
        own = f"{local}[{bin_} * {copies} + threadIdx.x % {copies}]"
        gathered, copy = name_for("sum"), name_for("copy")
        tail += [
            f"{deep}{kind} {gathered} = 0;",
            f"{deep}for (int {copy} = 0; {copy} < {copies}; ++{copy}) {{",
            f"{deep}{unit}{gathered} += {local}[{slot} * {copies} + {copy}];",
            f"{deep}}}",
        ]
    tail += [
        f"{deep}if ({gathered} != 0) {{",
        f"{deep}{unit}atomicAdd(&{array}[{slot}], {gathered});",
        f"{deep}}}",
        f"{inner}}}",
    ]
    at = site.indent_at(statement.start_byte)
    counted = [f"const auto {bin_} = {text(index)};"]
    if _within_byte(site, index) and count >= 256:
        counted.append(f"{at}atomicAdd(&{own}, {text(value)});")
    else:
        # The array may be longer where this kernel is launched for other sizes than the spec's.
        counted += [
            f"{at}if (static_cast<unsigned int>({bin_}) < {count}u) {{",
            f"{at}{unit}atomicAdd(&{own}, {text(value)});",
            f"{at}}} else {{",
            f"{at}{unit}atomicAdd(&{array}[{bin_}], {text(value)});",
            f"{at}}}",
        ]
    replacement = "\n".join(counted)
    bare = statement.parent.type != "compound_statement"
    if bare:
        replacement = f"{{\n{at}{replacement}\n{at}}}"
    changed = (statement.start_byte, statement.end_byte, replacement)
    last = children(body)[-1]
    strided = _stride_statement(site, atomic)
    if strided is not None:
        if any(n.type == "return_statement" for n in walk(body)) or not site.local_only(
            strided, frozenset({"atomicAdd"})
        ):
            return None
        first = children(body)[0]
        edits = [
            Edit.insert(first.start_byte, "\n".join(head).strip() + "\n" + inner),
            Edit(Span(changed[0], changed[1]), changed[2]),
            Edit.insert(last.end_byte, "\n" + "\n".join(tail)),
        ]
        return merge(site.in_file(*edits))
    mapping = thread_map(site)
    before = site.configs_after({})
    if (
        mapping is None
        or before is None
        or len(mapping.indices) != 1
        or not independent(site, mapping)
        or not only_bound(mapping)
    ):
        return None
    bounds, one = covered(site, mapping, before), mapping.indices[0]
    if bounds is None or list(bounds) != ["x"] or len({c.block for c in before}) != 1:
        return None
    if any(n.type == "return_statement" for w in mapping.work for n in walk(w)) or names(index) & written(body):
        return None
    guard = mapping.guards[0]
    lines = [*head, *(inner + line for line in one.grid_stride(site, mapping.bounds["x"]))]
    for node in mapping.derived:
        lines.append(
            reindent(site.render(node.start_byte, node.end_byte), site.indent_at(node.start_byte), inner + unit)
        )
    begin, end = mapping.work[0].start_byte, mapping.work[-1].end_byte
    lines += [reindent(site.render(begin, end, [changed]), site.indent_at(begin), inner + unit), f"{inner}}}", *tail]
    row = site.unit.data.rfind(b"\n", 0, guard.start_byte) + 1
    edits = [
        Edit(site.line_span(one.declaration), ""),
        *(Edit(site.line_span(d), "") for d in mapping.derived),
        Edit(Span(row, last.end_byte), "\n".join(lines)),
    ]
    grid = [ceil_div(bounds["x"], (form.threads or before[0].block[0]) * form.elements)]
    block = [str(form.threads)] if form.threads else None
    merged = merge(site.in_file(*edits), site.launch_edits(grid=grid, block=block))
    return merged if merged is not None and site.configs_after(merged) is not None and thread_indices(site) else None


def _within_byte(site: Site, index: Node) -> bool:
    """Whether the index is an element of an array of unsigned bytes."""
    array = index.child_by_field_name("argument") if index.type == "subscript_expression" else None
    return array is not None and any(
        p.name == text(array) and p.pointer and p.base in ("unsigned char", "uint8_t", "std::uint8_t")
        for p in site.kernel.parameters
    )
