"""Add neighbouring floats of a row by one vector atomic.

`atomicAdd` of `float2` and `float4` needs compute capability 9.0; each float is added atomically, the vector is not (CUDA C++
Programming Guide, "atomicAdd").
"""

import re
from dataclasses import dataclass, field

from engine.cuda.questions import Polynomial, assigned, called, children, compact, inside, names, strip, text, walk
from engine.rewrite import Change, Declared, Edit, Edits, MatchedRule, Node, Scope, Site, Space, Span, Values, merge
from engine.rewrite.wording import ceil_div, reindent
from engine.rules.idioms import Index, aligned, covers, in_parameters, independent, thread_map

_FIRST_ARCH = 90
_LOOPS = frozenset({"for_statement", "while_statement", "do_statement", "for_range_loop", "switch_statement"})
_FIELDS = "xyzw"
_CAST = re.compile(r"\(\s*(?:(?:unsigned|int|long|size_t)\b\s*)+\)")
_FLOATS = frozenset({"float", "const float"})
_Text = tuple[int, int, str]


@dataclass(frozen=True)
class _Atomic:
    """A statement `atomicAdd(target, value);` and the loads of neighbouring floats that its value is made of."""

    statement: Node
    target: Node
    value: Node
    loads: dict[str, Node]  # by text: `a[i]` or `*p`


@dataclass(frozen=True)
class _Rows:
    """Threads numbered by `index` add to elements of rows of `row` floats; `total` is how many there are."""

    site: Site
    index: Index
    row: str
    total: str
    atomics: tuple[_Atomic, ...]
    dropped: tuple[Node, ...]  # declarations of what stands in the values now
    arrays: tuple[str, ...]


class AtomicVectorize(MatchedRule[_Rows]):
    """One atomic for 2 or 4 neighbouring floats where threads number the elements of rows, with vector loads of what is added.

    Row lengths and addresses are tested; the atomics of single floats remain for others.
    """

    name = "atomic_vectorize"
    summary = "Use vector atomics for neighbouring floats of a row"

    def match(self, site: Site) -> _Rows | None:
        if not site.sound or not site.manageable or not site.launch_visible or not site.pointers_distinct:
            return None
        arch = re.fullmatch(r"sm_(\d+)[af]?", site.target.arch)
        if arch is None or int(arch[1]) < _FIRST_ARCH or "atomicAdd" not in site.kernel.calls:
            return None
        mapping = thread_map(site)
        if mapping is None or len(mapping.indices) != 1 or mapping.indices[0].axis != "x" or len(mapping.guards) != 1:
            return None
        if not independent(site, mapping):
            return None
        return _AtomicReader(site, mapping.indices[0], mapping.guards[0], mapping.bounds.get("x")).rows()

    def space(self, match: _Rows) -> Space:
        # The memory system takes one request for four: what such kernels wait for.
        return Space([({"width": 4}, 0.7), ({"width": 2}, 0.4)], {"width": (2, 4)}, (), 0.7)

    def rewrite(self, match: _Rows, values: Values) -> Change | None:
        count = int(values["width"])
        edits = _vectorized(match, count)
        if edits is None:
            return None
        return Change(
            f"One float{count} atomic for {count} neighbouring floats of a row (compute capability 9.0)", edits
        )


