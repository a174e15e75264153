"""A matrix product with one thread per element becomes a tiled one with several results per thread."""

from dataclasses import dataclass, replace
from itertools import combinations
from math import prod

from engine.cuda.syntax import walk
from engine.rewrite import Edit, Families, Family, LaunchConfig, Node, Point, Proposal, Proposals, merge, proposal
from engine.rewrite.site import Namer, Site
from engine.rewrite.wording import ceil_div, reindent
from engine.rules.idioms import fits_bounds, tensor_cores
from engine.rules.matmul import matmul_code, matmul_form, matmul_mask, matmul_tensor, matmul_tiled_form
from engine.rules.matmul.matmul_loads import SIZES, TilePart, Tiling, indented, part

# The first is for large matrices; smaller tiles fill the GPU where there are few results.
_TILINGS = (
    Tiling(128, 128, 16, 8, 8, 2, square=True),
    Tiling(256, 128, 8, 16, 8, 2, square=True),
    Tiling(128, 128, 8, 8, 8, 2, square=True),
    Tiling(128, 128, 16, 8, 8, 2, copies=True, square=True),
    Tiling(128, 128, 16, 8, 8, 2),
    Tiling(128, 256, 8, 8, 16, 2, square=True),
    Tiling(128, 64, 16, 8, 4, 2),
    Tiling(64, 64, 16, 4, 4, 2),
    Tiling(64, 128, 16, 8, 8, 2, square=True),
    Tiling(128, 128, 8, 8, 8, 1),
    Tiling(64, 64, 16, 4, 4, 1),
    Tiling(64, 64, 8, 8, 8, 2),
    Tiling(32, 32, 16, 4, 4, 1),
    Tiling(32, 32, 32, 4, 4, 1),
    Tiling(32, 32, 32, 2, 2, 1),
    Tiling(32, 32, 32, 1, 1, 1),
    Tiling(16, 16, 16, 1, 1, 1),
)
_TENSOR_TILINGS = (
    Tiling(128, 128, 16, 8, 8, 2, copies=True, square=True, tensor=True),
    Tiling(64, 128, 16, 8, 4, 2, copies=True, square=True, tensor=True),
    Tiling(128, 128, 16, 16, 8, 2, copies=True, square=True, tensor=True),
    Tiling(128, 128, 8, 16, 4, 3, copies=True, square=True, tensor=True),
)
_PAIR_TILINGS = (
    Tiling(128, 128, 32, 16, 8, 3, copies=True, square=True, tensor=True),
    Tiling(128, 128, 32, 16, 4, 3, copies=True, square=True, tensor=True),
    Tiling(64, 128, 32, 16, 4, 3, copies=True, square=True, tensor=True),
    Tiling(64, 64, 32, 8, 4, 3, copies=True, square=True, tensor=True),
)
# What a tuner may set: tiles from those of a small product to those that fill a multiprocessor's registers.
_OPEN = {
    "bm": (32, 64, 128, 256), "bn": (32, 64, 128, 256), "bk": (8, 16, 32), "tm": (2, 4, 8, 16), "tn": (2, 4, 8, 16),
    "buffers": (1, 2, 3), "copies": (0, 1), "square": (0, 1),
}  # fmt: skip
_EVEN = (
    "bm % tm == 0 && bn % tn == 0",
    "tm * tn <= 128",  # sums in registers, of 255 that a thread may have
    "(bm / tm) * (bn / tn) >= 64 && (bm / tm) * (bn / tn) % 32 == 0",
    "bm * bk % ((bm / tm) * (bn / tn)) == 0 && bn * bk % ((bm / tm) * (bn / tn)) == 0",
    "copies ? buffers >= 2 : buffers <= 2",
    "square ? bm / tm % 4 == 0 && bn / tn % 8 == 0 : 1",
)
# A warp's sums are of 16 x 8.
_TENSOR = (
    "tensor ? square && tm % 4 == 0 && tm * tn >= 32 : 1",
    "tensor ? buffers * (bk + 4) * max(bm, bn) >= (bm / tm) * (bn / tn) * (2 * tn + 2) : 1",
)
_PAIRS = (
    "tensor ? square && copies && bk == 32 && tm % 4 == 0 && tm * tn >= 32 : 1",
    "tensor ? buffers * bk * max(bm, bn) >= 2 * (bm / tm) * (bn / tn) * (2 * tn + 2) : 1",
)


