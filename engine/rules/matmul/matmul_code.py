"""The body of a tiled matrix product: shared-memory tiles, a small tile of results per thread in registers.

Source: Volkov and Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra" (2008); CUDA C++ Best Practices Guide,
"Shared Memory in Matrix Multiplication".
"""

from dataclasses import dataclass, replace

from engine.cuda.syntax import children, names, text
from engine.rewrite import Namer, Node, Scope, Site, grouped_text, replace_name
from engine.rules.matmul import matmul_form, matmul_loads, matmul_tensor
from engine.rules.matmul.matmul_loads import Side, TilePart, Tiling, indented


def tile_body(
    form: matmul_form.Product, tiling: Tiling, parts: tuple[TilePart, TilePart], name: Namer, unit: str
) -> str:
    """Statements that leave the thread's sums in `sums[i][j]`, lines without indentation of their own.

    They are zeros in blocks of which no result is used. `name` maps the names used here to free ones; `unit` is one level of indentation.
    """
    t = tiling
    own = (("warp_m", 4 * t.tm), ("warp_n", 8 * t.tn)) if t.tensor else (("thread_m", t.tm), ("thread_n", t.tn))
    sizes = (("tile_m", t.bm), ("tile_n", t.bn), ("tile_k", t.bk), *own, ("thread_count", t.threads))
    lines = [f"constexpr int {name(key)} = {value};" for key, value in sizes]
    buffers = f"[{t.buffers}]" if t.buffers > 1 else ""
    lines += [f"alignas(16) __shared__ {p.type} {name(p.which + '_tile')}{buffers}{p.extents(name)};" for p in parts]
    lines += [
        f"const int {name('tid')} = threadIdx.x;",
        *(matmul_tensor.place(t.across // 8, name, unit) if t.tensor else _thread_place(t, name)),
        f"const int {name('first_row')} = {'0' if form.alone else 'blockIdx.y * ' + name('tile_m')};",
        f"const int {name('first_col')} = {'0' if form.alone else 'blockIdx.x * ' + name('tile_n')};",
        *_depth(form, name),
    ]
    form = replace(form, depth=name("depth")) if form.masks else form
    for p in parts:
        if p.width > 1:
            start = matmul_loads.base(p)
            size = f"{p.width} * sizeof({p.operand.element})"
            lines.append(
                f"const bool {name(p.which + '_aligned')} = {grouped_text(p.operand.stride)} % {p.width} == 0 && "
                f"reinterpret_cast<size_t>({start}) % ({size}) == 0;"
            )
    if t.tensor:
        lines += matmul_tensor.sums(name, unit)
    else:
        if t.exchanged:
            lines.append(
                f"alignas(16) __shared__ {form.accumulator} {name('out_tile')}[{t.threads // 32}][{32 * t.exchanged}];"
            )
        lines.append(f"{form.accumulator} {name('sums')}[{name('thread_m')}][{name('thread_n')}] = {{}};")
    write = _copied if t.copies else _plain if t.buffers == 1 else _ahead if t.ahead else _pipelined
    lines += write(form, t, parts, name, unit)
    if t.tensor:
        roomier = max(parts, key=lambda p: p.bytes)
        lines += matmul_tensor.handing_on(name(roomier.which + "_tile"), t.buffers > 1, name, unit)
    return "\n".join(lines)


def _depth(form: matmul_form.Product, name: Namer) -> list[str]:
    """The depth of the block's product: none where a mask empties the whole tile."""
    if not form.masks:
        return []
    lines = [
        f"const int {name('last_' + which)} = {name('first_' + which)} + {name(extent)} - 1;"
        for which, extent, wanted in (
            ("row", "tile_m", any(c.last_row for m in form.masks for c in m.corners)),
            ("col", "tile_n", any(c.last_column for m in form.masks for c in m.corners)),
        )
        if wanted
    ]
    used = " && ".join(m.written(form.row.name, form.column.name, name) for m in form.masks)
    return [*lines, f"const int {name('depth')} = {used} ? {form.depth} : 0;  // no result of another block is used"]


def _thread_place(t: Tiling, name: Namer) -> list[str]:
    """The thread's row and column among the threads of the tile."""
    tid, row, column = name("tid"), name("thread_row"), name("thread_col")
    if t.squared:
        warps = t.across // 8
        return [
            f"const int {row} = {tid} / {32 * warps} * 4 + {tid} % 32 / 8;",
            f"const int {column} = {tid} / 32 % {warps} * 8 + {tid} % 8;",
        ]
    return [
        f"const int {row} = {tid} / ({name('tile_n')} / {name('thread_n')});",
        f"const int {column} = {tid} % ({name('tile_n')} / {name('thread_n')});",
    ]


def _pipelined(
    form: matmul_form.Product, t: Tiling, parts: tuple[TilePart, TilePart], name: Namer, unit: str
) -> list[str]:
    tiles, tile = name("tiles"), name("tile")
    lines = [f"const int {tiles} = ({form.depth} + {name('tile_k')} - 1) / {name('tile_k')};"]
    for p in parts:
        lines.append(f"{p.operand.element} {name(p.which + '_next')}[{p.count * p.width}];")
    for p in parts:
        lines += matmul_loads.places(form, p, name, unit) if t.placed and p.width > 1 else []
    body = [f"if ({tile} < {tiles}) {{  // on its way while the present tiles are multiplied"]
    for p in parts:
        load = matmul_loads.load_placed if t.placed and p.width > 1 else matmul_loads.load_tile
        body += matmul_loads.indented(load(form, p, f"{tile} * {name('tile_k')}", name, unit), unit)
    body += ["}", f"if ({tile} > 0) {{"]
    body += matmul_loads.indented(_multiply(t, parts, f"[({tile} - 1) % 2]", name, unit), unit)
    body += ["}", f"if ({tile} < {tiles}) {{"]
    for p in parts:
        body += matmul_loads.indented(matmul_loads.store_tile(p, f"[{tile} % 2]", name, unit), unit)
    body += ["}", "__syncthreads();"]
    return [*lines, f"for (int {tile} = 0; {tile} <= {tiles}; ++{tile}) {{", *matmul_loads.indented(body, unit), "}"]


def _ahead(form: matmul_form.Product, t: Tiling, parts: tuple[TilePart, TilePart], name: Namer, unit: str) -> list[str]:
    """As `_pipelined`; a thread's elements of the next k, be it of the next tile, are loaded while those of this one are multiplied."""
    tiles, tile, k = name("tiles"), name("tile"), name("k_in")

    def come(first_k: str) -> list[str]:
        return [line for p in parts for line in matmul_loads.load_tile(form, p, first_k, name, unit)]

    def go(buffer: str) -> list[str]:
        return [line for p in parts for line in matmul_loads.store_tile(p, buffer, name, unit)]

    def fragments(step: _Step) -> list[str]:
        return [line for p in parts for line in _fragment(t, p, step, name, unit)]

    lines = [f"const int {tiles} = ({form.depth} + {name('tile_k')} - 1) / {name('tile_k')};"]
    lines += [f"{p.operand.element} {name(p.which + '_next')}[{p.count * p.width}];" for p in parts]
    lines += [
        f"{p.operand.type} {name(p.which + '_part')}[2][{name(count)}];"
        for p, count in zip(parts, ("thread_m", "thread_n"), strict=True)
    ]
    first = [*come("0"), *go("[0]"), "__syncthreads();", *fragments(_Step("[0]", "0", "[0]"))]
    last = [
        f"if ({tile} < {tiles}) {{",
        *matmul_loads.indented(
            [*go(f"[{tile} % 2]"), "__syncthreads();", *fragments(_Step(f"[{tile} % 2]", "0", "[0]"))], unit
        ),
        "}",
    ]
    step = [
        f"if ({k} + 1 < {name('tile_k')}) {{",
        *matmul_loads.indented(fragments(_Step(f"[({tile} - 1) % 2]", f"{k} + 1", f"[({k} + 1) % 2]")), unit),
        f"}} else {last[0]}",
        *last[1:],
        *_add_products(f"[{k} % 2]", name, unit),
    ]
    body = [
        f"if ({tile} < {tiles}) {{  // on its way while the present tiles are multiplied",
        *matmul_loads.indented(come(f"{tile} * {name('tile_k')}"), unit),
        "}",
        "#pragma unroll",
        f"for (int {k} = 0; {k} < {name('tile_k')}; ++{k}) {{",
        *matmul_loads.indented(step, unit),
        "}",
    ]
    return [
        *lines, *first,
        f"for (int {tile} = 1; {tile} <= {tiles}; ++{tile}) {{", *matmul_loads.indented(body, unit), "}",
    ]  # fmt: skip


def _copied(
    form: matmul_form.Product, t: Tiling, parts: tuple[TilePart, TilePart], name: Namer, unit: str
) -> list[str]:
    tiles, tile, ahead = name("tiles"), name("tile"), name("ahead")

    def copy(at: str, *, surely: bool = False) -> list[str]:
        own: list[str] = []
        for p in parts:
            own += matmul_loads.copy_tile(form, p, f"{at} * {name('tile_k')}", f"[{at} % {t.buffers}]", name, unit)
        tested = own if surely else [f"if ({at} < {tiles}) {{", *matmul_loads.indented(own, unit), "}"]
        return [*tested, "__pipeline_commit();"]

    body = [
        f"__pipeline_wait_prior({t.buffers - 2});",
        "__syncthreads();  // these tiles are there, and those before are no longer needed",
        f"const int {ahead} = {tile} + {t.buffers - 1};",
        *copy(ahead),
        *_multiply(t, parts, f"[{tile} % {t.buffers}]", name, unit),
    ]
    return [
        f"const int {tiles} = ({form.depth} + {name('tile_k')} - 1) / {name('tile_k')};",
        f"for (int {tile} = 0; {tile} < {t.buffers - 1}; ++{tile}) {{",
        *matmul_loads.indented(copy(tile, surely=t.buffers == 2), unit),
        "}",
        f"for (int {tile} = 0; {tile} < {tiles}; ++{tile}) {{",
        *matmul_loads.indented(body, unit),
        "}",
    ]


def _plain(form: matmul_form.Product, t: Tiling, parts: tuple[TilePart, TilePart], name: Namer, unit: str) -> list[str]:
    start = name("first_k")
    body: list[str] = []
    for p in parts:
        body.append("{")
        inner = [f"{p.operand.element} {name(p.which + '_next')}[{p.count * p.width}];"]
        inner += matmul_loads.load_tile(form, p, start, name, unit) + matmul_loads.store_tile(p, "", name, unit)
        body += [*matmul_loads.indented(inner, unit), "}"]
    body.append("__syncthreads();")
    body += _multiply(t, parts, "", name, unit)
    body.append("__syncthreads();")
    head = f"for (int {start} = 0; {start} < {form.depth}; {start} += {name('tile_k')}) {{"
    return [head, *matmul_loads.indented(body, unit), "}"]


def local_place(t: Tiling, which: Side, index: str, mine: str) -> str:
    """The row (or column) of the block's tile that result `index` of the thread in row (or column) `mine` of the threads belongs to.

    Four neighbours at a time, so that they are read with one 128-bit load; the groups are spread over the tile, so that
    a warp's loads meet few banks twice.
    """
    per, extent = (t.tm, t.bm) if which == "a" else (t.tn, t.bn)
    if per == 1:
        return mine
    group = 4 if per % 4 == 0 else per
    within = f"{mine} * {group} + {index} % {group}"
    if per == group:
        return f"{mine} * {group} + {index}"
    return f"{index} / {group} * {extent // per * group} + {within}"


def _multiply(t: Tiling, parts: tuple[TilePart, TilePart], buffer: str, name: Namer, unit: str) -> list[str]:
    a, b = parts
    if t.tensor:
        of = {"a": a, "b": b}

        def element(which: str, outer: str, at: str) -> str:
            return of[which].element(buffer, outer, at, name)

        if a.pairs:
            return matmul_tensor.multiply_pairs(element, frozenset(p.which for p in parts if not p.flat), name, unit)
        return matmul_tensor.multiply(t.tm // 4, t.tn, element, name, unit)
    k = name("k_in")
    body = []
    for p, count in ((a, "thread_m"), (b, "thread_n")):
        body.append(f"{p.operand.type} {name(p.which + '_part')}[{name(count)}];")
        body += _fragment(t, p, _Step(buffer, k, ""), name, unit)
    body += _add_products("", name, unit)
    head = f"for (int {k} = 0; {k} < {name('tile_k')}; ++{k}) {{"
    return ["#pragma unroll", head, *matmul_loads.indented(body, unit), "}"]


@dataclass(frozen=True)
class _Step:
    """One k of a tile in a buffer, and which of two fragments it is for."""

    buffer: str
    k: str
    fragment: str


def _fragment(t: Tiling, p: TilePart, step: _Step, name: Namer, unit: str) -> list[str]:
    """The thread's elements of one k come from shared memory to registers."""
    index, count, mine = ("i", "thread_m", "thread_row") if p.which == "a" else ("j", "thread_n", "thread_col")
    at = name(index)
    return [
        "#pragma unroll",
        f"for (int {at} = 0; {at} < {name(count)}; ++{at}) {{",
        f"{unit}{name(p.which + '_part')}{step.fragment}[{at}] = "
        f"{name(p.which + '_tile')}{step.buffer}[{step.k}][{local_place(t, p.which, at, name(mine))}];",
        "}",
    ]


def _add_products(fragment: str, name: Namer, unit: str) -> list[str]:
    i, j = name("i"), name("j")
    return [
        "#pragma unroll",
        f"for (int {i} = 0; {i} < {name('thread_m')}; ++{i}) {{",
        f"{unit}#pragma unroll",
        f"{unit}for (int {j} = 0; {j} < {name('thread_n')}; ++{j}) {{",
        f"{unit}{unit}{name('sums')}[{i}][{j}] += {name('a_part')}{fragment}[{i}] * {name('b_part')}{fragment}[{j}];",
        f"{unit}}}",
        "}",
    ]


_VECTORS = {"float": "float4", "int": "int4", "unsigned": "uint4", "unsigned int": "uint4"}
WIDTH = 4


@dataclass(frozen=True)
class Result:
    """Where one result is used: the loops around it, what is declared in them, and C text of its row, its column and its sum."""

    opening: tuple[str, ...]
    row: str
    column: str
    value: str
    depth: int  # how many loops


def result(t: Tiling, name: Namer, unit: str, group: int = 1) -> Result:
    """The loops over a thread's results, or over each `group` of neighbours (that is the last loop's `e`).

    Where a thread has neighbouring ones, its warp exchanges them in shared memory first: then the threads of a warp use neighbouring
    results together, and what they load and store for them is coalesced.
    """
    if t.tensor:
        lines, own_row, own_column, value = matmul_tensor.results(name, unit)
        return Result(tuple(lines), own_row, own_column, value, 2)
    i, j, e, at = name("i"), name("j"), name("e"), name("at")
    opening = ["#pragma unroll", f"for (int {i} = 0; {i} < {name('thread_m')}; ++{i}) {{"]
    if not t.exchanged:
        step, own = (f"{j} += {group}", f"{j} + {e}") if group > 1 else (f"++{j}", j)
        opening += [f"{unit}#pragma unroll", f"{unit}for (int {j} = 0; {j} < {name('thread_n')}; {step}) {{"]
        places = (local_place(t, "a", i, name("thread_row")), local_place(t, "b", j, name("thread_col")))
        return Result(tuple(opening), *places, f"{name('sums')}[{i}][{own}]", 2)
    tid, out = name("tid"), f"{name('out_tile')}[{name('tid')} / 32]"
    each = t.exchanged
    inner = [
        "#pragma unroll",
        f"for (int {j} = 0; {j} < {name('thread_n')}; {j} += {each}) {{",
        f"{unit}__syncwarp();  // neighbouring threads take on neighbouring results",
        f"{unit}#pragma unroll",
        f"{unit}for (int {e} = 0; {e} < {each}; ++{e}) {{",
        f"{unit}{unit}{out}[{tid} % 32 * {each} + {e}] = {name('sums')}[{i}][{j} + {e}];",
        f"{unit}}}",
        f"{unit}__syncwarp();",
        f"{unit}#pragma unroll",
        f"{unit}for (int {e} = 0; {e} < {each}; ++{e}) {{",
        f"{unit}{unit}const int {at} = {tid} % 32 + {e} * 32;",
    ]
    columns = 8 if t.squared else min(32, t.across)
    run = columns * each
    down = "" if columns == 32 else f" + {at} / {run}"
    if t.squared:
        warps = t.across // 8
        row, column = f"({tid} / {32 * warps} * 4{down})", f"{tid} / 32 % {warps} * {run}"
    elif t.across >= 32:
        row, column = f"{tid} / {t.across}", f"{tid} / 32 % {t.across // 32} * {run}"
    else:
        row, column = f"({tid} / 32 * {32 // columns}{down})", ""
    spread = f"{j} / {each} * {t.across * each}" if t.tn > each else ""
    along = " + ".join(part for part in (spread, column, f"{at} % {run}") if part)
    return Result(
        (*opening, *indented(inner, unit)), local_place(t, "a", i, row), along, f"{out}[{at}]", 3
    )  # fmt: skip


@dataclass(frozen=True)
class VectorStore:
    """`statement` stores `value` to `target`, an element of a matrix with its columns next to each other.

    `aligned` is C text for whether every fourth element of a row may be stored with its neighbours.
    """

    statement: Node
    target: Node
    value: Node
    type: str
    aligned: str

    @property
    def vector(self) -> str:
        """The vector's type."""
        return _VECTORS[self.type]

    def kept(self, to: str) -> tuple[int, int, str]:
        """The change that keeps the value instead of storing it."""
        return self.target.start_byte, self.target.end_byte, to

    def place(self, site: Site, column: str, first: str) -> str:
        """The address of the first of the neighbours, which stands in column `first`."""
        shown = site.render(self.target.start_byte, self.target.end_byte, replace_name(self.target, column, first))
        return f"reinterpret_cast<{self.vector}*>(&{shown})"


def vector_store(site: Site, form: matmul_form.Product, kept: list[Node]) -> VectorStore | None:
    """The last of the statements for a result, if it alone stores, to a row-major matrix; None where it has another form."""
    if not kept or kept[-1].type != "expression_statement" or len(children(kept[-1])) != 1:
        return None
    assignment = children(kept[-1])[0]
    sign, target, value = (assignment.child_by_field_name(f) for f in ("operator", "left", "right"))
    if assignment.type != "assignment_expression" or sign is None or target is None or value is None:
        return None
    if text(sign) != "=" or target.type != "subscript_expression":
        return None
    scope = Scope(site.unit, site.kernel, frozenset(i.name for i in form.map.indices))
    uses = scope.uses(site.body)
    origin = scope.element(target)
    if uses is None or origin is None or origin[1] is None or len([u for u in uses if u.array == origin[0]]) != 1:
        return None
    # Whatever else is stored would have to be so in the same order.
    if [u.node for u in uses if u.writes] != [u.node for u in uses if u.array == origin[0]]:
        return None
    array, kind = origin[0], scope.parameters[origin[0]].base
    along = origin[1].split(form.column.name)
    across = along[1].split(form.row.name) if along is not None else None
    if kind not in _VECTORS or along is None or across is None or along[0].constant != 1:
        return None
    stride, offset = across[0].render(), across[1].render()
    local = {n for same in scope.declared.values() for d in same for n in (d.name,)} - {
        n for node in form.map.invariant for n in names(node)
    }
    if (across[0].names() | across[1].names()) & local or {form.row.name, form.column.name} & across[1].names():
        return None
    base = array if offset == "0" else f"{array} + ({offset})"
    aligned = (
        f"{grouped_text(stride)} % {WIDTH} == 0 && reinterpret_cast<size_t>({base}) % ({WIDTH} * sizeof({kind})) == 0"
    )
    return VectorStore(kept[-1], target, value, kind, aligned)