@dataclass
class _AtomicReader:
    """Reads what stands behind the index's declaration."""

    site: Site
    index: Index
    guard: Node
    bound: Node | None
    dropped: dict[int, Node] = field(default_factory=dict)

    def rows(self) -> _Rows | None:
        site, name = self.site, self.index.name
        self.scope = Scope(site.unit, site.kernel, frozenset({name}))
        rest = [s for s in children(site.body) if s.start_byte > self.index.declaration.start_byte]
        nodes = [n for s in rest for n in walk(s)]
        if any(n.type in _LOOPS or assigned(n) is not None for n in nodes):
            return None
        if any(len(declared) != 1 for declared in self.scope.declared.values()):
            return None
        divided = [n for n in nodes if n.type == "binary_expression" and self._divisor(n) is not None]
        lengths = {compact(self._divisor(n)) for n in divided}
        length = self._divisor(divided[0]) if divided else None
        row = in_parameters(site, length) if length is not None else None
        size = self.scope.index(length) if length is not None else None
        if len(lengths) != 1 or row is None or size is None or len(size.terms) != 1:
            return None
        self.row, self.unit = row, next(iter(size.terms.items()))
        self.part = re.sub(r"[\s()]", "", size.render())
        total = self._total()
        if total is None:
            return None
        atomics = [self._atomic(n) for n in nodes if n.type == "call_expression" and called(n).startswith("atomic")]
        found = [a for a in atomics if a is not None]
        if not found or len(found) != len(atomics):
            return None
        targets = {self._array(a.target) for a in found}
        loaded = {self._array(load) for a in found for load in a.loads.values()}
        read = {e[0] for n in nodes if self._is_access(n, found) and (e := self.scope.element(n)) is not None}
        if targets & (loaded | read):
            return None
        arrays = tuple(sorted(targets | loaded))
        return _Rows(site, self.index, row, total, tuple(found), tuple(self.dropped.values()), arrays)

    def _divisor(self, node: Node) -> Node | None:
        """The length by which the index is divided, for the row or the place in it."""
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or text(sign) not in ("/", "%") or text(strip(left)) != self.index.name:
            return None
        return right

    def _total(self) -> str | None:
        """The number of elements, by the guard; None where lanes of a vector could be on both sides of it."""
        condition = self.guard.child_by_field_name("condition")
        inner = strip(condition) if condition is not None else None
        sign, left, right = (inner.child_by_field_name(f) if inner else None for f in ("operator", "left", "right"))
        if inner is None or sign is None or left is None or right is None:
            return None
        if self.bound is not None and inside(self.bound, inner) and text(strip(left)) == self.index.name:
            limit, length = self.scope.index(right), in_parameters(self.site, right)
            return length if limit is not None and self._whole_rows(limit) else None
        wanted = ">=" if text(self.guard).rstrip(" }").endswith("return;") else "<"
        place = self.scope.index(left)
        if text(sign) != wanted or place is None or not self._is(place, "/"):
            return None
        count = in_parameters(self.site, right)
        return f"{_factor(count)} * {_factor(self.row)}" if count is not None else None

    def _is(self, value: Polynomial, operator: str) -> bool:
        ((product, factor),) = value.terms.items() if len(value.terms) == 1 else (((), 0),)
        return factor == 1 and len(product) == 1 and self._bare(product[0]) == f"{self.index.name}{operator}{self.part}"

    @staticmethod
    def _bare(atom: str) -> str:
        return re.sub(r"[\s()]", "", _CAST.sub("", atom))

    def _fixed(self, atom: str) -> bool:
        """Whether an atom is the same for all of a row: no index in it but the row's."""
        rest = self._bare(atom).replace(f"{self.index.name}/{self.part}", " ")
        words = re.findall(r"[A-Za-z_]\w*", rest)
        # A local whose definition the index does not contain: a conditional expression, a float.
        unresolved = [d for word in words for d in self.scope.declared.get(word, ())]
        return self.index.name not in words and not any(d.value is None or self._varies(d.value) for d in unresolved)

    def _whole_rows(self, value: Polynomial) -> bool:
        """Whether each term is a multiple of the row's length (or of four) and the same for all of a row."""
        product, factor = self.unit
        for atoms, times in value.terms.items():
            left = list(atoms)
            for one in product:
                if one in left:
                    left.remove(one)
            multiple = len(left) == len(atoms) - len(product) and times % factor == 0
            if not (multiple or times % len(_FIELDS) == 0) or not all(self._fixed(a) for a in atoms):
                return False
        return True

    def _along(self, value: Polynomial | None) -> bool:
        """Whether neighbouring threads have neighbouring elements, and the first of four is a multiple of four."""
        if value is None:
            return False
        place = [
            (atoms, Polynomial({atoms: times})) for atoms, times in value.terms.items()
            if times == 1 and (atoms == (self.index.name,) or self._is(Polynomial({atoms: times}), "%"))
        ]  # fmt: skip
        return len(place) == 1 and self._whole_rows(value.plus(place[0][1], -1))

    def _array(self, node: Node) -> str:
        origin = self.scope.element(node) if _accesses(node) else self.scope.base(node)
        return origin[0] if origin is not None else ""

    def _float(self, array: str) -> bool:
        return any(
            p.name == array and p.base == "float" and p.type.count("*") == 1 and "volatile" not in p.type
            for p in self.site.kernel.parameters
        )

    def _is_access(self, node: Node, atomics: list[_Atomic]) -> bool:
        target = strip(node)
        return _accesses(target) and not any(
            inside(target, a.target) and strip(a.target).child_by_field_name("argument") == target for a in atomics
        )

    def _atomic(self, call: Node) -> _Atomic | None:
        arguments, statement = call.child_by_field_name("arguments"), call.parent
        parts = children(arguments) if arguments is not None else []
        if (
            called(call) != "atomicAdd"
            or len(parts) != 2
            or statement is None
            or statement.type != "expression_statement"
        ):
            return None
        target, value = parts
        origin = self.scope.base(target)
        if (
            origin is None
            or not self._float(origin[0])
            or not self._along(origin[1])
            or not self._reached_alike(statement)
        ):
            return None
        loads: dict[str, Node] = {}
        return _Atomic(statement, target, value, loads) if self._read(value, loads) else None

    def _reached_alike(self, statement: Node) -> bool:
        """Whether all lanes of a vector reach the statement where one does: conditions are those of rows."""
        conditions = [n for n in walk(self.site.body) if n.type in ("if_statement", "conditional_expression")]
        return all(
            n == self.guard or (c := n.child_by_field_name("condition")) is None or not self._varies(c)
            for n in conditions
        )

    def _varies(self, node: Node, depth: int = 0) -> bool:
        """Whether the value may differ within a row."""
        if depth > 8:
            return True
        for n in walk(node):
            if n.type != "identifier":
                continue
            if text(n) == self.index.name:
                above = n.parent
                whole = above is not None and above.type == "binary_expression" and self._divisor(above) is not None
                if not whole or "/" not in [c.type for c in (above.children if above is not None else [])]:
                    return True
            declared = self.scope.lookup(text(n), n)
            value = declared.value if declared is not None and text(n) != self.index.name else None
            if value is not None and self._varies(value, depth + 1):
                return True
        return False

    def _read(self, value: Node, loads: dict[str, Node]) -> bool:
        """Collect the value's loads along the row; False where something else in it differs within a row."""
        if not self._varies(value):
            return True
        if _accesses(value):
            origin = self.scope.element(value)
            if origin is None or not self._float(origin[0]) or not self._along(origin[1]):
                return False
            loads[text(value)] = value
            return True
        if value.type == "identifier":
            declared = self.scope.lookup(text(value), value)
            if declared is None or not self._inlined(declared) or declared.value is None:
                return False
            self.dropped[declared.node.id] = declared.node
            return self._read(declared.value, loads)
        parts = children(value)
        if value.type == "pointer_expression" or not parts:
            return False
        return all(self._read(part, loads) for part in parts)

    def _inlined(self, declared: Declared) -> bool:
        return declared.shape == "scalar" and declared.alone and " ".join(declared.type.split()) in _FLOATS


