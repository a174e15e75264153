"""A matrix product over tiles in shared memory, told as the plain loop over the depth that it computes.

    for each tile: a_tile[y][x] = a[row][first + x]; b_tile[y][x] = b[first + y][col]; wait;
                   sum += a_tile[y][i] * b_tile[i][x] for each i; wait

is `sum += a[row][k] * b[k][col]` for each k: what a thread reads from a tile is what another thread staged there, so its
place in the array follows from the index with that thread's numbers put in.
"""

import re
from dataclasses import dataclass

from engine.cuda.edit import edit_program
from engine.cuda.questions import Polynomial, atom, number, pure
from engine.cuda.syntax import THREAD_NAMES, children, inside, is_integer_type, span, text, walk
from engine.rewrite import Declared, Edit, Edits, Node, Site, Span, reindent
from engine.rewrite.program_site import make_site
from engine.rules.idioms import StrideLoop, stride_loop
from engine.rules.matmul import matmul_staging, matmul_tiled_loop

_WORDS = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMPARED = ("<", ">", "<=", ">=", "==", "!=")


@dataclass(frozen=True)
class Untiled:
    """The kernel without its tiles: a site of its own, and the way of its edits back to the program as it is."""

    site: Site
    there: Span  # of the body in the site's file
    here: Span  # of the body in the program's

    def back(self, edits: Edits) -> dict[str, tuple[Edit, ...]] | None:
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
    if not site.sound or not site.manageable or len(site.kernel.shared) != 2:
        return None
    extent = _square(site)
    written_body = _TiledReader(site, extent).body() if extent else None
    if written_body is None:
        return None
    here = site.body
    edits = site.in_file(Edit.replace(here, written_body))
    plain_site = make_site(edit_program(site.program, edits), site.spec, site.step, site.target)
    there = plain_site.body
    if not _own_elements(plain_site):
        return None
    return Untiled(plain_site, span(there), span(here))


def _square(site: Site) -> int:
    """The extent of the square blocks that every case is launched with; 0 where they are none."""
    before = site.configs_after({})
    sizes = {c.block for c in before} if before else set()
    x, y, z = next(iter(sizes)) if len(sizes) == 1 else (0, 0, 0)
    values = any("typename" not in p and "class" not in p for p in site.kernel.template_parameters)
    instances = {"".join(launch.template_args.split()) for launch in site.launches}
    return x if x == y > 1 and z == 1 and not (values and len(instances) > 1) else 0


def _own_elements(site: Site) -> bool:
    """Whether each thread touches one element of an array that is written: no barrier orders threads any more."""
    uses = site.scope.uses(site.body)
    changed = {u.array for u in uses or () if u.writes}
    places = {(u.array, u.index) for u in uses or () if u.array in changed}
    return uses is not None and len(places) == len(changed) and all(index is not None for _, index in places)


@dataclass(frozen=True)
class _Epilogue:
    """What follows the loop: where its guard (if any) stands, and the statements under it."""

    condition: Node | None
    returns: bool
    guard: Node | None
    within: Node  # the block that holds the statements
    after: Node  # they stand behind it


class _TiledReader:
    """Reads one kernel that is launched in blocks of `extent` x `extent` threads; `body` gives the plain kernel's."""

    def __init__(self, site: Site, extent: int) -> None:
        self.site = site
        self.root = site.body
        self.scope = site.scope
        self.extent = extent
        before = site.configs_after({}) or ()
        self.grids = [(c.grid[0], c.grid[1]) for c in before]
        self.frame = matmul_staging.Frame(site, self.scope, self.extent, "", "")
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
        tiles = matmul_tiled_loop.shared_tiles(self.frame)
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
        line = matmul_tiled_loop.plain_loop(self.frame, loop, tiles, bounds)
        if line is None:
            return None
        down, across = bounds.get(self.frame.down), bounds.get(self.frame.across)
        if down is None or across is None or not (self._covered(down, 1) and self._covered(across, 0)):
            return None
        return self._written(before, line, after, self._gone(loop), down.render(), across.render())

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
        return self.site.fresh(base)

    @staticmethod
    def _integer(declared: Declared) -> bool:
        return is_integer_type(declared.type.replace("const ", ""))

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
            found = matmul_staging.limits(self.frame, condition) if condition is not None else None
            told = {w.render() for a, _ in found or () if (w := self.frame.grid(a)) is not None}
            if inner is not None and {self.frame.down, self.frame.across} <= told:
                return _Epilogue(condition, False, last, inner, inner)
        return _Epilogue(None, False, None, self.root, loop)

    def _bounds(self, after: _Epilogue) -> dict[str, Polynomial]:
        """The exclusive bounds of row and column, by name."""
        found: dict[str, Polynomial] = {}
        given = (
            matmul_staging.limits(self.frame, after.condition, negated=after.returns)
            if after.condition is not None
            else []
        )
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
        values = [self.site.scalar_values(case) for case in self.site.cases]
        wanted = [grid[axis] * self.extent for grid in self.grids]
        fitting = [p.name for p in self.site.kernel.parameters if [v.get(p.name) for v in values] == wanted]
        return atom(fitting[0]) if len(fitting) == 1 and len(set(wanted)) > 1 else None

    def _covered(self, bound: Polynomial, axis: int) -> bool:
        """Whether the grid has a thread for each row or column in every case."""
        values = [self.site.value_in(bound.render(), case) for case in self.site.cases]
        return all(v is not None and v <= g[axis] * self.extent for v, g in zip(values, self.grids, strict=True))

    # The plain kernel's text.

    def _written(
        self, before: list[Node], line: str, after: _Epilogue, gone: set[str], down: str, across: str
    ) -> str | None:
        site, frame = self.site, self.frame
        rest = self._rest(after)
        condition: str | None = f"{frame.down} < {down} && {frame.across} < {across}"
        if after.condition is not None:
            inner = children(after.condition)[0] if after.condition.type == "condition_clause" else after.condition
            condition = self._shown(inner)
        if rest is None or condition is None:
            return None
        used = set(_WORDS.findall(_COMMENT.sub("", "\n".join([line, condition, *rest]))))
        if used & gone:
            return None
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
        outer = site.indent_at(site.kernel.span.start)
        unit = site.indent_unit
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

    def _gone(self, loop: StrideLoop) -> set[str]:
        """The names that are declared in the loop over tiles and not in the loop within it."""
        declared = [d for same in self.scope.declared.values() for d in same if inside(d.node, loop.node)]
        kept = [n for n in walk(loop.body) if n.type == "for_statement"]
        return {d.name for d in declared if not any(inside(d.node, inner) for inner in kept)}

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
            own = self.site.indent_at(node.start_byte)
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
        return reindent(shown, self.site.indent_at(node.start_byte), "") if shown is not None else None

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
        return self.site.render(node.start_byte, node.end_byte, changes)


def _counted_expression(node: Node) -> bool:
    """Whether the expression is an index or a side of a comparison."""
    parent = node.parent
    if parent is None:
        return False
    sign = parent.child_by_field_name("operator")
    compared = parent.type == "binary_expression" and sign is not None and text(sign) in _COMPARED and node != sign
    return compared or parent.type == "subscript_argument_list"
