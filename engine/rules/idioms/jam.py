"""Copies of a thread's work side by side: what depends on one variable is written once for each copy, all else once for all of them.

Unroll-and-jam: Callahan, Carr and Kennedy, "Improving Register Allocation for Subscripted Variables" (1990); on GPUs several outputs to a
thread: Volkov, "Better Performance at Lower Occupancy" (2010).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine.cuda.math_functions import MATH_FUNCTIONS
from engine.cuda.questions import assigned, called, children, names, root_name, text, walk
from engine.rewrite import Declared, Node, Site, reindent, replace_name
from engine.rules.idioms.loads import LoadAhead, before_condition

Change = tuple[int, int, str]
# A warp whose threads do the same work does it several times just as well: each copy has all the threads that the original has.
WARP_FUNCTIONS = frozenset({
    "__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync", "__syncwarp", "__any_sync", "__all_sync", "__ballot_sync",
    "__reduce_add_sync", "__reduce_min_sync", "__reduce_max_sync", "__reduce_and_sync", "__reduce_or_sync", "__reduce_xor_sync",
})  # fmt: skip
_LOOPS = ("for_statement", "while_statement", "do_statement", "for_range_loop")
_HEADERS = ("initializer", "condition", "update", "value", "right")
_UNARRAYED = frozenset({"auto", "static", "volatile", "extern", "register", "constexpr"})


@dataclass(frozen=True)
class Copies:
    """`factor` copies of the work for neighbouring values of `variable`, which `declaration` alone declares.

    `first` names its value in the first copy and `opening` declares that; `value` is the value in copy `count`, that of the last
    copy there is for those beyond it, and `within` says which store. The conditions of `guards` hold for all copies where they hold
    for the first. `changes` are made to the kernel's text besides.
    """

    variable: str
    declaration: Node
    first: str
    opening: str
    value: str
    within: str
    count: str
    factor: int
    guards: tuple[Node, ...] = ()
    changes: tuple[Change, ...] = ()


@dataclass
class _Part:
    """Neighbouring statements that are written once (`kept`) or in every copy, or a statement with parts of its own inside."""

    nodes: list[Node]
    start: int
    end: int
    kept: bool
    stores: bool = False
    inner: list[tuple[Node, list["_Part"]]] = field(default_factory=list)  # block and its parts
    ahead: list[tuple[str, LoadAhead]] = field(default_factory=list)  # before the copies, and the names of their values


class _Refused(Exception):
    pass


class Jam:
    """A kernel's work split into what depends on a variable and what does not.

    `shared` counts the loads in loops that copies share, `end` is where the work ends in the file.
    """

    def __init__(
        self, site: Site, variable: str, declaration: Node, guards: Sequence[Node], *, of_warp: bool = False
    ) -> None:
        """`of_warp`: all threads of a warp have the same value of the variable. Raises ValueError where the work cannot be split."""
        self._site, self._scope, self._guards = site, site.scope, {g.id for g in guards}
        self._together = WARP_FUNCTIONS if of_warp else frozenset[str]()
        self._body = site.body
        self._declaration = declaration
        self._named: list[str] = []
        self.dependent = self._dependents(variable)
        try:
            self._check(guards, variable)
            statements = self._statements(self._body)
            at = next(k for k, (node, _, _) in enumerate(statements) if node == declaration)
            self._parts = self._split(statements[at + 1 :])
        except _Refused as refused:
            raise ValueError(str(refused)) from None
        self.end = self._parts[-1].end if self._parts else declaration.end_byte
        self.shared = sum(self._loads(part, 0) for part in self._parts)

    # ---- what depends on the variable

    def _dependents(self, variable: str) -> frozenset[str]:
        found = {variable}
        while True:
            before = len(found)
            for node in walk(self._body):
                if node.type == "init_declarator":
                    target, value = node.child_by_field_name("declarator"), node.child_by_field_name("value")
                    if target is not None and value is not None and names(value) & found:
                        found |= {text(n) for n in walk(target) if n.type == "identifier"}
                    continue
                target = assigned(node)
                name = root_name(target) if target is not None else ""
                if name in found or name not in self._scope.declared:
                    continue
                known = self._scope.lookup(name, node)
                if self._decides(node, known.scope if known is not None else self._body) & found:
                    found.add(name)
            if len(found) == before:
                return frozenset(found)

    def _decides(self, node: Node, scope: Node) -> set[str]:
        """The names that decide whether an assignment to a variable of this scope is made, and of what."""
        at, used = node, set[str]()
        while at.parent is not None and not at.parent.type.endswith(("_statement", "declaration", "for_range_loop")):
            at = at.parent
        used |= names(at)
        while at.parent is not None and at != scope:
            at = at.parent
            if at.type in (*_LOOPS, "if_statement", "switch_statement") and at.id not in self._guards:
                used |= {name for header in _headers(at) for name in names(header)}
        return used

    def _check(self, guards: Sequence[Node], variable: str) -> None:
        site, scope = self._site, self._scope
        if site.kernel.shared or not site.local_only(self._body, self._together):
            raise _Refused("threads work together")
        uses = scope.uses(self._body)
        if uses is None:
            raise _Refused("an access cannot be told")
        self._stores = [u.node.start_byte for u in uses if u.writes]
        stored = {u.array for u in uses if u.writes}
        self._reads = [u for u in uses if u.array not in stored]
        for guard in guards:
            condition = guard.child_by_field_name("condition")
            if condition is None or names(condition) & self.dependent - {variable}:
                raise _Refused("the guard depends on more than the variable")
        local = set(scope.declared) | set(scope.parameters)
        macros = site.function_macros | dict(site.unit.macros)
        for name in names(self._body) & set(macros):
            if set(re.findall(r"[A-Za-z_]\w*", macros[name])) & local:
                raise _Refused("a macro names a variable")
        for name in self.dependent:
            for declared in scope.declared.get(name, []):
                if declared.shape not in ("scalar", "pointer") and _extents(declared) is None:
                    raise _Refused(f"'{name}' cannot be declared once more")

    # ---- parts

    def _statements(self, block: Node) -> list[tuple[Node, int, int]]:
        """The statements of a block, each with the comments and pragmas above it and a comment behind it."""
        found: list[tuple[Node, int, int]] = []
        begin: int | None = None
        nodes = block.named_children if block.type == "compound_statement" else [block]
        for node in nodes:
            if (
                node.type == "comment"
                and found
                and begin is None
                and _same_line(self._site, found[-1][2], node.start_byte)
            ):
                last, start, _ = found[-1]
                # A comment holds the carriage return behind it.
                found[-1] = (last, start, node.start_byte + len((node.text or b"").rstrip()))
            elif node.type == "comment" or node.type.startswith("preproc"):
                begin = node.start_byte if begin is None else begin
            else:
                found.append((node, node.start_byte if begin is None else begin, node.end_byte))
                begin = None
        return found

    def _split(self, statements: Sequence[tuple[Node, int, int]]) -> list[_Part]:
        parts: list[_Part] = []
        for node, start, end in statements:
            part = self._part(node, start, end)
            last = parts[-1] if parts else None
            alike = last is not None and last.stores == part.stores
            if last is not None and alike and not part.kept and not part.inner and not last.kept and not last.inner:
                last.nodes.append(node)
                last.ahead += part.ahead
                last.end = end
            else:
                parts.append(part)
        return parts

    def _part(self, node: Node, start: int, end: int) -> _Part:
        if node.id in self._guards:
            inner = node.child_by_field_name("consequence")
            if inner is None or any(n.type == "return_statement" for n in walk(inner)):
                return _Part([node], start, end, True)
            return _Part([node], start, end, True, inner=[(inner, self._split(self._statements(inner)))])
        if not names(node) & self.dependent:
            self._keeps(node)
            return _Part([node], start, end, True)
        blocks = _blocks(node)
        if blocks and any(
            n.type == "comment" for c in (node, *node.named_children) for n in c.named_children if c not in blocks
        ):
            raise _Refused("a comment stands between a statement's parts")
        if blocks and not any(names(h) & self.dependent for h in _headers(node)):
            return _Part([node], start, end, True, inner=[(b, self._split(self._statements(b))) for b in blocks])
        if node.type == "declaration":
            declared = {d.name for d in self._declared_by(node)}
            if not declared <= self.dependent:
                raise _Refused("one declaration declares both")
        _stays_inside(node)
        part = _Part([node], start, end, False, any(start <= at < end for at in self._stores))
        for ahead in before_condition(self._scope, node, self._reads, self.dependent):
            self._named.append(self._site.fresh(f"{ahead.load.array}_value", self._named))
            part.ahead.append((self._named[-1], ahead))
        return part

    def _keeps(self, node: Node) -> None:
        """Refuse what would change memory once for all copies."""
        for n in walk(node):
            target = assigned(n)
            if target is None:
                continue
            name = root_name(target)
            known = self._scope.lookup(name, n)
            if known is None or (known.shape != "scalar" and target.type != "identifier" and known.shape != "array"):
                raise _Refused("a store does not depend on the variable")

    def _loads(self, part: _Part, depth: int) -> int:
        """Loads within loops that are made once for all copies, counted where a loop has copies as well."""
        if part.inner:
            deeper = depth + (part.nodes[0].type in _LOOPS)
            inside = [p for _, parts in part.inner for p in parts]
            if deeper and not any(_copied(p) for p in inside):
                return 0
            return sum(self._loads(p, deeper) for p in inside)
        uses = [u for node in part.nodes for u in self._scope.uses(node) or []] if depth else []
        return sum(u.reads and not names(u.node) & self.dependent for u in uses)

    # ---- text

    def written(self, copies: Copies) -> str | None:
        """The text from the variable's declaration to `end`; None where a name stands in the way."""
        arrays = self._arrays(copies)
        if arrays is None:
            return None
        indent = self._site.indent_at(self._declaration.start_byte)
        first = _JamWriter(self._site, copies, arrays, self._site.indent_unit, self._guards)
        # The guards stay where they were: other rules know a kernel by its declarations and guards.
        ahead = next((k for k, part in enumerate(self._parts) if part.inner or not part.kept), len(self._parts))
        lines = [
            indent + copies.opening,
            *first.parts(self._parts[:ahead]),
            indent + first.array(arrays[copies.variable]),
        ]
        name = f"{copies.variable}[{copies.count}]"
        lines += first.loop([f"{name} = {copies.value};"], indent)
        lines += first.parts(self._parts[ahead:])
        return "\n".join(lines).removeprefix(indent)

    def _declared_by(self, node: Node) -> list[Declared]:
        return [d for found in self._scope.declared.values() for d in found if d.node == node]

    def _arrays(self, copies: Copies) -> dict[str, Declared] | None:
        """The variables that have a value for each copy beyond the statements of one part."""
        found: dict[str, Declared] = {}
        parts = [p for part in self._parts for p in _leaves(part) if not p.kept]
        declared = [(d, p) for p in parts for node in p.nodes for d in self._declared_by(node)]
        (variable,) = self._declared_by(self._declaration)
        for one, part in [(variable, None), *declared]:
            uses = [n for n in walk(self._body) if n.type == "identifier" and text(n) == one.name]
            if part is not None and all(part.start <= n.start_byte < part.end for n in uses):
                continue
            words = set(one.type.split())
            if len(self._scope.declared[one.name]) > 1 or words & _UNARRAYED or one.name in self._scope.parameters:
                return None
            found[one.name] = one
        return found


