"""A matrix product over tiles in shared memory, told as the plain loop over the depth that it computes.

    for each tile: a_tile[y][x] = a[row][first + x]; b_tile[y][x] = b[first + y][col]; wait;
                   sum += a_tile[y][i] * b_tile[i][x] for each i; wait

is `sum += a[row][k] * b[k][col]` for each k: what a thread reads from a tile is what another thread staged there, so its
place in the array follows from the index with that thread's numbers put in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.rules.common import (
    THREAD_NAMES,
    all_cases,
    body_node,
    children,
    configs_of,
    fresh,
    in_file,
    indent_at,
    indent_unit,
    is_integer_type,
    pure,
    reindent,
    render,
    root_name,
    scalar_values,
    sound,
    span,
    strip,
    text,
    value_in,
    walk,
)
from engine.rules.matmul_staging import (
    THREAD_X,
    THREAD_Y,
    Frame,
    Tile,
    holds_block,
    limits,
    plain,
    solved,
    staged,
    tile_place,
)
from engine.rules.model import Site
from engine.rules.polynomial import Polynomial, atom, number
from engine.rules.scope import Declared, Scope, assigned, inside, manageable
from engine.rules.threads import StrideLoop, stride_loop
from engine.source.edit import edit_program
from engine.source.model import Edit, Span

if TYPE_CHECKING:
    from tree_sitter import Node

_WORDS = re.compile(r"[A-Za-z_]\w*")
_COMPARED = ("<", ">", "<=", ">=", "==", "!=")


@dataclass(frozen=True)
class Untiled:
    """The kernel without its tiles: a site of its own, and the way of its edits back to the program as it is."""

    site: Site
    there: Span  # of the body in the site's file
    here: Span  # of the body in the program's

    def back(self, edits: Mapping[str, tuple[Edit, ...]]) -> dict[str, tuple[Edit, ...]] | None:
        """Edits of the plain kernel that replace its whole body, for the program as it is; None for others."""
        moved: dict[str, tuple[Edit, ...]] = dict(edits)
        own = []
        for edit in edits.get(self.site.program.kernel_file, ()):
            shift = self.here.end - self.there.end
            if edit.span == self.there:
                own.append(Edit(self.here, edit.text))
            elif edit.span.end <= self.there.start:
                own.append(edit)
            elif edit.span.start >= self.there.end:
                own.append(Edit(Span(edit.span.start + shift, edit.span.end + shift), edit.text))
            else:
                return None
        if all(edit.span != self.here for edit in own):
            return None
        moved[self.site.program.kernel_file] = tuple(own)
        return moved


def untiled(site: Site) -> Untiled | None:
    """The kernel with the plain loop in place of its tiles; None where it is no product over tiles that are proven so."""
    if not sound(site) or not manageable(site) or len(site.kernel.shared) != 2:
        return None
    written_body = _Reader(site).body() if _square(site) else None
    if written_body is None:
        return None
    from engine.rules import make_site

    here = body_node(site)
    edits = in_file(site, Edit(Span(here.start_byte, here.end_byte), written_body))
    plain_site = make_site(edit_program(site.program, edits), site.spec, site.step, site.target)
    there = body_node(plain_site)
    return Untiled(plain_site, span(there), span(here))


def _square(site: Site) -> int:
    """The extent of the square blocks that every case is launched with; 0 where they are none."""
    before = configs_of(site, {})
    sizes = {c.block for c in before} if before else set()
    x, y, z = next(iter(sizes)) if len(sizes) == 1 else (0, 0, 0)
    values = any("typename" not in p and "class" not in p for p in site.kernel.template_parameters)
    instances = {"".join(launch.template_args.split()) for launch in site.launches}
    return x if x == y > 1 and z == 1 and not (values and len(instances) > 1) else 0


@dataclass(frozen=True)
class _Epilogue:
    """What follows the loop: where its guard (if any) stands, and the statements under it."""

    condition: Node | None
    returns: bool
    guard: Node | None
    within: Node  # the block that holds the statements
    after: Node  # they stand behind it


class _Reader:
    """Reads one kernel; `body` gives the plain kernel's."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.root = body_node(site)
        self.scope = Scope(site)
        self.extent = _square(site)
        before = configs_of(site, {}) or ()
        self.grids = [(c.grid[0], c.grid[1]) for c in before]
        self.frame = Frame(site, self.scope, self.extent, "", "")
        self.dependent = self._dependent()
        self.named: dict[str, Declared] = {}  # the author's declarations of row and column
        self.frame.down = self._global("y", "row")
        self.frame.across = self._global("x", "col")

    def body(self) -> str | None:
        """The plain kernel's body as text; None where the kernel is no product over tiles."""
        scope = self.scope
        taken = set(scope.parameters) | set(self.site.unit.macros) | set(self.site.unit.constants)
        if any(len(same) != 1 for same in scope.declared.values()) or taken & scope.declared.keys():
            return None
        statements = children(self.root)
        loops = [s for s in statements if s.type == "for_statement"]
        loop = stride_loop(loops[0]) if len(loops) == 1 else None
        tiles = self._tiles()
        if loop is None or tiles is None:
            return None
        at = statements.index(loop.node)
        before = [s for s in statements[:at] if not s.type.startswith("preproc")]
        if not all(s.type == "declaration" and ("__shared__" in text(s) or pure(s)) for s in before):
            return None
        after = self._epilogue(loop.node, statements[at + 1 :])
        if after is None:
            return None
        bounds = self._bounds(after)
        line = self._loop(loop, tiles, bounds)
        if line is None:
            return None
        down, across = bounds.get(self.frame.down), bounds.get(self.frame.across)
        if down is None or across is None or not (self._covered(down, 1) and self._covered(across, 0)):
            return None
        return self._written(before, line, after, down.render(), across.render())

    # Names and numbers of the thread.

    def _dependent(self) -> set[str]:
        """Locals that differ between threads by their declaration."""
        found: set[str] = set()
        size = -1
        while size != len(found):
            size = len(found)
            for name, same in self.scope.declared.items():
                if any(
                    d.value is not None and set(_WORDS.findall(text(d.value))) & (THREAD_NAMES | found) for d in same
                ):
                    found.add(name)
        return found

    def _global(self, axis: str, base: str) -> str:
        """The author's name of the thread's number in the whole grid along an axis, or a free one."""
        wanted = number(self.extent).times(atom(f"blockIdx.{axis}")).plus(atom(f"threadIdx.{axis}"))
        for name in self.scope.declared:
            declared = self.scope.declared[name][0]
            if name not in self.dependent or declared.shape != "scalar" or declared.value is None:
                continue
            if declared.scope != self.root or self.scope.changed(declared) or not self._integer(declared):
                continue
            if self.frame.value(declared.value) == wanted:
                self.named[name] = declared
                return name
        return fresh(self.site, base)

    @staticmethod
    def _integer(declared: Declared) -> bool:
        return is_integer_type(declared.type.replace("const ", ""))

    # The loop over the tiles.

    def _tiles(self) -> dict[str, Tile] | None:
        found = {}
        for array in self.site.kernel.shared:
            extents: list[int] = []
            declared = self.scope.declared.get(array.name, [])
            if array.dynamic or len(declared) != 1 or "volatile" in declared[0].type:
                return None
            for node in walk(declared[0].node):
                size = node.child_by_field_name("size") if node.type == "array_declarator" else None
                if size is None or root_array(node) != array.name:
                    continue
                value = self.frame.value(size)
                if value is None or value.constant is None:
                    return None
                extents.insert(0, value.constant)
            tile = Tile(array.name, array.type, tuple(extents))
            if not holds_block(tile, self.extent):
                return None
            found[array.name] = tile
        return found if len(found) == 2 else None

    def _loop(self, loop: StrideLoop, tiles: dict[str, Tile], bounds: Mapping[str, Polynomial]) -> str | None:
        """The plain loop over the depth."""
        statements = [s for s in children(loop.body) if not s.type.startswith("preproc")]
        barriers = [k for k, s in enumerate(statements) if _is_barrier(s)]
        if len(barriers) != 2 or barriers[1] != len(statements) - 1 or barriers[1] != barriers[0] + 2:
            return None
        inner = stride_loop(statements[barriers[0] + 1])
        first = [s for s in statements[: barriers[0]] if s.type != "declaration"]
        declared = [s for s in statements[: barriers[0]] if s.type == "declaration"]
        if inner is None or not all("__shared__" in text(s) or pure(s) for s in declared):
            return None
        frame = self.frame
        stages = staged(frame, tiles, first)
        start, last = frame.value(inner.start), frame.value(inner.bound)
        if stages is None or len(stages) != 2 or start != number(0) or last != number(self.extent):
            return None
        counted = self._counted(loop)
        if inner.step != "1" or counted is None:
            return None
        offset, depths = counted
        changes, ends = [], []
        for read in self._reads(inner, tiles):
            one = stages[root_name(read)]
            place = tile_place(frame, one.tile, read)
            at = solved(one, place) if place is not None else None
            if place is None or at is None or not self._within(place, inner.variable):
                return None
            numbers = {**at, inner.variable: atom(inner.variable).plus(offset, -1)}
            index = self._at(one.index, numbers, loop.variable)
            if index is None:
                return None
            end: Polynomial | None = None
            for what, bound in one.guards:
                told, limit = (self._at(v, numbers, loop.variable) for v in (what, bound))
                if told == atom(inner.variable) and limit is not None and end in (None, limit):
                    end = limit
                elif told is None or limit is None or told.render() not in bounds or bounds[told.render()] != limit:
                    return None
            ends.append(end)
            changes.append((read.start_byte, read.end_byte, plain(self.site, one, index)))
        depth = self._depth(depths, ends)
        if depth is None or not self._told(tiles, stages_targets(first, tiles), changes, inner):
            return None
        shown = render(self.site, inner.body.start_byte, inner.body.end_byte, changes)
        i = inner.variable
        own = indent_at(self.site, inner.node.start_byte)
        return reindent(f"{own}for ({inner.type} {i} = 0; {i} < {depth.render()}; ++{i}) {shown}", own, "")

    def _at(self, value: Polynomial, numbers: Mapping[str, Polynomial], variable: str) -> Polynomial | None:
        found = self.frame.index_of(value, numbers)
        return found if found is not None and variable not in found.names() else None

    def _within(self, place: Sequence[Polynomial], variable: str) -> bool:
        """Whether what is read lies in the tile: a thread's own number along one side, the inner loop's along the other."""
        sides = [p for p in place if p in (atom(THREAD_X), atom(THREAD_Y))]
        return len(sides) == 1 and atom(variable) in place

    def _reads(self, inner: StrideLoop, tiles: Mapping[str, Tile]) -> list[Node]:
        found = []
        for node in walk(inner.body):
            outermost = node.parent is None or node.parent.type != "subscript_expression"
            if node.type == "subscript_expression" and outermost and root_name(node) in tiles:
                found.append(node)
        return found

    def _told(
        self,
        tiles: Mapping[str, Tile],
        stores: Sequence[Node],
        changes: Sequence[tuple[int, int, str]],
        inner: StrideLoop,
    ) -> bool:
        """Whether the tiles are used in no other way, and the inner loop's variable for nothing but their places."""
        known = [(s.start_byte, s.end_byte) for s in stores] + [(a, b) for a, b, _ in changes]
        for node in walk(self.root):
            if node.type != "identifier":
                continue
            apart = not any(a <= node.start_byte < b for a, b in known)
            if text(node) in tiles and apart and root_array(node.parent) != text(node):
                return False
            if text(node) == inner.variable and inside(node, inner.body) and apart:
                return False
        return len(changes) == 2

    def _counted(self, loop: StrideLoop) -> tuple[Polynomial, list[Polynomial]] | None:
        """Where a tile starts in the depth, by the loop's variable; and what the depth may be, most demanding first."""
        frame, variable = self.frame, atom(loop.variable)
        if frame.value(loop.start) != number(0):
            return None
        if loop.step == "1":
            count = self._quotient(loop.bound)
            if count is None:
                return None
            return number(self.extent).times(variable), [count.plus(number(self.extent - 1), -1), count]
        update = loop.node.child_by_field_name("update")
        right = update.child_by_field_name("right") if update is not None else None
        sign = update.child_by_field_name("operator") if update is not None else None
        if right is None or sign is None or text(sign) != "+=" or frame.value(right) != number(self.extent):
            return None
        bound = frame.value(loop.bound)
        return (variable, [bound]) if bound is not None else None

    def _quotient(self, node: Node, steps: int = 0) -> Polynomial | None:
        """The dividend of a division by the tile's extent, one further quotient counted as one extent."""
        node = strip(node)
        if node.type in ("identifier", "call_expression"):
            value = self.scope.resolve(node)
            return self._quotient(value, steps + 1) if value is not None and steps < 8 else None
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if node.type != "binary_expression" or sign is None or left is None or right is None:
            return None
        if text(sign) == "/":
            by = self.frame.value(right)
            return self.frame.value(left) if by == number(self.extent) else None
        if text(sign) == "+":
            for one, other in ((left, right), (right, left)):
                if self.frame.value(one) == number(1):
                    inner = self._quotient(other, steps + 1)
                    return inner.plus(number(self.extent)) if inner is not None else None
        return None

    def _depth(self, candidates: Sequence[Polynomial], ends: Sequence[Polynomial | None]) -> Polynomial | None:
        """The depth: where a tile's end is not guarded, it must be whole in every case."""
        for depth in candidates:
            told = self.frame.grid(depth)
            if told is None or any(end not in (None, depth) for end in ends):
                continue
            # The last of the candidates of a count is that of a quotient rounded down.
            whole = all(end == depth for end in ends) and (depth == candidates[0])
            values = [value_in(self.site, depth.render(), case) for case in all_cases(self.site)]
            if whole or all(v is not None and v % self.extent == 0 for v in values):
                return depth
        return None

    # What follows the loop.

    def _epilogue(self, loop: Node, statements: list[Node]) -> _Epilogue | None:
        if not statements:
            return None
        first, last = statements[0], statements[-1]
        if first.type == "if_statement" and len(statements) > 1:
            inner = first.child_by_field_name("consequence")
            inner = children(inner)[0] if inner is not None and len(children(inner)) == 1 else inner
            if inner is not None and inner.type == "return_statement" and not children(inner):
                condition = first.child_by_field_name("condition")
                return _Epilogue(condition, True, first, self.root, first)
        if last.type == "if_statement" and last.child_by_field_name("alternative") is None and len(statements) == 1:
            condition, inner = last.child_by_field_name("condition"), last.child_by_field_name("consequence")
            found = limits(self.frame, condition) if condition is not None else None
            told = {w.render() for a, _ in found or () if (w := self.frame.grid(a)) is not None}
            if inner is not None and {self.frame.down, self.frame.across} <= told:
                return _Epilogue(condition, False, last, inner, inner)
        return _Epilogue(None, False, None, self.root, loop)

    def _bounds(self, after: _Epilogue) -> dict[str, Polynomial]:
        """The exclusive bounds of row and column, by name."""
        found: dict[str, Polynomial] = {}
        given = limits(self.frame, after.condition, negated=after.returns) if after.condition is not None else []
        for what, bound in given or ():
            told, limit = self.frame.grid(what), self.frame.grid(bound)
            if told is not None and limit is not None and told.render() in (self.frame.down, self.frame.across):
                found.setdefault(told.render(), limit)
        if after.condition is None:
            for name, axis in ((self.frame.down, 1), (self.frame.across, 0)):
                extent = self._extent(axis)
                if extent is not None:
                    found[name] = extent
        return found

    def _extent(self, axis: int) -> Polynomial | None:
        """The one parameter whose value is the number of the grid's threads along an axis, in cases that differ."""
        values = [scalar_values(self.site, case) for case in all_cases(self.site)]
        wanted = [grid[axis] * self.extent for grid in self.grids]
        fitting = [p.name for p in self.site.kernel.parameters if [v.get(p.name) for v in values] == wanted]
        return atom(fitting[0]) if len(fitting) == 1 and len(set(wanted)) > 1 else None

    def _covered(self, bound: Polynomial, axis: int) -> bool:
        """Whether the grid has a thread for each row or column in every case."""
        values = [value_in(self.site, bound.render(), case) for case in all_cases(self.site)]
        return all(v is not None and v <= g[axis] * self.extent for v, g in zip(values, self.grids, strict=True))

    # The plain kernel's text.

    def _written(self, before: list[Node], line: str, after: _Epilogue, down: str, across: str) -> str | None:
        site, frame = self.site, self.frame
        rest = self._rest(after)
        condition: str | None = f"{frame.down} < {down} && {frame.across} < {across}"
        if after.condition is not None:
            inner = children(after.condition)[0] if after.condition.type == "condition_clause" else after.condition
            condition = self._shown(inner)
        if rest is None or condition is None:
            return None
        used = set(_WORDS.findall(" ".join([line, condition, *rest])))
        ahead: list[str] = []
        within: list[str] = []
        for declaration in reversed(before):
            kept = self._declaration(declaration, used)
            if kept is None:
                return None
            if not kept:
                continue
            used |= set(_WORDS.findall(kept))
            (within if self._own(declaration) else ahead).insert(0, kept)
        outer = indent_at(site, site.kernel.span.start)
        unit = indent_unit(site)
        indent = outer + unit
        above = [text(n) for n in self._above(after)]
        lines = [self._index(frame.down, "y"), self._index(frame.across, "x"), *ahead, *above]
        inner_lines = [*within, line, *rest]
        if after.returns:
            lines += [f"if ({condition}) {{\n{unit}return;\n}}", *inner_lines]
        else:
            body = "\n".join(reindent(part, "", unit) for part in inner_lines)
            lines.append(f"if ({condition}) {{\n{body}\n}}")
        return "{\n" + "\n".join(reindent(part, "", indent) for part in lines) + f"\n{outer}}}"

    def _above(self, after: _Epilogue) -> list[Node]:
        """The comments over the epilogue's guard."""
        found: list[Node] = []
        node = after.guard.prev_named_sibling if after.guard is not None else None
        while node is not None and node.type == "comment":
            found.insert(0, node)
            node = node.prev_named_sibling
        return found

    def _index(self, name: str, axis: str) -> str:
        declared = self.named.get(name)
        kind = declared.type.replace("const ", "") if declared is not None else "int"
        return f"{kind} {name} = blockIdx.{axis} * blockDim.{axis} + threadIdx.{axis};"

    def _rest(self, after: _Epilogue) -> list[str] | None:
        """The statements under the epilogue's guard, each with the comments above it."""
        block = after.within
        nodes = block.named_children if block.type == "compound_statement" else [block]
        found = []
        for node in nodes:
            if block == self.root and node.start_byte < after.after.end_byte:
                continue
            names = {d.name for same in self.scope.declared.values() for d in same if d.node == node}
            if node.type == "declaration" and names and names <= self.dependent and self._alien(node):
                if any(self.scope.changed(self.scope.declared[n][0]) for n in names) or not pure(node):
                    return None
                continue  # what uses it is written by row and column
            shown = self._shown(node)
            if shown is None:
                return None
            own = indent_at(self.site, node.start_byte)
            found.append(reindent(own + shown, own, ""))
        return found

    def _declaration(self, node: Node, used: set[str]) -> str | None:
        """A declaration before the loop that the plain kernel still needs; "" where it does not, None where it cannot be."""
        own = [d for same in self.scope.declared.values() for d in same if d.node == node]
        names = {d.name for d in own}
        written_anew = {self.frame.down, self.frame.across}
        if "__shared__" in text(node) or not (names - written_anew) & used:
            return ""
        if names & written_anew:
            return None
        shown = self._shown(node)
        return reindent(shown, indent_at(self.site, node.start_byte), "") if shown is not None else None

    def _integers(self) -> set[str]:
        """What an index or a side of a comparison may be made of, so that its order of computation does not matter."""
        fixed = {p.name for p in self.site.kernel.parameters if not p.pointer and is_integer_type(p.base)}
        return fixed | {self.frame.down, self.frame.across, "blockIdx", "z"}

    def _own(self, node: Node) -> bool:
        """Whether a declaration is of what the threads have each for themselves, or change."""
        own = [d for same in self.scope.declared.values() for d in same if d.node == node]
        return any(d.name in self.dependent or d.value is None or self.scope.changed(d) for d in own)

    def _alien(self, node: Node) -> bool:
        """Whether the code uses a thread's or block's number other than its row and column."""
        known = {self.frame.down, self.frame.across} & set(self.named)
        for n in walk(node):
            if n.type != "identifier" or text(n) not in (self.dependent | THREAD_NAMES) - known:
                continue
            if n.parent is not None and "".join(text(n.parent).split()) == "blockIdx.z":
                continue
            declared = self.scope.lookup(text(n), n)
            if declared is not None and declared.node == node:
                continue  # declared here
            if declared is None or declared.value is None or self._alien(declared.value):
                return True
        return False

    def _shown(self, node: Node) -> str | None:
        """The code with indices and comparisons written by row and column; None where a thread's number stays."""
        changes: list[tuple[int, int, str]] = []

        def visit(n: Node) -> bool:
            if not self._alien(n):
                return True
            if _counted_expression(n):
                told = self.frame.grid(self.frame.value(n))
                if told is not None and told.names() <= self._integers():
                    changes.append((n.start_byte, n.end_byte, told.render()))
                    return True
            return bool(n.named_children) and all(visit(c) for c in n.named_children)

        if not visit(node):
            return None
        return render(self.site, node.start_byte, node.end_byte, changes)


def _counted_expression(node: Node) -> bool:
    """Whether the expression is an index or a side of a comparison."""
    parent = node.parent
    if parent is None:
        return False
    sign = parent.child_by_field_name("operator")
    compared = parent.type == "binary_expression" and sign is not None and text(sign) in _COMPARED and node != sign
    return compared or parent.type == "subscript_argument_list"


def _is_barrier(node: Node) -> bool:
    return node.type == "expression_statement" and "".join(text(node).split()) == "__syncthreads();"


def root_array(node: Node | None) -> str:
    """The name that an array declarator declares; "" for other nodes."""
    while node is not None and node.type == "array_declarator":
        inner = node.child_by_field_name("declarator")
        if inner is not None and inner.type == "identifier":
            return text(inner)
        node = inner
    return ""


def stages_targets(statements: Sequence[Node], tiles: Mapping[str, Tile]) -> list[Node]:
    """The elements of tiles that statements assign."""
    targets = [assigned(n) for s in statements for n in walk(s)]
    return [t for t in targets if t is not None and root_name(t) in tiles]
