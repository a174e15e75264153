"""Recognises a matrix product with one thread per element: C[row][col] = f(sum over k of A(row, k) * B(k, col))."""

import re
from dataclasses import dataclass
from typing import Literal

from engine.cuda.questions import Polynomial, declarators, declared_type, pure, pure_value, written
from engine.cuda.syntax import called, children, inside, is_integer_type, names, operands, text, tokens, walk
from engine.rewrite import Namer, Node, Scope, Site
from engine.rules.idioms import AXES, Axis, Index, StrideLoop, ThreadMap, stride_loop, thread_map, thread_uses_outside
from engine.rules.idioms.known_values import in_parameters

_BATCHES = ("blockIdx.z", "blockIdx.x", "blockIdx.y")  # which of several products a block works on
_FUSED = ("fmaf", "fma", "__fmaf_rn", "__fma_rn")
_CONVERSIONS = {"__half2float": "float", "__bfloat162float": "float"}
_ARITHMETIC = frozenset({
    "float", "double", "half", "__half", "__nv_bfloat16", "nv_bfloat16", "int", "unsigned", "unsigned int", "char",
    "signed char", "unsigned char", "short", "unsigned short", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t",
    "uint32_t", "long long", "unsigned long long", "int64_t", "uint64_t",
})  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """One factor of the product: element (outer, k) of a matrix, where `outer` is the row of A or the column of B.

    `along` says which of the two is contiguous in memory; `stride` is the distance of neighbours in the other one and
    `offset` the first element, as C text over parameters. `element` is the array's type, `type` that of the factor,
    `conversion` the factor with `@` for the element.
    """

    array: str
    along: Literal["k", "outer"]
    stride: str
    offset: str
    element: str
    type: str
    conversion: str


@dataclass(frozen=True)
class Corner:
    """A comparison of row and column, and whether it is likeliest in the tile's last row and column."""

    left: Polynomial
    sign: str
    right: Polynomial
    last_row: bool
    last_column: bool

    def written(self, row: str, column: str, name: Namer) -> str:
        """The comparison of `row` and `column` in that corner of a block's tile, as C text."""
        corner = (
            name("last_row" if self.last_row else "first_row"),
            name("last_col" if self.last_column else "first_col"),
        )
        sides = (side.renamed(row, corner[0]).renamed(column, corner[1]) for side in (self.left, self.right))
        return f" {self.sign} ".join(side.render() for side in sides)


@dataclass(frozen=True)
class Mask:
    """Of these at least one holds wherever a result is used: a corner's comparison, or one of `flags`, the same for all threads."""

    corners: tuple[Corner, ...]
    flags: tuple[str, ...] = ()

    def written(self, row: str, column: str, name: Namer) -> str:
        """The test for a block's tile, as C text that may stand beside `&&`."""
        parts = [*self.flags, *(corner.written(row, column, name) for corner in self.corners)]
        return parts[0] if len(parts) == 1 else f"({' || '.join(parts)})"


@dataclass(frozen=True)
class Product:
    """A kernel that computes a matrix product, one thread per element.

    `rows`, `columns`, `depth` are the three extents over the kernel's parameters. `accumulator` is the type in which
    the sum is kept, `target` the text of what the loop adds to, `sign` "+" or "-". `alone` says that each block
    computes a product of its own, of as many elements as the block has threads. `masks` hold wherever a result is used.
    """

    map: ThreadMap
    row: Index
    column: Index
    rows: str
    columns: str
    depth: str
    loop: StrideLoop
    a: Operand
    b: Operand
    target: str
    sign: Literal["+", "-"]
    accumulator: str
    alone: bool
    masks: tuple[Mask, ...] = ()


