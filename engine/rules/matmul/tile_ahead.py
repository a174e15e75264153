"""The next tile is loaded while the present one is used: two buffers in shared memory, filled by asynchronous copies
or through registers.

Source: CUDA C++ Programming Guide, "Asynchronous Data Copies" and "Pipeline Primitives"; Best Practices Guide,
"Asynchronous Copy from Global Memory to Shared Memory".
"""

from dataclasses import dataclass
from math import prod

from engine.cuda.questions import ArithmeticError_, assigned, declarators, evaluate_int, pure_value
from engine.cuda.syntax import children, inside, names, root_name, text, walk
from engine.rewrite import Edit, Node, Proposals, Scope, SharedArray, Site, Span, grouped_text, proposal, reindent
from engine.rules.idioms import StrideLoop, element_size, stride_loop

_COPIED = (4, 8, 16)  # bytes that an asynchronous copy can move
_ZEROS = frozenset({"0", "0.0", "0.", "0.0f", "0.f", "0u", "{}"})


@dataclass(frozen=True)
class _Store:
    """`tile[…] = value;` while the tile is filled. `read` is the element of global memory, `condition` when it is read.

    Without `read` the value is a constant.
    """

    node: Node
    target: Node
    value: Node
    read: Node | None
    condition: str


@dataclass(frozen=True)
class _Tiles:
    """A loop that fills tiles, waits, uses them, and waits."""

    loop: StrideLoop
    load: tuple[Node, ...]
    use: tuple[Node, ...]
    tiles: tuple[SharedArray, ...]
    stores: tuple[_Store, ...]


class TileAhead:
    """Double-buffered shared-memory tiles."""

    name = "tile_ahead"
    summary = "Prefetch the next tile"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.manageable or not site.kernel.shared:
            return
        scope = site.scope
        for node in walk(site.body):
            found = _tiles(site, scope, node) if node.type == "for_statement" else None
            if found is None or _bytes(site, 2, found.tiles) > site.target.shared_per_block:
                continue
            line = site.unit.line_of(node.start_byte)
            if all(_copyable(site, scope, s) for s in found.stores) and any(s.read for s in found.stores):
                edits = site.in_file(*site.include("cuda_pipeline.h"), *_asynchronous(site, found))
                summary = "Prefetch the next tiles into shared memory with asynchronous copies"
                yield from proposal(self.name, summary, edits, 0.5, form="async", line=line)
            if all(s.node in found.load for s in found.stores):
                edits = site.in_file(*_through_registers(site, found))
                summary = "Prefetch the next tiles into registers"
                yield from proposal(self.name, summary, edits, 0.45, form="registers", line=line)


def _tiles(site: Site, scope: Scope, node: Node) -> _Tiles | None:
    loop = stride_loop(node)
    if loop is None or loop.body.type != "compound_statement" or node.parent is None:
        return None
    statements = children(loop.body)
    barriers = [k for k, s in enumerate(statements) if _is_barrier(s)]
    if len(barriers) != 2 or barriers[1] != len(statements) - 1 or barriers[0] == 0 or barriers[1] == barriers[0] + 1:
        return None
    load, use = statements[: barriers[0]], statements[barriers[0] + 1 : -1]
    if any(_is_barrier(n) for s in (*load, *use) for n in walk(s)):
        return None
    if any(n.type in ("break_statement", "continue_statement", "return_statement", "goto_statement")
           and not _within_inner(n, loop.node) for s in statements for n in walk(s)):  # fmt: skip
        return None
    arrays = {s.name: s for s in site.kernel.shared if s.extents and not s.dynamic}
    stores: list[_Store] = []
    for node_ in (n for s in load for n in walk(s)):
        target = assigned(node_)
        if target is None or _declared_in(scope, target, loop.body):
            continue
        store = _store(node_, target) if root_name(target) in arrays else None
        if store is None:
            return None
        stores.append(store)
    filled = {root_name(s.target) for s in stores}
    tiles = tuple(arrays[name] for name in sorted(filled))
    if not tiles or not _only_here(site, loop, filled, stores):
        return None
    needed = {w for s in load for w in names(s)}
    declared = {name for s in load for d in walk(s) if d.type == "declaration" for name, _ in declarators(d)}
    for node_ in (n for s in use for n in walk(s)):
        target = assigned(node_)
        if node_.type == "identifier" and text(node_) in declared:
            return None
        if target is None or _declared_in(scope, target, loop.body):
            continue
        # What the present tile is used for must not change what the next one is loaded from.
        variable = scope.lookup(root_name(target), target)
        if variable is None or variable.shape not in ("scalar", "array") or root_name(target) in {*arrays, *needed}:
            return None
    return _Tiles(loop, tuple(load), tuple(use), tiles, tuple(stores))


def _is_barrier(node: Node) -> bool:
    return node.type == "expression_statement" and text(node).replace(" ", "") == "__syncthreads();"


