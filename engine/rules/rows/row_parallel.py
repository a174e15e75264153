"""One thread per row becomes one warp or one block per row; one thread per column becomes several.

A thread that walks along a row reads memory far from what its neighbours read, and few rows make few threads. With a
team of threads per row neighbours read neighbours, and sums meet through shuffles. Source: CUDA C++ Best Practices
Guide, "Coalesced Access to Global Memory"; Mark Harris, "Optimizing Parallel Reduction in CUDA".
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from engine.cuda.questions import Declared, assigned, children, inside, strip, text, walk
from engine.rewrite import Edit, Families, Family, Node, Proposal, Proposals, Scope, Site, Span, merge, proposal
from engine.rewrite.wording import ceil_div, is_plain, reindent
from engine.rules.idioms import fits_bounds
from engine.rules.idioms.strided_loop import Reduction, StrideLoop
from engine.rules.rows.row_work import RowWork, SharedLoop, row_work

Team = Literal["warp", "block", "column"]
_OPERATORS = {"sum": "+", "product": "*", "and": "&", "or": "|", "xor": "^"}
_FULL = "0xffffffffu"
_WARPS = (8, 4)
_BLOCKS = (256, 128, 512, 1024)
_SLICES = (32, 16, 8)
_WARP = 32


@dataclass(frozen=True)
class _Mapping:
    """How a team of threads takes on a row: C texts for the row, the thread's place in its team, the team's size."""

    team: Team
    row: str
    lane: str
    lane_value: str  # "" where `lane` is no variable of its own
    size: str
    grid: str
    block: tuple[str, ...]
    threads: int


class RowParallel:
    """A warp or a block per row with shuffle reductions; several threads per column with a shared-memory reduction."""

    name = "row_parallel"
    summary = "One warp or block per row"

    def propose(self, site: Site) -> Proposals:
        if not site.launch_visible or not _flat(site):
            return
        work = row_work(site)
        if work is None:
            return
        # Both forms are worth a measurement where accesses run both ways; the better fit first.
        if work.across > work.along:
            yield from self._columns(site, work)
        else:
            yield from self._warps(site, work)
            yield from self._blocks(site, work)

    def families(self, site: Site) -> Families:
        """The team of a row (or column) left open: rows in a block of warps, threads of a block, threads of a column."""
        work = row_work(site) if site.launch_visible and _flat(site) else None
        if work is None:
            return
        if work.across > work.along:
            yield self._family(site, work, "column", {"slices": tuple(range(2, 33))}, self._column, 0.8)
        else:
            yield self._family(site, work, "warp", {"rows": (1, 2, 4, 8, 16, 32)}, self._warp, 0.85)
            yield self._family(site, work, "block", {"threads": tuple(range(32, 1025, 32))}, self._block, 0.88)

    def _family(
        self, site: Site, work: RowWork, team: str, choices: Mapping[str, tuple[int, ...]],
        one: Callable[[Site, RowWork, int, float], Iterator[Proposal]], prior: float,
    ) -> Family:  # fmt: skip
        (name,) = choices

        def make(chosen: Mapping[str, int]) -> Proposal | None:
            return next(one(site, work, chosen[name], prior), None)

        limit = site.target.max_threads_per_block
        conditions = (f"{name} <= {limit if team == 'block' else limit // _WARP}",)
        return Family(self.name, f"{self.summary}: a {team} of threads", choices, conditions, make, prior)

    def _warps(self, site: Site, work: RowWork) -> Proposals:
        for order, warps in enumerate(_WARPS):
            yield from self._warp(site, work, warps, 0.85 - 0.03 * order)

    def _warp(self, site: Site, work: RowWork, warps: int, prior: float) -> Proposals:
        row = "blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32"
        threads = warps * _WARP
        mapping = _Mapping(
            "warp", row, site.fresh("lane"), "threadIdx.x % 32", "32", ceil_div(work.extent, warps), (str(threads),), threads
        )  # fmt: skip
        summary = f"One warp per row, {warps} rows per block"
        yield from self._one(site, work, mapping, summary, prior, team="warp", block=threads)

    def _blocks(self, site: Site, work: RowWork) -> Proposals:
        for order, threads in enumerate(_BLOCKS):
            yield from self._block(site, work, threads, 0.88 - 0.04 * order)

    def _block(self, site: Site, work: RowWork, threads: int, prior: float) -> Proposals:
        mapping = _Mapping(
            "block", "blockIdx.x", "threadIdx.x", "", "blockDim.x", work.extent, (str(threads),), threads
        )
        summary = f"One block of {threads} threads per row"
        yield from self._one(site, work, mapping, summary, prior, team="block", block=threads)

    def _columns(self, site: Site, work: RowWork) -> Proposals:
        for order, slices in enumerate(_SLICES):
            yield from self._column(site, work, slices, 0.8 - 0.04 * order)

    def _column(self, site: Site, work: RowWork, slices: int, prior: float) -> Proposals:
        row = "blockIdx.x * blockDim.x + threadIdx.x"
        mapping = _Mapping(
            "column", row, "threadIdx.y", "", "blockDim.y", ceil_div(work.extent, _WARP),
            (str(_WARP), str(slices)), _WARP * slices,
        )  # fmt: skip
        summary = f"{slices} threads per column"
        yield from self._one(site, work, mapping, summary, prior, team="column", slices=slices)

    def _one(
        self, site: Site, work: RowWork, mapping: _Mapping, summary: str, prior: float, **parameters: int | str
    ) -> Proposals:
        if mapping.threads > site.target.max_threads_per_block or not fits_bounds(site, mapping.threads):
            return
        edits = _rewrite(site, work, mapping)
        if edits is None:
            return
        launch = site.launch_edits(grid=(mapping.grid,), block=mapping.block)
        yield from proposal(self.name, summary, merge(site.in_file(*edits), launch), prior, **parameters)


def _flat(site: Site) -> bool:
    return all(c.grid[1:] == (1, 1) and c.block[1:] == (1, 1) for c in site.configs)


def _rewrite(site: Site, work: RowWork, mapping: _Mapping) -> list[Edit] | None:
    """The kernel's edits for one mapping; None where it cannot be written."""
    unit = site.indent_unit
    scope = Scope(site.unit, site.kernel, frozenset({work.index.name}))
    edits = []
    declaration = work.index.declaration
    value = _initialiser(declaration, work.index.name)
    if value is None:
        return None
    edits.append(Edit.replace(value, mapping.row))
    if mapping.lane_value:
        indent = site.indent_at(declaration.start_byte)
        edits.append(_after(declaration, f"\n{indent}const int {mapping.lane} = {mapping.lane_value};"))
    helpers: dict[tuple[str, str, str], str] = {}
    texts: list[str] = []
    for shared in work.loops:
        edits += _share(shared.loop, mapping, _starts_from_first(scope, shared))
        indent = site.indent_at(shared.loop.node.start_byte)
        resets, results = "", ""
        for reduction in shared.reductions:
            name = _helper(site, mapping.team, reduction, helpers, texts, unit)
            results += f"\n{indent}{reduction.name} = {name}({reduction.name});"
            if not reduction.idempotent and not _starts_neutral(work, shared, reduction):
                neutral = reduction.identity()
                chosen = f"{mapping.lane} == 0 ? {reduction.name} : {neutral}"
                resets += f"{reduction.name} = {chosen};\n{indent}"
        if resets:
            edits.append(Edit.insert(_start(shared.loop.node), resets))
        if results:
            edits.append(_after(shared.loop.node, results))
    for group in _groups(site, work.stores):
        edits.append(_alone(site, group, mapping, unit))
    if mapping.team == "column" and work.map.style == "wrap" and texts:
        leave = _leave_early(site, work, unit)
        if leave is None:
            return None
        edits += leave
    if texts:
        at = site.declaration_start
        edits.append(Edit.insert(at, "".join(t + "\n" for t in texts)))
    return edits


