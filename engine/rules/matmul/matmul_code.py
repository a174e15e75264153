"""The body of a tiled matrix product: shared-memory tiles, a small tile of results per thread in registers.

Source: Volkov and Demmel, "Benchmarking GPUs to Tune Dense Linear Algebra" (2008); CUDA C++ Best Practices Guide,
"Shared Memory in Matrix Multiplication".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from engine.rewrite.wording import grouped_text
from engine.rules.matmul import matmul_tensor
from engine.rules.matmul.matmul_form import Operand, Product

# Vector type and its number of elements; other element types are loaded one by one.
_VECTORS = {
    "float": ("float4", 4), "int": ("int4", 4), "unsigned": ("uint4", 4), "unsigned int": ("uint4", 4),
    "double": ("double2", 2),
}  # fmt: skip
_COPIED = {"float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "double": 8}  # bytes of an asynchronous copy
_ZEROS = {"float": "0.0f", "double": "0.0", "int": "0", "unsigned": "0u", "unsigned int": "0u"}
_PARTS = "xyzw"


@dataclass(frozen=True)
class Tiling:
    """Sizes in elements: a block computes bm x bn results in steps of bk, a thread tm x tn of them.

    `buffers` is 1, or 2 to load the next tiles into registers while the present ones are multiplied; with `copies` the
    tiles come by asynchronous copies, `buffers` - 1 of them ahead. With `square`, a warp's threads are 4 x 8 of the
    tile's, so that each of its loads from shared memory touches every bank once. With `tensor`, a warp computes their results
    together, on tensor cores.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    buffers: int
    copies: bool = False
    square: bool = False
    tensor: bool = False

    @property
    def threads(self) -> int:
        return (self.bm // self.tm) * (self.bn // self.tn)

    @property
    def across(self) -> int:
        """The threads along a row of the tile."""
        return self.bn // self.tn

    @property
    def squared(self) -> bool:
        """Whether a warp's threads can be 4 x 8, as `square` wants."""
        return self.square and self.across % 8 == 0 and (self.bm // self.tm) % 4 == 0

    @property
    def placed(self) -> bool:
        """Whether a thread keeps the places that it loads from: registers allow it where they leave room for one block alone."""
        return self.tm * self.tn > 64 and self.buffers == 2 and not self.copies and not self.tensor

    @property
    def exchanged(self) -> int:
        """How many neighbouring results of a thread its warp exchanges before they are used, through a place of their own; 0 for none.

        In tiles of 32 columns a warp's stores are to whole rows, with or without: measured, it only costs there.
        """
        if self.tensor:
            return 0
        fits = self.bn >= 64 and (32 % self.across == 0 or self.across % 32 == 0)
        return 4 if self.tn % 4 == 0 and self.threads % 32 == 0 and fits else 0


@dataclass(frozen=True)
class Part:
    """How one operand's tile is loaded: `width` elements at a time, `count` times per thread."""

    operand: Operand
    which: Literal["a", "b"]
    outer: int  # the tile's extent in rows of A or columns of B
    pad: int
    width: int
    vector: str
    count: int
    depth: int
    flat: bool  # a row of the tile is a row of A (a column of B), not all elements of one k

    @property
    def elements(self) -> int:
        """The elements of one buffer of the tile."""
        return self.outer * (self.depth + self.pad) if self.flat else self.depth * (self.outer + self.pad)

    def extents(self, name: Callable[[str], str]) -> str:
        """The tile's extents in shared memory."""
        outer, k = name("tile_m" if self.which == "a" else "tile_n"), name("tile_k")
        pad = f" + {self.pad}" if self.pad else ""
        return f"[{outer}][{k}{pad}]" if self.flat else f"[{k}][{outer}{pad}]"

    def element(self, buffer: str, outer: str, k: str, name: Callable[[str], str]) -> str:
        """An element of the tile."""
        return f"{name(self.which + '_tile')}{buffer}" + (f"[{outer}][{k}]" if self.flat else f"[{k}][{outer}]")


def part(operand: Operand, which: Literal["a", "b"], tiling: Tiling) -> Part | None:
    """The loading plan for one operand; None where the threads do not share the tile evenly."""
    outer = tiling.bm if which == "a" else tiling.bn
    run = tiling.bk if operand.along == "k" else outer
    vector, width = _VECTORS.get(operand.element, ("", 1))
    if tiling.copies:
        if operand.conversion != "@" or operand.element not in _COPIED:
            return None
        if operand.along == "k" and not tiling.tensor:  # turned on its way: element by element
            vector, width = "", 1
    if run % width or outer * tiling.bk % (tiling.threads * width):
        vector, width = "", 1
    if outer * tiling.bk % (tiling.threads * width):
        return None
    # Elements along k are stored down a column of the tile: an unpadded one would put them all in one bank.
    pad = 4 if operand.along == "k" else 0
    flat = tiling.tensor and operand.along == "k"
    if tiling.tensor:
        pad = matmul_tensor.PAD_ALONG_K if flat else matmul_tensor.PAD_ACROSS
    elif tiling.tm % 4 or tiling.tn % 4:
        pad = 1 if operand.along == "k" else 0
    count = outer * tiling.bk // (tiling.threads * width)
    return Part(operand, which, outer, pad, width, vector, count, tiling.bk, flat)


def tile_body(form: Product, tiling: Tiling, parts: tuple[Part, Part], name: Callable[[str], str], unit: str) -> str:
    """Statements that leave the thread's sums in `sums[i][j]`, lines without indentation of their own.

    They are zeros in blocks of which no result is used. `name` maps the names used here to free ones; `unit` is one level of indentation.
    """
    t = tiling
    own = (("warp_m", 4 * t.tm), ("warp_n", 8 * t.tn)) if t.tensor else (("thread_m", t.tm), ("thread_n", t.tn))
    sizes = (("tile_m", t.bm), ("tile_n", t.bn), ("tile_k", t.bk), *own, ("thread_count", t.threads))
    lines = [f"constexpr int {name(key)} = {value};" for key, value in sizes]
    buffers = f"[{t.buffers}]" if t.buffers > 1 else ""
    lines += [
        f"alignas(16) __shared__ {p.operand.type} {name(p.which + '_tile')}{buffers}{p.extents(name)};" for p in parts
    ]
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
            base = _base(p)
            size = f"{p.width} * sizeof({p.operand.element})"
            lines.append(
                f"const bool {name(p.which + '_aligned')} = {grouped_text(p.operand.stride)} % {p.width} == 0 && "
                f"reinterpret_cast<size_t>({base}) % ({size}) == 0;"
            )
    if t.tensor:
        lines += matmul_tensor.sums(name, unit)
    else:
        if t.exchanged:
            lines.append(
                f"alignas(16) __shared__ {form.accumulator} {name('out_tile')}[{t.threads // 32}][{32 * t.exchanged}];"
            )
        lines.append(f"{form.accumulator} {name('sums')}[{name('thread_m')}][{name('thread_n')}] = {{}};")
    write = _copied if t.copies else _pipelined if t.buffers > 1 else _plain
    lines += write(form, t, parts, name, unit)
    if t.tensor:
        roomier = max(parts, key=lambda p: p.elements)
        lines += matmul_tensor.handing_on(name(roomier.which + "_tile"), t.buffers > 1, name, unit)
    return "\n".join(lines)


def _depth(form: Product, name: Callable[[str], str]) -> list[str]:
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


def _thread_place(t: Tiling, name: Callable[[str], str]) -> list[str]:
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


def _base(p: Part) -> str:
    return p.operand.array if p.operand.offset == "0" else f"{p.operand.array} + ({p.operand.offset})"


def _pipelined(form: Product, t: Tiling, parts: tuple[Part, Part], name: Callable[[str], str], unit: str) -> list[str]:
    tiles, tile = name("tiles"), name("tile")
    lines = [f"const int {tiles} = ({form.depth} + {name('tile_k')} - 1) / {name('tile_k')};"]
    for p in parts:
        lines.append(f"{p.operand.element} {name(p.which + '_next')}[{p.count * p.width}];")
    for p in parts:
        lines += _places(form, p, name, unit) if t.placed and p.width > 1 else []
    body = [f"if ({tile} < {tiles}) {{  // on its way while the present tiles are multiplied"]
    for p in parts:
        load = _load_placed if t.placed and p.width > 1 else _load
        body += indented(load(form, p, f"{tile} * {name('tile_k')}", name, unit), unit)
    body += ["}", f"if ({tile} > 0) {{"]
    body += indented(_multiply(t, parts, f"[({tile} - 1) % 2]", name, unit), unit)
    body += ["}", f"if ({tile} < {tiles}) {{"]
    for p in parts:
        body += indented(_store(p, f"[{tile} % 2]", name, unit), unit)
    body += ["}", "__syncthreads();"]
    return [*lines, f"for (int {tile} = 0; {tile} <= {tiles}; ++{tile}) {{", *indented(body, unit), "}"]


def _copied(form: Product, t: Tiling, parts: tuple[Part, Part], name: Callable[[str], str], unit: str) -> list[str]:
    tiles, tile, ahead = name("tiles"), name("tile"), name("ahead")

    def copy(at: str) -> list[str]:
        lines = [f"if ({at} < {tiles}) {{"]
        for p in parts:
            lines += indented(_copy(form, p, f"{at} * {name('tile_k')}", f"[{at} % {t.buffers}]", name, unit), unit)
        return [*lines, "}", "__pipeline_commit();"]

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
        *indented(copy(tile), unit),
        "}",
        f"for (int {tile} = 0; {tile} < {tiles}; ++{tile}) {{",
        *indented(body, unit),
        "}",
    ]


def _copy(form: Product, p: Part, first_k: str, buffer: str, name: Callable[[str], str], unit: str) -> list[str]:
    """Asynchronous copies of one operand's tile; what lies outside of the matrix becomes zero."""
    outer, k = _place(p, name)
    (far, near), (far_end, near_end) = _ranges(form, p, name)
    source, e = name("source"), name("e")
    size = _COPIED[p.operand.element]
    inside = f"{far} < {far_end} && {near} < {near_end}"
    body = _source(form, p, first_k, outer, k, name)
    if p.width == 1:
        place = f"&{p.element(buffer, outer, k, name)}"
        body.append(
            f"__pipeline_memcpy_async({place}, {inside} ? {source} : {p.operand.array}, {size}, {inside} ? 0 : {size});"
        )
        return _loop(p, body, name, unit)
    place = f"&{p.element(buffer, outer, k, name)}".removesuffix("]")
    within = f"{far} < {far_end} && {near} + {e} < {near_end}"
    body += [
        f"if ({name(p.which + '_aligned')} && {far} < {far_end} && {near} + {p.width} <= {near_end}) {{",
        f"{unit}__pipeline_memcpy_async({place}], {source}, {p.width * size});",
        "} else {",
        f"{unit}#pragma unroll",
        f"{unit}for (int {e} = 0; {e} < {p.width}; ++{e}) {{",
        f"{unit}{unit}__pipeline_memcpy_async({place} + {e}], {within} ? {source} + {e} : {p.operand.array}, {size}, "
        f"{within} ? 0 : {size});",
        f"{unit}}}",
        "}",
    ]
    return _loop(p, body, name, unit)


def _plain(form: Product, t: Tiling, parts: tuple[Part, Part], name: Callable[[str], str], unit: str) -> list[str]:
    start = name("first_k")
    body: list[str] = []
    for p in parts:
        body.append("{")
        inner = [f"{p.operand.element} {name(p.which + '_next')}[{p.count * p.width}];"]
        inner += _load(form, p, start, name, unit) + _store(p, "", name, unit)
        body += [*indented(inner, unit), "}"]
    body.append("__syncthreads();")
    body += _multiply(t, parts, "", name, unit)
    body.append("__syncthreads();")
    head = f"for (int {start} = 0; {start} < {form.depth}; {start} += {name('tile_k')}) {{"
    return [head, *indented(body, unit), "}"]


def _place(p: Part, name: Callable[[str], str]) -> tuple[str, str]:
    """Where the vector `at` of a tile stands: (row or column of the tile, k within the tile)."""
    run = "tile_k" if p.operand.along == "k" else ("tile_m" if p.which == "a" else "tile_n")
    per = name(run) if p.width == 1 else f"({name(run)} / {p.width})"
    times = "" if p.width == 1 else f" * {p.width}"
    across, along = f"{name('at')} / {per}", f"{name('at')} % {per}{times}"
    return (across, along) if p.operand.along == "k" else (along, across)


def _loop(p: Part, body: list[str], name: Callable[[str], str], unit: str) -> list[str]:
    v = name("v")
    return [
        "#pragma unroll",
        f"for (int {v} = 0; {v} < {p.count}; ++{v}) {{",
        f"{unit}const int {name('at')} = {name('tid')} + {v} * {name('thread_count')};",
        *indented(body, unit),
        "}",
    ]


def _ranges(form: Product, p: Part, name: Callable[[str], str]) -> tuple[tuple[str, str], tuple[str, str]]:
    """Names of the far and the near index of an element in memory, and their ends."""
    extent = form.rows if p.which == "a" else form.columns
    x, y = name("outer_at"), name("k_at")
    return ((x, y), (extent, form.depth)) if p.operand.along == "k" else ((y, x), (form.depth, extent))


def _source(form: Product, p: Part, first_k: str, outer: str, k: str, name: Callable[[str], str]) -> list[str]:
    """Declarations of an element's two indices and of the pointer to it."""
    first = name("first_row" if p.which == "a" else "first_col")
    (far, near), _ = _ranges(form, p, name)
    return [
        f"const int {name('outer_at')} = {first} + {outer};",
        f"const int {name('k_at')} = {first_k} + {k};",
        f"const {p.operand.element}* {name('source')} = "
        f"{_base(p)} + static_cast<size_t>({far}) * {grouped_text(p.operand.stride)} + {near};",
    ]


def _places(form: Product, p: Part, name: Callable[[str], str], unit: str) -> list[str]:
    """Where the thread's vectors of the first tile are; those beyond the matrix are its last ones, and of no result that is used."""
    outer, k = _place(p, name)
    at, extent = name("outer_at"), form.rows if p.which == "a" else form.columns
    first, stride = name("first_row" if p.which == "a" else "first_col"), grouped_text(p.operand.stride)
    last = f"{grouped_text(extent)} - {1 if p.operand.along == 'k' else p.width}"
    inside = f"{at} < {extent} ? {at} : {last}"
    far, near = (inside, k) if p.operand.along == "k" else (k, f"({inside})")
    body = [
        f"const int {at} = {first} + {outer};",
        f"{name(p.which + '_from')}[{name('v')}] = {_base(p)} + static_cast<size_t>({far}) * {stride} + {near};",
    ]
    return [
        f"const {p.operand.element}* {name(p.which + '_from')}[{p.count}];",
        *_loop(p, body, name, unit),
    ]


def _load_placed(form: Product, p: Part, first_k: str, name: Callable[[str], str], unit: str) -> list[str]:
    """As `_load`, from the thread's places: a tile that is no deeper than the matrix takes no test for each vector."""
    by = first_k if p.operand.along == "k" else f"static_cast<size_t>({first_k}) * {grouped_text(p.operand.stride)}"
    vector = _vector(p, f"{name(p.which + '_from')}[{name('v')}] + {by}", name)
    whole = f" && {grouped_text(form.rows if p.which == 'a' else form.columns)} % {p.width} == 0"
    whole = whole if p.operand.along == "outer" else ""
    return [
        f"if ({name(p.which + '_aligned')}{whole} && {first_k} + {name('tile_k')} <= {form.depth}) {{",
        *indented(["#pragma unroll", f"for (int {name('v')} = 0; {name('v')} < {p.count}; ++{name('v')}) {{"], unit),
        *indented([*indented(vector, unit), "}"], unit),
        "} else {",
        *indented(
            _loop(p, [*_source(form, p, first_k, *_place(p, name), name), *_elements(form, p, name, unit)], name, unit),
            unit,
        ),
        "}",
    ]


def _vector(p: Part, source: str, name: Callable[[str], str]) -> list[str]:
    """The load of one vector."""
    v, held, wide = name("v"), name(p.which + "_next"), name("wide")
    return [
        f"const {p.vector} {wide} = *reinterpret_cast<const {p.vector}*>({source});",
        *(f"{held}[{v} * {p.width} + {i}] = {wide}.{_PARTS[i]};" for i in range(p.width)),
    ]


def _elements(form: Product, p: Part, name: Callable[[str], str], unit: str) -> list[str]:
    """The loads of a vector's elements, as far as they are in the matrix."""
    (far, near), (far_end, near_end) = _ranges(form, p, name)
    v, e = name("v"), name("e")
    return [
        "#pragma unroll",
        f"for (int {e} = 0; {e} < {p.width}; ++{e}) {{",
        f"{unit}{name(p.which + '_next')}[{v} * {p.width} + {e}] = "
        f"{far} < {far_end} && {near} + {e} < {near_end} ? {name('source')}[{e}] : {_zero(p)};",
        "}",
    ]


def _zero(p: Part) -> str:
    return _ZEROS.get(p.operand.element, f"static_cast<{p.operand.element}>(0)")


def _load(form: Product, p: Part, first_k: str, name: Callable[[str], str], unit: str) -> list[str]:
    outer, k = _place(p, name)
    v, source, held = name("v"), name("source"), name(p.which + "_next")
    (far, near), (far_end, near_end) = _ranges(form, p, name)
    body = _source(form, p, first_k, outer, k, name)
    if p.width == 1:
        body.append(f"{held}[{v}] = {far} < {far_end} && {near} < {near_end} ? *{source} : {_zero(p)};")
        return _loop(p, body, name, unit)
    body += [
        f"if ({name(p.which + '_aligned')} && {far} < {far_end} && {near} + {p.width} <= {near_end}) {{",
        *indented(_vector(p, source, name), unit),
        "} else {",
        *indented(_elements(form, p, name, unit), unit),
        "}",
    ]
    return _loop(p, body, name, unit)


def _store(p: Part, buffer: str, name: Callable[[str], str], unit: str) -> list[str]:
    outer, k = _place(p, name)
    v, e = name("v"), name("e")
    held = f"{name(p.which + '_next')}[{v}" + ("]" if p.width == 1 else f" * {p.width} + {e}]")
    value = p.operand.conversion.replace("@", held)
    if p.width == 1:
        return _loop(p, [f"{p.element(buffer, outer, k, name)} = {value};"], name, unit)
    along_k = p.operand.along == "k"
    place = p.element(buffer, outer if along_k else f"{outer} + {e}", f"{k} + {e}" if along_k else k, name)
    body = [
        "#pragma unroll",
        f"for (int {e} = 0; {e} < {p.width}; ++{e}) {{",
        f"{unit}{place} = {value};",
        "}",
    ]
    return _loop(p, body, name, unit)


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


def _multiply(t: Tiling, parts: tuple[Part, Part], buffer: str, name: Callable[[str], str], unit: str) -> list[str]:
    a, b = parts
    if t.tensor:
        of = {"a": a, "b": b}
        return matmul_tensor.multiply(
            t.tm // 4, t.tn, lambda which, outer, at: of[which].element(buffer, outer, at, name), name, unit
        )
    k, i, j = name("k_in"), name("i"), name("j")
    body = []
    for p, index, count, mine in ((a, i, "thread_m", "thread_row"), (b, j, "thread_n", "thread_col")):
        body += [
            f"{p.operand.type} {name(p.which + '_part')}[{name(count)}];",
            "#pragma unroll",
            f"for (int {index} = 0; {index} < {name(count)}; ++{index}) {{",
            f"{unit}{name(p.which + '_part')}[{index}] = "
            f"{name(p.which + '_tile')}{buffer}[{k}][{local_place(t, p.which, index, name(mine))}];",
            "}",
        ]
    body += [
        "#pragma unroll",
        f"for (int {i} = 0; {i} < {name('thread_m')}; ++{i}) {{",
        f"{unit}#pragma unroll",
        f"{unit}for (int {j} = 0; {j} < {name('thread_n')}; ++{j}) {{",
        f"{unit}{unit}{name('sums')}[{i}][{j}] += {name('a_part')}[{i}] * {name('b_part')}[{j}];",
        f"{unit}}}",
        "}",
    ]
    head = f"for (int {k} = 0; {k} < {name('tile_k')}; ++{k}) {{"
    return ["#pragma unroll", head, *indented(body, unit), "}"]


def indented(lines: list[str], unit: str) -> list[str]:
    """The lines, each with `unit` before it."""
    return [unit + line for line in lines]