def _within_inner(node: Node, loop: Node) -> bool:
    """Whether a jump stays within a loop inside this one."""
    if node.type in ("return_statement", "goto_statement"):
        return False
    above = node.parent
    while above is not None and above != loop:
        if above.type in ("for_statement", "while_statement", "do_statement"):
            return True
        above = above.parent
    return False


def _declared_in(scope: Scope, target: Node, body: Node) -> bool:
    variable = scope.lookup(root_name(target), target)
    return variable is not None and inside(variable.node, body) and variable.shape in ("scalar", "array")


def _store(node: Node, target: Node) -> _Store | None:
    statement, value = node.parent, node.child_by_field_name("right")
    sign = node.child_by_field_name("operator")
    if statement is None or statement.type != "expression_statement" or value is None or sign is None:
        return None
    if text(sign) != "=" or target.type != "subscript_expression" or not pure_value(value):
        return None
    read, condition = _bare(value), ""
    if read.type == "conditional_expression":
        parts = [read.child_by_field_name(f) for f in ("condition", "consequence", "alternative")]
        when, then, other = (_bare(p) for p in parts if p is not None)
        if text(other) in _ZEROS:
            read, condition = then, text(when)
        elif text(then) in _ZEROS:
            read, condition = other, f"!({text(when)})"
    return _Store(statement, target, value, read if read.type == "subscript_expression" else None, condition)


def _bare(node: Node) -> Node:
    while node.type == "parenthesized_expression" and len(children(node)) == 1:
        node = children(node)[0]
    return node


def _only_here(site: Site, loop: StrideLoop, filled: set[str], stores: list[_Store]) -> bool:
    """Whether the tiles are used as `tile[…]` in this loop alone, and only written to while they are filled."""
    targets = {n.start_byte for s in stores for n in walk(s.target)}
    first_use = max(s.node.end_byte for s in stores)
    for node in walk(site.body):
        if node.type != "identifier" or text(node) not in filled:
            continue
        above = node.parent
        if above is not None and above.type == "array_declarator":
            continue
        if not inside(node, loop.body) or above is None or above.type != "subscript_expression":
            return False
        if node.start_byte < first_use and node.start_byte not in targets:
            return False
    return True


def _bytes(site: Site, buffers: int, tiles: tuple[SharedArray, ...]) -> int:
    """Shared memory of the kernel when the tiles have so many buffers; more than any limit where it is not known."""
    total = 0
    for array in site.kernel.shared:
        known = {**site.unit.constants, **site.unit.macros}
        try:
            sizes = {n: evaluate_int(v, {}) for n, v in known.items() if v.strip().isdigit()}
            count = prod(evaluate_int(e, sizes) for e in array.extents)
        except ArithmeticError_:
            return 1 << 30
        total += count * (element_size(site, array.type) or 8) * (buffers if array in tiles else 1)
    return total


def _copyable(site: Site, scope: Scope, store: _Store) -> bool:
    """Whether the store can be an asynchronous copy, or stores a constant."""
    if store.read is None:
        return text(_bare(store.value)) in _ZEROS
    origin = scope.element(store.read)
    parameter = scope.parameters.get(origin[0]) if origin is not None else None
    tile = next(s for s in site.kernel.shared if s.name == root_name(store.target))
    if parameter is None or parameter.base != tile.type or "volatile" in parameter.type:
        return False
    # Not where the read is a conversion to another type by a cast pointer: its alignment is not known.
    return (element_size(site, tile.type) or 0) in _COPIED and "reinterpret_cast" not in text(store.read)


class _TileWriter:
    """Texts of one loop: its statements for one buffer, the names that are free."""

    def __init__(self, site: Site, found: _Tiles) -> None:
        self.site, self.found = site, found
        self.taken: list[str] = []
        self.outer = site.indent_at(found.loop.node.start_byte)
        self.unit = site.indent_unit
        self.filled = {t.name for t in found.tiles}

    def name(self, base: str) -> str:
        self.taken.append(self.site.fresh(base, self.taken))
        return self.taken[-1]

    def statements(self, parts: tuple[Node, ...], buffer: str, depth: int, own: dict[int, str] | None = None) -> str:
        """The statements for one buffer, indented; `own` gives texts for some of the stores by their place."""
        own = own or {}
        changes = [(s.node.start_byte, s.node.end_byte, own[s.node.start_byte]) for s in self.found.stores
                   if s.node.start_byte in own and parts[0].start_byte <= s.node.start_byte < parts[-1].end_byte]  # fmt: skip
        covered = [(a, b) for a, b, _ in changes]
        for node in (n for p in parts for n in walk(p)):
            tile = node.type == "identifier" and text(node) in self.filled
            if tile and not any(a <= node.start_byte < b for a, b in covered):
                changes.append((node.end_byte, node.end_byte, f"[{buffer}]"))
        start, end = parts[0].start_byte, parts[-1].end_byte
        indent = self.site.indent_at(start)
        return reindent(indent + self.site.render(start, end, changes), indent, self.outer + self.unit * depth)

    def target(self, store: _Store, buffer: str) -> str:
        inner = next(n for n in walk(store.target) if n.type == "identifier")
        change = (inner.end_byte, inner.end_byte, f"[{buffer}]")
        return self.site.render(store.target.start_byte, store.target.end_byte, [change])

    def declarations(self) -> list[Edit]:
        """`[2]` after the names of the tiles where they are declared."""
        edits = []
        for node in walk(self.site.body):
            named = node.type == "identifier" and text(node) in self.filled
            if named and node.parent is not None and node.parent.type == "array_declarator":
                edits.append(Edit.insert(node.end_byte, "[2]"))
        return edits

    def replaced(self, lines: list[str]) -> Edit:
        node = self.found.loop.node
        before, start = node.prev_sibling, node.start_byte
        if before is not None and before.type == "preproc_call":  # an unroll pragma would stand before other text
            start = before.start_byte
        return Edit(Span(start, node.end_byte), "\n".join(lines).strip())