def _initialiser(declaration: Node, name: str) -> Node | None:
    for part in declaration.children_by_field_name("declarator"):
        target = part.child_by_field_name("declarator")
        if target is not None and text(target) == name:
            return part.child_by_field_name("value")
    return None


def _after(node: Node, added: str) -> Edit:
    return Edit.insert(node.end_byte, added)


def _start(node: Node) -> int:
    """Where the statement begins, an unroll pragma before it included."""
    before = node.prev_sibling
    return before.start_byte if before is not None and before.type == "preproc_call" else node.start_byte


def _starts_from_first(scope: Scope, shared: SharedLoop) -> bool:
    """Whether a maximum or minimum starts from element 0 and the loop from element 1, so that it may begin at 0 too.

    With the loops over a row beginning alike, a thread meets the same elements in each of them.
    """
    loop, body = shared.loop, shared.loop.body
    accesses = [n for n in walk(body) if n.type == "subscript_expression"]
    if text(loop.start) != "1" or len(shared.reductions) != 1 or not shared.reductions[0].idempotent:
        return False
    declared = shared.reductions[0].declared
    first = strip(declared.value) if declared.value is not None else None
    if first is None or first.type != "subscript_expression" or declared.scope != loop.node.parent:
        return False
    if any(assigned(n) is not None and inside(n, declared.scope) for n in _statements(declared.node, loop.node)):
        return False
    start = scope.element(first)
    elements = {scope.element(a) for a in accesses}
    if len(elements) != 1 or start is None or start[1] is None:
        return False
    element = elements.pop()
    parts = element[1].split(loop.variable) if element is not None and element[1] is not None else None
    return element is not None and parts is not None and element[0] == start[0] and parts[1] == start[1]