class MatmulTile:
    """Shared-memory tiles and register blocking for matrix-product-like loop nests."""

    name = "matmul_tile"
    summary = "Tiled matrix product in shared memory, several results per thread"

    def propose(self, site: Site) -> Proposals:
        found = _multiplication(site)
        if found is None:
            return
        tilings = _PAIR_TILINGS if found.pairs else _TENSOR_TILINGS if found.tensor else ()
        for order, tiling in enumerate(tilings):
            yield from _proposals(found, tiling, 0.96 - 0.03 * order)
        for order, tiling in enumerate(_TILINGS):
            yield from _proposals(found, tiling, 0.95 - 0.03 * order)

    def families(self, site: Site) -> Families:
        """All of a tiling's figures left open."""
        found = _multiplication(site)
        if found is None:
            return

        def make(values: Point) -> Proposal | None:
            tiling = Tiling(
                values["bm"], values["bn"], values["bk"], values["tm"], values["tn"], values["buffers"],
                copies=bool(values["copies"]), square=bool(values["square"]), tensor=bool(values.get("tensor")),
            )  # fmt: skip
            return next(_proposals(found, tiling, 0.5), None)

        size = max(SIZES.get(o.type, 4) for o in (found.form.a, found.form.b))
        tensor = found.tensor or found.pairs
        shared = "buffers * bk * (bm + bn + 8) + (tn % 4 == 0 && bn >= 64 ? 4 * (bm / tm) * (bn / tn) : 0)"
        if tensor:
            tiles = "buffers * bk * (bm + bn) / 2" if found.pairs else "buffers * (bk + 4) * (bm + bn)"
            shared = f"tensor ? {tiles} : {shared}"
        yield Family(
            self.name, self.summary, {**_OPEN, "tensor": (0, 1)} if tensor else _OPEN,
            (
                *_EVEN,
                *(_PAIRS if found.pairs else _TENSOR if tensor else ()),
                f"(bm / tm) * (bn / tn) <= {site.target.max_threads_per_block}",
                f"({shared}) * {size} <= {site.target.shared_per_block}",
            ),
            make, 0.95,
        )  # fmt: skip


@dataclass(frozen=True)
class _Multiplication:
    """A product as `site` spells it, the grid's third extent, and where the spelling stands for one with tiles of its own."""

    site: Site
    form: matmul_form.Product
    batches: tuple[str, ...]
    untiled: matmul_tiled_form.Untiled | None

    @property
    def pairs(self) -> bool:
        """Whether tensor cores multiply the factors as they are, of 16 bits, for sums in single precision."""
        a, b = self.form.a.element, self.form.b.element
        return self._summed and a == b and tensor_cores.paired(a, self.site.target.arch)

    @property
    def tensor(self) -> bool:
        """Whether the product is one in single precision, of a size that is worth it, and the target has tensor cores that are."""
        return self._summed and tensor_cores.worthwhile(self.site.target.arch)

    @property
    def _summed(self) -> bool:
        """Whether sums and what is multiplied are in single precision, and a block's tile is not all there is of a product."""
        form = self.form
        return not form.alone and {form.accumulator, form.a.type, form.b.type} == {"float"}


def _multiplication(site: Site) -> _Multiplication | None:
    """The product that the kernel computes, with or without tiles in shared memory; None where it computes none."""
    if not site.launch_visible or any(c.block[2] != 1 for c in site.configs):
        return None
    other = matmul_tiled_form.untiled(site)
    shown = other.site if other is not None else site
    form, batches = matmul_form.product(shown), _batches(shown)
    if form is None or batches is None:
        return None
    return _Multiplication(shown, replace(form, masks=matmul_mask.masks(shown, form)), batches, other)