def _asynchronous(site: Site, found: _Tiles) -> list[Edit]:
    w, loop = _TileWriter(site, found), found.loop
    stage, ahead, o, u = w.name("stage"), w.name("ahead"), w.outer, w.unit

    def load(buffer: str, depth: int) -> str:
        own = {}
        for store in found.stores:
            if store.read is None:
                continue
            read = f"&{text(store.read)}"
            size = f"sizeof({w.target(store, buffer)})"
            copy = f"__pipeline_memcpy_async(&{w.target(store, buffer)}, {read}, {size});"
            if store.condition:
                copy = f"if ({store.condition}) {{ {copy} }} else {{ {w.target(store, buffer)} = 0; }}"
            own[store.node.start_byte] = copy
        return w.statements(found.load, buffer, depth, own)

    start, bound, kind, v = text(loop.start), text(loop.bound), loop.type, loop.variable
    return [
        *w.declarations(),
        w.replaced([
            f"{o}int {stage} = 0;",
            f"{o}if ({grouped_text(start)} < {bound}) {{",
            f"{o}{u}const {kind} {v} = {start};",
            load(stage, 1),
            f"{o}}}",
            f"{o}__pipeline_commit();",
            f"{o}for ({kind} {v} = {start}; {v} < {bound}; {v} += {loop.step}) {{",
            f"{o}{u}const {kind} {ahead} = {v} + {grouped_text(loop.step)};",
            f"{o}{u}if ({ahead} < {bound}) {{",
            f"{o}{u}{u}const {kind} {v} = {ahead};",
            load(f"1 - {stage}", 2),
            f"{o}{u}}}",
            f"{o}{u}__pipeline_commit();",
            f"{o}{u}__pipeline_wait_prior(1);",
            f"{o}{u}__syncthreads();",
            w.statements(found.use, stage, 1),
            f"{o}{u}__syncthreads();",
            f"{o}{u}{stage} = 1 - {stage};",
            f"{o}}}",
        ]),
    ]  # fmt: skip


def _through_registers(site: Site, found: _Tiles) -> list[Edit]:
    w, loop = _TileWriter(site, found), found.loop
    stage, ahead, o, u = w.name("stage"), w.name("ahead"), w.outer, w.unit
    kinds = {t.name: t.type for t in found.tiles}
    held = [w.name("next") for _ in found.stores]
    taken = {s.node.start_byte: f"{h} = {text(s.value)};" for s, h in zip(found.stores, held, strict=True)}
    given = {
        s.node.start_byte: f"{w.target(s, f'1 - {stage}')} = {h};" for s, h in zip(found.stores, held, strict=True)
    }
    start, bound, kind, v = text(loop.start), text(loop.bound), loop.type, loop.variable
    return [
        *w.declarations(),
        w.replaced([
            f"{o}int {stage} = 0;",
            f"{o}if ({grouped_text(start)} < {bound}) {{",
            f"{o}{u}const {kind} {v} = {start};",
            w.statements(found.load, stage, 1),
            f"{o}}}",
            f"{o}__syncthreads();",
            f"{o}for ({kind} {v} = {start}; {v} < {bound}; {v} += {loop.step}) {{",
            *(f"{o}{u}{kinds[root_name(s.target)]} {h};" for s, h in zip(found.stores, held, strict=True)),
            f"{o}{u}const {kind} {ahead} = {v} + {grouped_text(loop.step)};",
            f"{o}{u}if ({ahead} < {bound}) {{",
            f"{o}{u}{u}const {kind} {v} = {ahead};",
            w.statements(found.load, stage, 2, taken),
            f"{o}{u}}}",
            w.statements(found.use, stage, 1),
            f"{o}{u}if ({ahead} < {bound}) {{",
            f"{o}{u}{u}const {kind} {v} = {ahead};",
            w.statements(found.load, stage, 2, given),
            f"{o}{u}}}",
            f"{o}{u}__syncthreads();",
            f"{o}{u}{stage} = 1 - {stage};",
            f"{o}}}",
        ]),
    ]  # fmt: skip