class _JamWriter:
    """Writes parts in the author's style."""

    def __init__(
        self, site: Site, copies: Copies, arrays: dict[str, Declared], unit: str, guards: set[int]
    ) -> None:  # fmt: skip
        self._site, self._copies, self._arrays, self._unit, self._guards = site, copies, arrays, unit, guards

    def array(self, declared: Declared) -> str:
        """The declaration of a variable's values in all copies."""
        plain = declared.type if declared.shape == "pointer" else re.sub(r"\bconst\s+|\s+const\b", "", declared.type)
        star = "*" if declared.shape == "pointer" else ""
        return f"{plain}{star} {declared.name}[{self._copies.factor}]{_extents(declared) or ''};"

    def _ahead(self, name: str, ahead: LoadAhead, indent: str) -> list[str]:
        """A load made once for all copies, in front of them."""
        load = ahead.load
        if not ahead.count:
            return [f"{indent}const {load.type} {name} = {load.written};"]
        each = self.loop([f"{name}[{ahead.count}] = {load.written};"], indent, ahead.count, ahead.copies)
        return [f"{indent}{load.type} {name}[{ahead.copies}];", *each]

    def loop(self, lines: Sequence[str], indent: str, count: str = "", factor: int = 0) -> list[str]:
        """Lines for each copy, of this jam or an earlier one."""
        count, factor = count or self._copies.count, factor or self._copies.factor
        head = f"for (int {count} = 0; {count} < {factor}; ++{count}) {{"
        return [indent + "#pragma unroll", indent + head, *(indent + self._unit + line for line in lines), indent + "}"]

    def parts(self, parts: Sequence[_Part]) -> list[str]:
        """Lines of parts, each with its own indentation."""
        lines: list[str] = []
        for part in parts:
            indent = self._site.indent_at(part.nodes[0].start_byte)
            if part.inner:
                lines += self._nested(part, indent)
            elif part.kept:
                changes = self._guarded(part.nodes[0]) if part.nodes[0].id in self._guards else []
                lines.append(indent + self._text(part.start, part.end, changes))
            else:
                changes = [c for node in part.nodes for c in self._copied(node)]
                for name, ahead in part.ahead:
                    lines += self._ahead(name, ahead, indent)
                    value = f"{name}[{ahead.count}]" if ahead.count else name
                    changes += [(n.start_byte, n.end_byte, value) for n in ahead.load.nodes]
                above, start = self._above(part)
                lines += [*(indent + line for line in above), *(indent + self.array(d) for d in self._declared(part))]
                text = self._text(start, part.end, changes)
                block = [line for line in reindent(indent + text, indent, "").split("\n") if line.strip(" ;")]
                if part.stores and block:
                    block = [f"if ({self._copies.within}) {{", *(self._unit + line for line in block), "}"]
                lines += self.loop(block, indent) if block else []
        return lines

    def _above(self, part: _Part) -> tuple[list[str], int]:
        """The comments above a part, and where what follows them begins; a pragma stays with its loop."""
        first = part.nodes[0].start_byte
        lines = [line.strip() for line in self._text(part.start, first).splitlines() if line.strip()]
        return (lines, first) if lines and not any(line.startswith("#") for line in lines) else ([], part.start)

    def _declared(self, part: _Part) -> Iterator[Declared]:
        for declared in self._arrays.values():
            if declared.node in part.nodes:
                yield declared

    def _nested(self, part: _Part, indent: str) -> list[str]:
        node = part.nodes[0]
        guarded = self._guarded(node) if node.id in self._guards else []
        at, lines = part.start, list[str]()
        for block, inner in part.inner:
            header = self._text(at, block.start_byte, [c for c in guarded if at <= c[0] < block.start_byte]).strip()
            if lines:
                lines[-1] = f"{indent}}} {header} {{"
            else:
                lines.append(f"{indent}{header} {{".replace("{ {", "{"))
            inside = self.parts(inner)
            deep = indent + self._unit
            if not all(line.startswith(deep) for line in inside if line and not line.startswith("#")):
                inside = reindent("\n".join(inside), indent, deep).split("\n")  # it stood on the line of the header
            lines += [*inside, indent + "}"]
            at = block.end_byte
        return lines

    def _guarded(self, guard: Node) -> list[Change]:
        condition = guard.child_by_field_name("condition")
        return replace_name(condition, self._copies.variable, self._copies.first) if condition is not None else []

    def _copied(self, node: Node) -> list[Change]:
        """The changes that make a statement that of one copy."""
        count = self._copies.count
        changes = [
            (n.start_byte, n.end_byte, f"{text(n)}[{count}]")
            for n in walk(node)
            if n.type == "identifier" and text(n) in self._arrays
        ]
        parts = node.children_by_field_name("declarator") if node.type == "declaration" else []
        if not parts or not any(d.node == node for d in self._arrays.values()):
            return changes
        # A declaration in front of the copies has taken its place: what is left of it are assignments, or nothing.
        if not any(p.type == "init_declarator" for p in parts):
            return [(node.start_byte, node.end_byte, "")]
        changes.append((node.start_byte, parts[0].start_byte, ""))
        for part in parts:
            target = part.child_by_field_name("declarator") if part.type == "init_declarator" else part
            while target is not None and target.type == "pointer_declarator":
                name = target.child_by_field_name("declarator")
                if name is not None:
                    changes.append((target.start_byte, name.start_byte, ""))
                target = name
        return changes

    def _text(self, start: int, end: int, changes: Sequence[Change] = ()) -> str:
        more = [c for c in self._copies.changes if start <= c[0] and c[1] <= end]
        return self._site.render(start, end, [*changes, *more])