def _proposals(found: _Multiplication, tiling: Tiling, prior: float) -> Proposals:
    """The proposal of one tiling, if it can be written."""
    site, form, batches = found.site, found.form, found.batches
    if tiling.threads > site.target.max_threads_per_block or not fits_bounds(site, tiling.threads):
        return
    pairs = tiling.tensor and found.pairs
    a, b = part(form.a, "a", tiling, pairs), part(form.b, "b", tiling, pairs)
    if a is None or b is None or _shared_bytes(form, tiling, (a, b)) > site.target.shared_per_block:
        return
    if tiling.tensor and max(a.bytes, b.bytes) * tiling.buffers < matmul_tensor.handed_on(tiling.threads, tiling.tn):
        return
    if form.alone and not _holds(tiling, site.configs_after({}) or ()):
        return
    edits = _rewrite(site, form, tiling, (a, b))
    grid = (ceil_div(form.columns, tiling.bn), ceil_div(form.rows, tiling.bm), *batches) if not form.alone else None
    launch = site.launch_edits(grid=grid, block=(str(tiling.threads),))
    results = f"{tiling.tm}x{tiling.tn} results per thread"
    if tiling.tensor:
        how = "" if pairs else " (three products in TF32)"
        results = f"{4 * tiling.tm}x{8 * tiling.tn} results per warp on tensor cores{how}"
    staged = ", next tiles prefetched" if tiling.buffers > 1 else ""
    staged = ", copied asynchronously" if tiling.copies else staged
    staged += ", none where a mask empties the tile" if form.masks else ""
    merged = merge(site.in_file(*edits), launch)
    if merged is not None and found.untiled is not None:
        merged = found.untiled.back(merged)
    yield from proposal(
        MatmulTile.name,
        f"Tiled matrix product in shared memory: {tiling.bm}x{tiling.bn}x{tiling.bk} tiles, {results}{staged}",
        merged,
        prior,
        bm=tiling.bm,
        bn=tiling.bn,
        bk=tiling.bk,
        tm=tiling.tm,
        tn=tiling.tn,
        buffers=tiling.buffers,
        copies=int(tiling.copies),
        square=int(tiling.square),
        tensor=int(tiling.tensor),
    )


def _holds(tiling: Tiling, before: tuple[LaunchConfig, ...]) -> bool:
    """Whether one tile holds what a block of the launches computes, and is not twice as large as the largest."""
    largest = [max((c.block[k] for c in before), default=0) for k in (0, 1)]
    return all(n <= tile < 2 * n for n, tile in zip(largest, (tiling.bn, tiling.bm), strict=True))


def _batches(site: Site) -> tuple[str, ...] | None:
    """The grid's third extent over the kernel's parameters, () where it is 1; None where it cannot be told."""
    before = site.configs_after({})
    if before is None:
        return None
    wanted = [c.grid[2] for c in before]
    if set(wanted) == {1}:
        return ()
    values = [site.scalar_values(case) for case in site.cases]
    known = [p.name for p in site.kernel.parameters if all(isinstance(v.get(p.name), int) for v in values)]
    single = [(name,) for name in known]
    for names in (*single, *combinations(known, 2)):
        if [prod(int(v[n]) for n in names) for v in values] == wanted:
            return (" * ".join(names),)
    return None


def _shared_bytes(form: matmul_form.Product, tiling: Tiling, parts: tuple[TilePart, TilePart]) -> int:
    tiles = sum(tiling.buffers * p.bytes for p in parts)
    return tiles + tiling.threads * tiling.exchanged * SIZES.get(form.accumulator, 4)


def _rewrite(site: Site, form: matmul_form.Product, tiling: Tiling, parts: tuple[TilePart, TilePart]) -> list[Edit]:
    """The kernel's new body: tiles first, then the author's statements once for each result."""
    body = site.body
    outer = site.indent_at(site.kernel.span.start)
    unit = site.indent_unit
    indent = outer + unit
    name = site.fresh_names()
    blocks = [reindent(_verbatim(site, d), site.indent_at(d.start_byte), indent) for d in form.map.invariant]
    blocks.append(reindent(matmul_code.tile_body(form, tiling, parts, name, unit), "", indent))
    kept = _kept(form, body)
    store = (
        matmul_code.vector_store(site, form, kept)
        if form.alone and not tiling.exchanged and tiling.tn % matmul_code.WIDTH == 0
        else None
    )
    used = _used(_Using(site, form, tiling, parts[0].pairs, kept, name), store)
    blocks.append(reindent(used, "", indent))
    edits = [Edit.replace(body, "{\n" + "\n".join(blocks) + f"\n{outer}}}")]
    header = "cuda_pipeline.h" if tiling.copies else None
    if tiling.tensor:
        written = tensor_cores.pair_functions(form.a.element, name) if parts[0].pairs else tensor_cores.functions(name)
        edits += site.define(written, header)
    else:
        edits += site.include(header)
    bounds = _bounds(site, tiling, parts)
    return [bounds, *edits] if bounds is not None else edits


