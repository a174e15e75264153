"""How the tiles of a matrix product come to shared memory: tilings, loading plans, and the code of loads, stores and copies."""

from dataclasses import dataclass
from typing import Literal

from engine.rewrite import Namer, grouped_text
from engine.rules.matmul import matmul_form, matmul_tensor

Side = Literal["a", "b"]  # the left or the right operand

# Vector type and its number of elements; other element types are loaded one by one.
_VECTORS = {
    "float": ("float4", 4), "int": ("int4", 4), "unsigned": ("uint4", 4), "unsigned int": ("uint4", 4),
    "double": ("double2", 2),
}  # fmt: skip
_COPIED = {"float": 4, "int": 4, "unsigned": 4, "unsigned int": 4, "double": 8}  # bytes of an asynchronous copy
_ZEROS = {"float": "0.0f", "double": "0.0", "int": "0", "unsigned": "0u", "unsigned int": "0u"}
_PARTS = "xyzw"
SIZES = {
    "double": 8,
    "long long": 8,
    "unsigned long long": 8,
    "int64_t": 8,
    "uint64_t": 8,
}  # bytes, of types that have not four
PAIRED = 8  # elements of 16 bits in an asynchronous copy


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
    def ahead(self) -> bool:
        """Whether a thread loads its elements of the next k early: registers allow it where its results are few."""
        return (
            self.tm * self.tn <= 64 and self.buffers == 2 and not self.copies and not self.tensor and self.bk % 2 == 0
        )

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
class TilePart:
    """How one operand's tile is loaded: `width` elements at a time, `count` times per thread."""

    operand: matmul_form.Operand
    which: Side
    outer: int  # the tile's extent in rows of A or columns of B
    pad: int
    width: int
    vector: str
    count: int
    depth: int
    flat: bool  # a row of the tile is a row of A (a column of B), not all elements of one k
    pairs: bool  # the tile has the array's own elements of 16 bits, for tensor cores

    @property
    def type(self) -> str:
        """The type of the tile's elements."""
        return self.operand.element if self.pairs else self.operand.type

    @property
    def bytes(self) -> int:
        """The size of one buffer of the tile. An unknown (template) type counts as four bytes: the compiler refuses what does not fit."""
        elements = self.outer * (self.depth + self.pad) if self.flat else self.depth * (self.outer + self.pad)
        return elements * (2 if self.pairs else SIZES.get(self.operand.type, 4))

    def extents(self, name: Namer) -> str:
        """The tile's extents in shared memory."""
        outer, k = name("tile_m" if self.which == "a" else "tile_n"), name("tile_k")
        pad = f" + {self.pad}" if self.pad else ""
        return f"[{outer}][{k}{pad}]" if self.flat else f"[{k}][{outer}{pad}]"

    def element(self, buffer: str, outer: str, k: str, name: Namer) -> str:
        """An element of the tile.

        Elements of 16 bits are in groups of eight, and rows of the tile that a warp reads together have theirs in another order: so its
        loads touch every bank once, without padding.
        """
        far, near = (outer, k) if self.flat else (k, outer)
        near = f"({near}) ^ ({far}) / 2 % 4 * 8" if self.pairs else near
        return f"{name(self.which + '_tile')}{buffer}[{far}][{near}]"


def part(operand: matmul_form.Operand, which: Side, tiling: Tiling, pairs: bool) -> TilePart | None:
    """The loading plan for one operand; None where the threads do not share the tile evenly.

    With `pairs`, for tensor cores that multiply elements of 16 bits.
    """
    outer = tiling.bm if which == "a" else tiling.bn
    run = tiling.bk if operand.along == "k" else outer
    vector, width = _VECTORS.get(operand.element, ("", 1))
    if pairs:
        if not tiling.copies or run % 32 or outer * tiling.bk % (tiling.threads * PAIRED):
            return None
        count = outer * tiling.bk // (tiling.threads * PAIRED)
        return TilePart(operand, which, outer, 0, PAIRED, "", count, tiling.bk, operand.along == "k", pairs)
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
    return TilePart(operand, which, outer, pad, width, vector, count, tiling.bk, flat, pairs)


def base(p: TilePart) -> str:
    return p.operand.array if p.operand.offset == "0" else f"{p.operand.array} + ({p.operand.offset})"


def copy_tile(form: matmul_form.Product, p: TilePart, first_k: str, buffer: str, name: Namer, unit: str) -> list[str]:
    """Asynchronous copies of one operand's tile; what lies outside of the matrix becomes zero."""
    outer, k = _place(p, name)
    (far, near), (far_end, near_end) = _ranges(form, p, name)
    source, e = name("source"), name("e")
    body = _source(form, p, first_k, outer, k, name)
    within = f"{far} < {far_end} && {near} + {e} < {near_end}"
    if p.pairs:  # a copy of fewer than four bytes is none
        place = name("place")
        body.append(f"{p.type}* const {place} = &{p.element(buffer, outer, k, name)};")
        whole = f"__pipeline_memcpy_async({place}, {source}, {2 * p.width});"
        single = f"{place}[{e}] = {within} ? {source}[{e}] : {_zero(p)};"
    else:
        size = _COPIED[p.operand.element]
        place = f"&{p.element(buffer, outer, k, name)}"
        if p.width == 1:
            inside = f"{far} < {far_end} && {near} < {near_end}"
            body.append(
                f"__pipeline_memcpy_async({place}, {inside} ? {source} : {p.operand.array}, {size}, {inside} ? 0 : {size});"
            )
            return _loop(p, body, name, unit)
        place = place.removesuffix("]")
        whole = f"__pipeline_memcpy_async({place}], {source}, {p.width * size});"
        single = (
            f"__pipeline_memcpy_async({place} + {e}], {within} ? {source} + {e} : {p.operand.array}, {size}, "
            f"{within} ? 0 : {size});"
        )
    body += [
        f"if ({name(p.which + '_aligned')} && {far} < {far_end} && {near} + {p.width} <= {near_end}) {{",
        f"{unit}{whole}",
        "} else {",
        f"{unit}#pragma unroll",
        f"{unit}for (int {e} = 0; {e} < {p.width}; ++{e}) {{",
        f"{unit}{unit}{single}",
        f"{unit}}}",
        "}",
    ]
    return _loop(p, body, name, unit)