def _accesses(node: Node) -> bool:
    return node.type == "subscript_expression" or (node.type == "pointer_expression" and text(node).startswith("*"))


def _factor(written: str) -> str:
    return written if re.fullmatch(r"\w+(?: \* \w+)*", written) else f"({written})"


def _vectorized(match: _Rows, count: int) -> Edits | None:
    site = match.site
    before = site.configs_after({})
    if (
        before is None
        or len({c.block for c in before}) != 1
        or any(c.grid[1:] + c.block[1:] != (1, 1, 1, 1) for c in before)
    ):
        return None
    if not covers(site, match.total, tuple((c.grid[0], c.block[0]) for c in before), 1):
        return None
    if match.row.isdigit() and int(match.row) % count:
        return None
    grid = [ceil_div(match.total, before[0].block[0] * count)]
    edits = merge(site.in_file(*_body(match, count)), site.launch_edits(grid=grid))
    after = site.configs_after(edits) if edits is not None else None
    if after is None or not covers(site, match.total, tuple((c.grid[0], c.block[0]) for c in after), count):
        return None
    return edits


def _body(match: _Rows, count: int) -> list[Edit]:
    site, index, unit = match.site, match.index, match.site.indent_unit
    vector, taken = f"float{count}", [""]

    def fresh(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    first = fresh(f"{index.name}0")
    outer = site.indent_at(index.declaration.start_byte)
    begin, end = index.declaration.end_byte, children(site.body)[-1].end_byte
    changes: list[_Text] = []
    for node in match.dropped:
        span = site.line_span(node)
        changes.append((max(span.start, begin), span.end, ""))
    for atomic in match.atomics:
        at = site.indent_at(atomic.statement.start_byte)
        named = {load: fresh(f"{_root(node)}_{vector}") for load, node in atomic.loads.items()}
        lines = [
            f"const {vector} {name} = *reinterpret_cast<const {vector}*>({_address(atomic.loads[load])});"
            for load, name in named.items()
        ]
        lanes = [
            _lane(site, atomic.value, {load: f"{name}.{k}" for load, name in named.items()}) for k in _FIELDS[:count]
        ]
        lines.append(
            f"atomicAdd(reinterpret_cast<{vector}*>({text(atomic.target)}), make_{vector}({', '.join(lanes)}));"
        )
        written = "".join(f"\n{at}{unit}{line}" for line in lines)
        changes.append((atomic.statement.start_byte, atomic.statement.end_byte, f"{{{written}\n{at}}}"))
    returns = [
        (n.start_byte, n.end_byte, "continue;") for s in children(site.body) if s.start_byte >= begin
        for n in walk(s) if n.type == "return_statement"
    ]  # fmt: skip
    conditions = [f"{_factor(match.row)} % {count} == 0"] if not match.row.isdigit() else []
    conditions.append(aligned([(array, 4 * count) for array in match.arrays]))
    start = f"(blockIdx.x * {index.extent} + threadIdx.x) * {count}"
    inner, deep = outer + unit, outer + 2 * unit

    def rest(edits: list[_Text], indent: str) -> str:
        return reindent(site.render(begin, end, edits).strip("\n"), outer, indent).lstrip("\n")

    lines = [
        f"const {index.type} {first} = {start};",
        f"{outer}if ({' && '.join(conditions)}) {{",
        f"{inner}const {index.type} {index.name} = {first};",
        rest(changes, inner),
        f"{outer}}} else {{",
        f"{inner}for ({index.type} {index.name} = {first}; {index.name} < {first} + {count}; ++{index.name}) {{",
        rest(returns, deep),
        f"{inner}}}",
        f"{outer}}}",
    ]
    return [Edit(Span(index.declaration.start_byte, end), "\n".join(lines))]


def _root(load: Node) -> str:
    found = sorted(names(load.child_by_field_name("argument") or load))
    return found[0] if found else "row"


def _address(load: Node) -> str:
    if load.type == "subscript_expression":
        return f"&{text(load)}"
    return text(load.child_by_field_name("argument") or load)


def _lane(site: Site, value: Node, loads: dict[str, str]) -> str:
    """The value with the loads of one lane, and in place of locals made of them their definition."""
    changes: list[_Text] = []

    def visit(node: Node) -> None:
        if text(node) in loads and _accesses(node):
            changes.append((node.start_byte, node.end_byte, loads[text(node)]))
            return
        if node.type == "identifier":
            declared = site.scope.lookup(text(node), node)
            if (
                declared is not None
                and declared.value is not None
                and any(_accesses(n) and text(n) in loads for n in _definitions(site, declared.value))
            ):
                inner = _lane(site, declared.value, loads)
                plain = re.fullmatch(r"[\w.]+", inner)
                changes.append((node.start_byte, node.end_byte, inner if plain else f"({inner})"))
            return
        for part in node.children:
            visit(part)

    visit(value)
    return site.render(value.start_byte, value.end_byte, changes)


def _definitions(site: Site, value: Node, depth: int = 0) -> list[Node]:
    found = list(walk(value))
    for n in list(found):
        declared = site.scope.lookup(text(n), n) if n.type == "identifier" and depth < 8 else None
        if declared is not None and declared.value is not None and declared.shape == "scalar":
            found += _definitions(site, declared.value, depth + 1)
    return found