@dataclass(frozen=True)
class _Using:
    """The author's statements that run once for each result, and what they are written with."""

    site: Site
    form: matmul_form.Product
    tiling: Tiling
    pairs: bool
    kept: list[Node]
    name: Namer

    def statements(self, value: str | None, *changes: tuple[int, int, str]) -> list[str]:
        """The statements for the result `value`, without indentation of their own; with the author's loop where it is None."""
        lines: list[str] = []
        added = f"{self.form.target} {self.form.sign}= {value};" if value is not None else None
        for statement in self.kept:
            own = self.site.indent_at(statement.start_byte)
            inside = [c for c in changes if statement.start_byte <= c[0] and c[1] <= statement.end_byte]
            made = [*_changes(self.form, statement, added), *inside]
            lines += reindent(own + self.site.render(statement.start_byte, statement.end_byte, made), own, "").split(
                "\n"
            )
        return lines


def _used(using: _Using, store: matmul_code.VectorStore | None) -> str:
    """The loops in which the results are used."""
    form, name, unit = using.form, using.name, using.site.indent_unit
    one = matmul_code.result(using.tiling, name, unit, matmul_code.WIDTH if store is not None else 1)
    if using.tiling.tensor:
        return _used_on_tensor_cores(using, one)
    row = f"{form.row.type} {form.row.name} = {name('first_row')} + {one.row};"
    within = f"{form.row.name} < {form.rows} && {form.column.name} < {form.columns}"
    if store is None:
        # Handed on, the result is loaded before the author's conditions, so that these need no branch.
        handed, value = using.tiling.exchanged, name("result")
        body = using.statements(value if handed else one.value)
        if form.alone:
            body = [f"if ({within}) {{", *indented(body, unit), "}"]
        taken = [f"const {form.accumulator} {value} = {one.value};"] if handed else []
        body = [row, f"{form.column.type} {form.column.name} = {name('first_col')} + {one.column};", *taken, *body]
    else:
        first, e, held = name("col_at"), name("e"), name("kept")
        column = f"{form.column.type} {form.column.name} = {first} + {e};"
        loop = ["#pragma unroll", f"for (int {e} = 0; {e} < {matmul_code.WIDTH}; ++{e}) {{"]
        vector = using.statements(one.value, store.kept(f"{held}[{e}]"))
        place = store.place(using.site, form.column.name, first)
        values = ", ".join(f"{held}[{k}]" for k in range(matmul_code.WIDTH))
        scalar = [f"if ({within}) {{", *indented(using.statements(one.value), unit), "}"]
        aligned = name("stores_aligned")
        body = [
            row,
            f"const int {first} = {name('first_col')} + {one.column};",
            f"if ({aligned} && {form.row.name} < {form.rows} && {first} + {matmul_code.WIDTH} <= {form.columns}) {{",
            f"{unit}{store.type} {held}[{matmul_code.WIDTH}];",
            *indented([*loop, *indented([column, *vector], unit), "}"], unit),
            f"{unit}*{place} = make_{store.vector}({values});",
            "} else {",
            *indented([*loop, *indented([column, *scalar], unit), "}"], unit),
            "}",
        ]
    closing = [f"{unit * level}}}" for level in reversed(range(one.depth))]
    before = [f"const bool {name('stores_aligned')} = {store.aligned};"] if store is not None else []
    return "\n".join([*before, *one.opening, *indented(body, unit * one.depth), *closing])