def _statements(first: Node, last: Node) -> Iterator[Node]:
    """All nodes of the statements between two of one block."""
    node = first.next_named_sibling
    while node is not None and node != last:
        yield from walk(node)
        node = node.next_named_sibling


def _share(loop: StrideLoop, mapping: _Mapping, from_first: bool) -> list[Edit]:
    update = loop.node.child_by_field_name("update")
    first = "0" if from_first else text(loop.start)
    wide = loop.type not in ("int", "unsigned", "unsigned int", "int32_t", "uint32_t", "uint", "auto")
    lane = f"static_cast<{loop.type}>({mapping.lane})" if wide and first != "0" else mapping.lane
    start = lane if first in ("0", "0u", "0U") else f"{first if is_plain(first) else f'({first})'} + {lane}"
    edits = [Edit.replace(loop.start, start)]
    if update is not None:
        edits.append(Edit.replace(update, f"{loop.variable} += {mapping.size}"))
    return edits


def _helper(
    site: Site, team: Team, reduction: Reduction, helpers: dict[tuple[str, str, str], str], texts: list[str], unit: str
) -> str:
    template = reduction.type in site.type_names
    key = (reduction.operation, "" if template else reduction.type, reduction.function)
    if key not in helpers:
        taken = list(helpers.values())
        base = f"{team}_{reduction.operation}"
        helpers[key] = site.fresh(base, taken)
        texts.append(function(helpers[key], team, reduction, template, unit))
    return helpers[key]


def _starts_neutral(work: RowWork, shared: SharedLoop, reduction: Reduction) -> bool:
    """Whether the scalar surely holds the neutral value when the loop begins: declared so, and unchanged until then."""
    declared: Declared = reduction.declared
    if declared.value is None or shared.loop.node.parent != declared.scope:
        return False
    literal = text(declared.value).rstrip("fFuUlL").strip("{}()T ")
    neutral = {"sum": ("0", "0.0", "0.", ".0"), "xor": ("0",), "product": ("1", "1.0", "1.")}
    if literal not in neutral.get(reduction.operation, ()):
        return False
    for node in walk(declared.scope):
        between = declared.node.end_byte <= node.start_byte < shared.loop.node.start_byte
        target = assigned(node) if between else None
        if target is not None and text(strip(target)) == reduction.name:
            return False
    return True


def _groups(site: Site, stores: tuple[Node, ...]) -> list[list[Node]]:
    """Stores that follow each other directly, together."""
    groups: list[list[Node]] = []
    for store in stores:
        if groups and not site.unit.data[groups[-1][-1].end_byte : store.start_byte].strip():
            groups[-1].append(store)
        else:
            groups.append([store])
    return groups


