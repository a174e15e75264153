"""The body of a tiled matrix product: shared-memory tiles, a small tile of results per thread in registers.

Source: Volkov and Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra" (2008); CUDA C++ Best Practices Guide,
"Shared Memory in Matrix Multiplication".
"""

from dataclasses import dataclass, replace
from typing import Literal

from engine.rewrite import Namer, grouped_text
from engine.rules.matmul import matmul_form, matmul_loads, matmul_tensor
from engine.rules.matmul.matmul_loads import Part, Tiling


def tile_body(form: matmul_form.Product, tiling: Tiling, parts: tuple[Part, Part], name: Namer, unit: str) -> str:
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


def _pipelined(form: matmul_form.Product, t: Tiling, parts: tuple[Part, Part], name: Namer, unit: str) -> list[str]:
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


def _ahead(form: matmul_form.Product, t: Tiling, parts: tuple[Part, Part], name: Namer, unit: str) -> list[str]:
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


def _copied(form: matmul_form.Product, t: Tiling, parts: tuple[Part, Part], name: Namer, unit: str) -> list[str]:
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


def _plain(form: matmul_form.Product, t: Tiling, parts: tuple[Part, Part], name: Namer, unit: str) -> list[str]:
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


def local_place(t: Tiling, which: Literal["a", "b"], index: str, mine: str) -> str:
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


def _multiply(t: Tiling, parts: tuple[Part, Part], buffer: str, name: Namer, unit: str) -> list[str]:
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


def _fragment(t: Tiling, p: Part, step: _Step, name: Namer, unit: str) -> list[str]:
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