def _used_on_tensor_cores(using: _Using, one: matmul_code.Result) -> str:
    """The loops in which a warp's results are used, or computed by the author's loop.

    That computes them where one is infinite or no number and factors are in single precision: a part of a factor may overflow where
    the factor does not, and the other part of an infinite factor is no number.
    """
    form, name, unit = using.form, using.name, using.site.indent_unit

    def places(row: str, column: str) -> list[str]:
        return [
            f"{form.row.type} {form.row.name} = {name('first_row')} + {row};",
            f"{form.column.type} {form.column.name} = {name('first_col')} + {column};",
        ]

    at, per = name("at"), name("warp_n")
    taken = f"const {form.accumulator} {name('result')} = {one.value};"
    fast = [*places(one.row, one.column), taken, *using.statements(name("result"))]
    loops = [*one.opening, *indented(fast, unit * one.depth), *(f"{unit * n}}}" for n in reversed(range(one.depth)))]
    if using.pairs:
        return "\n".join(loops)
    slow = [
        *places(f"{name('warp_row')} + {at} / {per}", f"{name('warp_col')} + {at} % {per}"),
        *using.statements(None),
    ]
    return "\n".join([
        *matmul_tensor.finite(name, unit),
        f"if (__all_sync(0xffffffffu, {name('finite')})) {{",
        *indented(loops, unit),
        "} else {  // parts of factors overflow where factors do not",
        f"{unit}for (int {at} = {name('tid')} % 32; {at} < {name('warp_m')} * {per}; {at} += 32) {{",
        *indented(slow, unit * 2),
        f"{unit}}}",
        "}",
    ])  # fmt: skip


def _verbatim(site: Site, node: Node) -> str:
    return site.indent_at(node.start_byte) + site.render(node.start_byte, node.end_byte)


def _kept(form: matmul_form.Product, body: Node) -> list[Node]:
    """The author's statements and comments that run once per result: all but the declarations written anew."""
    moved = [*(i.declaration for i in form.map.indices), *form.map.invariant]
    kept: list[Node] = []
    for node in body.named_children:
        if node in moved:
            while kept and kept[-1].type == "comment":  # it spoke of the declaration
                kept.pop()
        else:
            kept.append(node)
    # The pragma of the loop that goes away, where the loop stands in the body itself.
    drop = form.loop.node.prev_named_sibling
    return [n for n in kept if drop is None or n != drop or n.type != "preproc_call"]


def _changes(form: matmul_form.Product, statement: Node, added: str | None) -> list[tuple[int, int, str]]:
    loop = form.loop.node
    changes = []
    if added is not None and statement.start_byte <= loop.start_byte and loop.end_byte <= statement.end_byte:
        before = loop.prev_named_sibling
        start = loop.start_byte
        if before is not None and before.type == "preproc_call" and before.start_byte >= statement.start_byte:
            start = before.start_byte
        changes.append((start, loop.end_byte, added))
    if form.map.style == "return" and statement in form.map.guards:
        changes += [(n.start_byte, n.end_byte, "continue;") for n in walk(statement) if n.type == "return_statement"]
    return changes


def _bounds(site: Site, tiling: Tiling, parts: tuple[TilePart, TilePart]) -> Edit | None:
    """`__launch_bounds__`: the block's size, so that the compiler knows how many registers a thread may use.

    With 8 x 8 sums 128 registers are enough, and two blocks on a multiprocessor hide more than one of 147 registers. Of blocks of 128
    threads three fit with 168 registers; four would spill. A product of its own for each small block is bound by memory: left alone, the
    compiler loads so far ahead that few blocks fit. Elements of 16 bits that are put together in pairs take more than there are for two.
    """
    if site.kernel.limits_registers:
        return None
    resident = {(64, 256): 2, (64, 128): 3, (16, 64): 16 if tiling.bk <= 16 else 12}
    if tiling.tensor:
        resident |= {(128, 128): 2, (32, 256): 2, (32, 128): 4}
    apart = any(p.pairs and not p.flat for p in parts)
    found = resident.get((tiling.tm * tiling.tn, tiling.threads)) if not apart else None
    blocks = f", {found}" if found else ""
    node = next((n for n in walk(site.kernel.node) if n.type == "function_declarator"), None)
    bounds = f"__launch_bounds__({tiling.threads}{blocks}) "
    return Edit.insert(node.start_byte, bounds) if node else None