def _blocks(node: Node) -> list[Node]:
    """The bodies of a statement that has any, in order of text."""
    if node.type == "compound_statement":
        return [node]
    if node.type == "if_statement":
        found = [node.child_by_field_name("consequence")]
        otherwise = node.child_by_field_name("alternative")
        if otherwise is not None:
            found.append(children(otherwise)[0] if otherwise.type == "else_clause" else otherwise)
        return [b for b in found if b is not None]
    body = node.child_by_field_name("body") if node.type in ("for_statement", "while_statement") else None
    return [body] if body is not None else []


def _headers(node: Node) -> list[Node]:
    """What decides how often a statement's body runs."""
    return [h for name in _HEADERS if (h := node.child_by_field_name(name)) is not None]


def _extents(declared: Declared) -> str | None:
    """The extents of an array that is declared without a value, `[8]` of `float a[8];`; None of anything else."""
    for part in declared.node.children_by_field_name("declarator"):
        name = part
        while name.type == "array_declarator":
            inner = name.child_by_field_name("declarator")
            if inner is None:
                return None
            name = inner
        if name is not part and name.type == "identifier" and text(name) == declared.name:
            return (part.text or b"")[name.end_byte - part.start_byte :].decode()
    return None


def _leaves(part: _Part) -> Iterator[_Part]:
    if not part.inner:
        yield part
    for _, parts in part.inner:
        for inner in parts:
            yield from _leaves(inner)


def _copied(part: _Part) -> bool:
    return any(not leaf.kept for leaf in _leaves(part))


def _stays_inside(node: Node) -> None:
    """Refuse a statement that leaves the loop around it, or the kernel."""
    for n in walk(node):
        if n.type == "return_statement":
            raise _Refused("a return depends on the variable")
        if n.type in ("break_statement", "continue_statement"):
            within = n.parent
            stops = (*_LOOPS, "switch_statement") if n.type == "break_statement" else _LOOPS
            while within is not None and within != node.parent and within.type not in stops:
                within = within.parent
            if within is None or within == node.parent:
                raise _Refused("leaving a loop depends on the variable")
        if n.type == "call_expression" and called(n) and called(n) not in MATH_FUNCTIONS and "&" in text(n):
            raise _Refused("a function may change a variable")


def _same_line(site: Site, end: int, start: int) -> bool:
    return b"\n" not in site.unit.data[end:start]