def product(site: Site) -> Product | None:
    """The kernel as a matrix product; None where it has another form."""
    form, extents = _threads(site), None
    if form is None:
        form, extents = _one_block(site)
    if form is None or not site.local_only(site.body, site.type_names) or not site.pointers_distinct:
        return None
    loops = [n for n in walk(site.body) if n.type in ("for_statement", "while_statement", "do_statement")]
    loop = stride_loop(loops[0]) if len(loops) == 1 else None
    if loop is None or loop.step != "1" or text(loop.start) not in ("0", "0u", "0U") or not _unlooped(form, loop):
        return None
    if any(n.type in ("goto_statement", "switch_statement") for n in walk(site.body)):
        return None
    if any(_leaves(s) for s in form.work) or any(
        n.type == "type_qualifier" and text(n) == "volatile" for n in walk(site.kernel.node)
    ):
        return None
    scope = Scope(site.unit, site.kernel, frozenset(i.name for i in form.indices))
    if any(d.shape != "scalar" and d.shape != "pointer" for same in scope.declared.values() for d in same):
        return None
    update = _update(scope, loop)
    if update is None:
        return None
    target, sign, first, second = update
    accumulator = _accumulator(site, scope, loop, target)
    depth = in_parameters(site, loop.bound)
    if accumulator is None or depth is None:
        return None
    x, y = form.index("x"), form.index("y")
    if x is None or y is None:
        return None
    for row, column in ((y, x), (x, y)):
        for left, right in ((first, second), (second, first)):
            a = _operand(site, scope, loop, left, row.name, column.name)
            b = _operand(site, scope, loop, right, column.name, row.name)
            rows, columns = (
                extents[i.axis] if extents is not None else in_parameters(site, form.bounds[i.axis])
                for i in (row, column)
            )
            if a is None or b is None or rows is None or columns is None:
                continue
            if a.array == _array(scope, target) or b.array == _array(scope, target):
                return None
            if not _stores_elsewhere(scope, form, {a.array, b.array}):
                return None
            alone = extents is not None
            return Product(form, row, column, rows, columns, depth, loop, a, b, text(target), sign, accumulator, alone)
    return None


def _threads(site: Site) -> ThreadMap | None:
    if not site.sound or not site.manageable:
        return None
    form = thread_map(site)
    if form is None or form.style == "none" or {i.axis for i in form.indices} != {"x", "y"}:
        return None
    axes: tuple[Axis, Axis] = ("x", "y")
    if any(a not in form.bounds for a in axes) or any(i.factor != 1 for i in form.indices):
        return None
    own = {i.name for i in form.indices}
    for index in form.indices:
        if not {name for name, _ in declarators(index.declaration)} <= own:
            return None
    return None if thread_uses_outside(site, form.indices, frozenset(_BATCHES[:1])) else form


def _one_block(site: Site) -> tuple[ThreadMap | None, dict[Axis, str] | None]:
    """A kernel whose block has one thread for each element, and its extents over the kernel's parameters."""
    before = site.configs_after({})
    if not site.sound or not site.manageable or before is None:
        return None, None
    changed = written(site.body)
    indices: list[Index] = []
    invariant: list[Node] = []
    work = children(site.body)
    while work and work[0].type == "declaration":
        declaration, parts = work[0], declarators(work[0])
        for name, value in parts:
            match = re.fullmatch(r"threadIdx\s*\.\s*([xy])", text(value)) if value is not None else None
            if match is None or name in changed or not is_integer_type(declared_type(declaration)):
                continue
            axis: Axis = "x" if match[1] == "x" else "y"
            indices.append(
                Index(name, axis, declared_type(declaration), f"blockDim.{axis}", 1, declaration, len(parts) == 1)
            )
        if indices and indices[-1].declaration == declaration:
            if not indices[-1].alone:
                return None, None
        elif names(declaration) & {i.name for i in indices} or not pure(declaration) or {n for n, _ in parts} & changed:
            break
        else:
            invariant.append(declaration)
        work = work[1:]
    if sorted(i.axis for i in indices) != ["x", "y"] or thread_uses_outside(site, tuple(indices), frozenset(_BATCHES)):
        return None, None
    values = [site.scalar_values(case) for case in site.cases]
    extents: dict[Axis, str] = {}
    for k, axis in enumerate(AXES[:2]):
        fitting = (
            p.name for p in site.kernel.parameters if [v.get(p.name) for v in values] == [c.block[k] for c in before]
        )
        extent = next(fitting, None)
        if extent is None or extent in changed or any(c.block[2] != 1 for c in before):
            return None, None
        extents[axis] = extent
    return ThreadMap(tuple(indices), tuple(invariant), (), "none", (), {}, tuple(work)), extents