def _place(p: TilePart, name: Namer) -> tuple[str, str]:
    """Where the vector `at` of a tile stands: (row or column of the tile, k within the tile)."""
    run = "tile_k" if p.operand.along == "k" else ("tile_m" if p.which == "a" else "tile_n")
    per = name(run) if p.width == 1 else f"({name(run)} / {p.width})"
    times = "" if p.width == 1 else f" * {p.width}"
    across, along = f"{name('at')} / {per}", f"{name('at')} % {per}{times}"
    return (across, along) if p.operand.along == "k" else (along, across)


def _loop(p: TilePart, body: list[str], name: Namer, unit: str) -> list[str]:
    v = name("v")
    return [
        "#pragma unroll",
        f"for (int {v} = 0; {v} < {p.count}; ++{v}) {{",
        f"{unit}const int {name('at')} = {name('tid')} + {v} * {name('thread_count')};",
        *indented(body, unit),
        "}",
    ]


def _ranges(form: matmul_form.Product, p: TilePart, name: Namer) -> tuple[tuple[str, str], tuple[str, str]]:
    """Names of the far and the near index of an element in memory, and their ends."""
    extent = form.rows if p.which == "a" else form.columns
    x, y = name("outer_at"), name("k_at")
    return ((x, y), (extent, form.depth)) if p.operand.along == "k" else ((y, x), (form.depth, extent))


def _source(form: matmul_form.Product, p: TilePart, first_k: str, outer: str, k: str, name: Namer) -> list[str]:
    """Declarations of an element's two indices and of the pointer to it."""
    first = name("first_row" if p.which == "a" else "first_col")
    (far, near), _ = _ranges(form, p, name)
    return [
        f"const int {name('outer_at')} = {first} + {outer};",
        f"const int {name('k_at')} = {first_k} + {k};",
        f"const {p.operand.element}* {name('source')} = "
        f"{base(p)} + static_cast<size_t>({far}) * {grouped_text(p.operand.stride)} + {near};",
    ]


def places(form: matmul_form.Product, p: TilePart, name: Namer, unit: str) -> list[str]:
    """Where the thread's vectors of the first tile are; those beyond the matrix are its last ones, and of no result that is used."""
    outer, k = _place(p, name)
    at, extent = name("outer_at"), form.rows if p.which == "a" else form.columns
    first, stride = name("first_row" if p.which == "a" else "first_col"), grouped_text(p.operand.stride)
    last = f"{grouped_text(extent)} - {1 if p.operand.along == 'k' else p.width}"
    inside = f"{at} < {extent} ? {at} : {last}"
    far, near = (inside, k) if p.operand.along == "k" else (k, f"({inside})")
    body = [
        f"const int {at} = {first} + {outer};",
        f"{name(p.which + '_from')}[{name('v')}] = {base(p)} + static_cast<size_t>({far}) * {stride} + {near};",
    ]
    return [f"const {p.operand.element}* {name(p.which + '_from')}[{p.count}];", *_loop(p, body, name, unit)]


def load_placed(form: matmul_form.Product, p: TilePart, first_k: str, name: Namer, unit: str) -> list[str]:
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


def _vector(p: TilePart, source: str, name: Namer) -> list[str]:
    """The load of one vector."""
    v, held, wide = name("v"), name(p.which + "_next"), name("wide")
    return [
        f"const {p.vector} {wide} = *reinterpret_cast<const {p.vector}*>({source});",
        *(f"{held}[{v} * {p.width} + {i}] = {wide}.{_PARTS[i]};" for i in range(p.width)),
    ]


def _elements(form: matmul_form.Product, p: TilePart, name: Namer, unit: str) -> list[str]:
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


def _zero(p: TilePart) -> str:
    return _ZEROS.get(p.operand.element, f"static_cast<{p.operand.element}>({'0.0f' if p.pairs else '0'})")


def load_tile(form: matmul_form.Product, p: TilePart, first_k: str, name: Namer, unit: str) -> list[str]:
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


def store_tile(p: TilePart, buffer: str, name: Namer, unit: str) -> list[str]:
    outer, k = _place(p, name)
    v, e = name("v"), name("e")
    held = f"{name(p.which + '_next')}[{v}" + ("]" if p.width == 1 else f" * {p.width} + {e}]")
    value = p.operand.conversion.replace("@", held)
    if p.width == 1:
        return _loop(p, [f"{p.element(buffer, outer, k, name)} = {value};"], name, unit)
    along_k = p.operand.along == "k"
    place = p.element(buffer, outer if along_k else f"{outer} + {e}", f"{k} + {e}" if along_k else k, name)
    body = ["#pragma unroll", f"for (int {e} = 0; {e} < {p.width}; ++{e}) {{", f"{unit}{place} = {value};", "}"]
    return _loop(p, body, name, unit)


def indented(lines: list[str], unit: str) -> list[str]:
    """The lines, each with `unit` before it."""
    return [unit + line for line in lines]