def _alone(site: Site, group: list[Node], mapping: _Mapping, unit: str) -> Edit:
    start, end = group[0].start_byte, group[-1].end_byte
    indent = site.indent_at(start)
    inner = reindent(indent + site.render(start, end), indent, indent + unit)
    return Edit(Span(start, end), f"if ({mapping.lane} == 0) {{\n{inner}\n{indent}}}")


def _leave_early(site: Site, work: RowWork, unit: str) -> list[Edit] | None:
    """`if (c < n) { … }` as `if (c >= n) { return; } …`: a barrier must not stand where some threads never come."""
    guard = work.guard
    condition, inner = guard.child_by_field_name("condition"), guard.child_by_field_name("consequence")
    if condition is None or inner is None or inner.type != "compound_statement" or not children(inner):
        return None
    negated = f"!({text(strip(condition))})"
    bare = strip(condition)
    sign, left, right = (bare.child_by_field_name(f) for f in ("operator", "left", "right"))
    if bare.type == "binary_expression" and sign is not None and left is not None and right is not None:
        opposite = {"<": ">=", ">": "<="}.get(text(sign))
        if opposite is not None:
            negated = f"{text(left)} {opposite} {text(right)}"
    indent = site.indent_at(guard.start_byte)
    leave = f"if ({negated}) {{\n{indent}{unit}return;\n{indent}}}\n{indent}"
    # The braces stay, so that what is inside keeps its lines and its scope.
    return [Edit(Span(guard.start_byte, inner.start_byte), leave)]


def combine(left: str, right: str, reduction: Reduction) -> str:
    """C text of the value that two partial results make. `right` must be a plain name."""
    if reduction.operation in _OPERATORS:
        return f"{left} {_OPERATORS[reduction.operation]} {right}"
    if reduction.function:
        return f"{reduction.function}({left}, {right})"
    return f"{right} {'>' if reduction.operation == 'max' else '<'} {left} ? {right} : {left}"


def function(name: str, team: Team, reduction: Reduction, template: bool, unit: str) -> str:
    """A `__device__` function `name` that combines `value` over a team of threads; every one gets the result.

    `warp`: the 32 threads of a warp (butterfly of shuffles). `block`: all threads of a 1-D block whose size is a
    multiple of 32 (shuffles, then one value per warp through shared memory). `column`: the threads of one threadIdx.x.
    `template`: the type is a template parameter. `unit` is one level of indentation.
    Source: CUDA C++ Programming Guide, "Warp Shuffle Functions".
    """
    kind = "Value" if template else reduction.type
    step = [
        "for (int offset = 16; offset > 0; offset /= 2) {",
        f"{unit}const {kind} other = __shfl_xor_sync({_FULL}, value, offset);",
        f"{unit}value = {combine('value', 'other', reduction)};",
        "}",
    ]
    lines: list[str]
    if team == "warp":
        lines = [*step, "return value;"]
    elif team == "block":
        rest = "partial[0]" if reduction.idempotent else reduction.identity(kind)
        lines = [
            f"__shared__ {kind} partial[32];",
            "const int lane = threadIdx.x % 32;",
            *step,
            "__syncthreads();  // an earlier call's results have been read",
            "if (lane == 0) {",
            f"{unit}partial[threadIdx.x / 32] = value;",
            "}",
            "__syncthreads();",
            f"value = lane < blockDim.x / 32 ? partial[lane] : {rest};",
            *step,
            "return value;",
        ]
    else:
        lines = [
            f"__shared__ {kind} partial[1024];",
            "__syncthreads();  // an earlier call's results have been read",
            "partial[threadIdx.y * blockDim.x + threadIdx.x] = value;",
            "__syncthreads();",
            "value = partial[threadIdx.x];",
            "for (int y = 1; y < blockDim.y; ++y) {",
            f"{unit}const {kind} other = partial[y * blockDim.x + threadIdx.x];",
            f"{unit}value = {combine('value', 'other', reduction)};",
            "}",
            "return value;",
        ]
    header = "template <typename Value>\n" if template else ""
    body = "\n".join(unit + line for line in lines)
    return f"{header}__device__ __forceinline__ {kind} {name}({kind} value) {{\n{body}\n}}\n"