def _unlooped(form: ThreadMap, loop: StrideLoop) -> bool:
    """Whether the loop is a statement of the work, or stands under its conditions alone."""
    node: Node | None = loop.node
    while node is not None and node not in form.work:
        if node != loop.node and node.type not in ("compound_statement", "if_statement", "else_clause"):
            return False
        node = node.parent
    return node is not None


def _leaves(statement: Node) -> bool:
    return any(n.type in ("return_statement", "break_statement", "continue_statement") for n in walk(statement))


def _factors(node: Node) -> list[Node]:
    """The factors of a product; casts stay, as they decide the type it is computed in."""
    while node.type == "parenthesized_expression" and len(children(node)) == 1:
        node = children(node)[0]
    sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
    if node.type != "binary_expression" or sign is None or left is None or right is None or text(sign) != "*":
        return [node]
    return _factors(left) + _factors(right)


def _update(scope: Scope, loop: StrideLoop) -> tuple[Node, Literal["+", "-"], Node, Node] | None:
    """(target, sign, factor, factor) of the loop's only statement besides declarations of what it multiplies."""
    statements = children(loop.body) if loop.body.type == "compound_statement" else [loop.body]
    values: dict[str, Node] = {}
    for statement in statements[:-1]:
        if statement.type != "declaration" or not pure_value(statement):
            return None
        for name, value in declarators(statement):
            if not name or value is None:
                return None
            values[name] = value
    last = statements[-1] if statements else None
    parts = children(last) if last is not None and last.type == "expression_statement" else []
    if len(parts) != 1 or parts[0].type != "assignment_expression":
        return None
    sign, left, right = (parts[0].child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or left is None or right is None or not pure_value(right):
        return None
    direction: Literal["+", "-"] = "+"
    if text(sign) in ("+=", "-="):
        direction = "-" if text(sign) == "-=" else "+"
        factors = _factors(right)
    elif text(sign) == "=" and right.type == "call_expression" and called(right) in _FUSED:
        arguments = right.child_by_field_name("arguments")
        given = children(arguments) if arguments is not None else []
        if len(given) != 3 or tokens(given[2]) != tokens(left):
            return None
        factors = given[:2]
    elif text(sign) == "=":
        terms = operands(right, "+")
        rest = [t for t in terms if tokens(t) != tokens(left)]
        if len(terms) != 2 or len(rest) != 1:
            return None
        factors = _factors(rest[0])
    else:
        return None
    if len(factors) != 2:
        return None
    # A value of a narrower type than its initialiser would lose what the variable drops.
    replaced = []
    for factor in factors:
        value = values.get(text(factor)) if factor.type == "identifier" else None
        if value is not None:
            declared = scope.lookup(text(factor), factor)
            if declared is None or not _keeps_type(scope, declared.type, value):
                return None
        replaced.append(value or factor)
    return left, direction, replaced[0], replaced[1]


def _keeps_type(scope: Scope, written_type: str, value: Node) -> bool:
    kind = written_type.replace("const", "").strip()
    if kind == "auto":
        return True
    accesses = [n for n in walk(value) if n.type == "subscript_expression"]
    origin = scope.element(accesses[0]) if len(accesses) == 1 else None
    if origin is None:
        return False
    return scope.parameters[origin[0]].base == kind if value.type == "subscript_expression" else True


def _array(scope: Scope, target: Node) -> str:
    origin = scope.element(target) if target.type in ("subscript_expression", "pointer_expression") else None
    return origin[0] if origin is not None else ""


def _accumulator(site: Site, scope: Scope, loop: StrideLoop, target: Node) -> str | None:
    """The type of what the loop adds to: a local declared before it, or an element of the result."""
    if target.type == "identifier":
        declared = scope.lookup(text(target), target)
        if declared is None or inside(declared.node, loop.node) or declared.shape != "scalar":
            return None
        kind = declared.type
    elif target.type == "subscript_expression":
        origin = scope.element(target)
        if origin is None or origin[1] is None or loop.variable in origin[1].names():
            return None
        # The author's index must mean the same outside the loop.
        if any(scope.lookup(n, target) != scope.lookup(n, loop.node) for n in names(target)):
            return None
        kind = scope.parameters[origin[0]].base
    else:
        return None
    return kind if kind in _ARITHMETIC | site.type_names else None


def _operand(site: Site, scope: Scope, loop: StrideLoop, factor: Node, outer: str, other: str) -> Operand | None:
    accesses = [n for n in walk(factor) if n.type == "subscript_expression"]
    if len(accesses) != 1:
        return None
    access = accesses[0]
    origin = scope.element(access)
    if origin is None or origin[1] is None or origin[0] not in scope.parameters:
        return None
    array, index = origin[0], origin[1]
    by_k = index.split(loop.variable)
    by_outer = by_k[1].split(outer) if by_k is not None else None
    if by_k is None or by_outer is None:
        return None
    step_k, (step_outer, offset) = by_k[0], by_outer
    fixed = (step_k, step_outer, offset)
    if any(p.names() & {outer, other, loop.variable} for p in fixed) or not step_k.terms or not step_outer.terms:
        return None
    if not all(is_fixed(site, p) for p in fixed):
        return None
    parameter = scope.parameters[array]
    converted = conversion_of(factor, access, parameter.base)
    if converted is None:
        return None
    along: Literal["k", "outer"]
    if step_k.constant == 1:
        along, stride = "k", step_outer
    elif step_outer.constant == 1:
        along, stride = "outer", step_k
    else:
        return None
    conversion, kind = converted
    return Operand(array, along, stride.render(), offset.render(), parameter.base, kind, conversion)


def is_fixed(site: Site, value: Polynomial) -> bool:
    """Whether the value is the same for all threads and can be spelled anywhere in the kernel."""
    changed = written(site.body)
    scalars = {p.name for p in site.kernel.parameters if not p.pointer} - changed
    known = (
        scalars
        | set(site.unit.macros)
        | set(site.unit.constants)
        | {p.replace("=", " ").split()[1] for p in site.kernel.template_parameters if " " in p}
    )
    batch = {w for b in _BATCHES if any(b in product for product in value.terms) for w in b.split(".")}
    return value.names() <= known | batch and "[" not in value.render()


def conversion_of(factor: Node, access: Node, element: str) -> tuple[str, str] | None:
    """The factor with `@` for the array element, and its type; None for what is no plain conversion."""
    node = factor
    while node.type == "parenthesized_expression" and len(children(node)) == 1:
        node = children(node)[0]
    if node == access:
        return "@", element
    whole = text(node)
    at = access.start_byte - node.start_byte
    pattern = whole.encode()[:at].decode() + "@" + whole.encode()[at + len(text(access).encode()) :].decode()
    if node.type == "cast_expression" and re.fullmatch(r"\(\s*[\w ]+\)\s*\(?@\)?", pattern):
        kind = text(node.child_by_field_name("type") or node).strip()
    elif node.type == "call_expression":
        match = re.fullmatch(r"(?:static_cast\s*<\s*(?P<cast>[\w ]+?)\s*>|(?P<name>\w+))\s*\(\s*@\s*\)", pattern)
        if not match:
            return None
        kind = match["cast"] or _CONVERSIONS.get(match["name"], match["name"])
    else:
        return None
    return (pattern, kind) if kind in _ARITHMETIC else None


def _stores_elsewhere(scope: Scope, form: ThreadMap, inputs: set[str]) -> bool:
    uses = scope.uses(scope.body)
    return uses is not None and not any(u.writes and u.array in inputs for u in uses)
