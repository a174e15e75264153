"""Unroll counted loops: by a pragma, and by hand with accumulators of their own."""

import re

from engine.cuda.questions import ArithmeticError_, declarators, declared_type, evaluate_int, pure
from engine.cuda.syntax import children, names, text, walk
from engine.rewrite import Edit, Families, Family, Node, Point, Proposal, Proposals, Site, Span, proposal
from engine.rewrite.wording import grouped_text, is_plain, replace_name
from engine.rules.idioms import StrideLoop, definition, stride_loop, with_pragma
from engine.rules.idioms.thread_index import is_wide
from engine.spec.types import bindings

_FACTORS = (4, 8, 2, 16)
_MAX_LOOPS = 4
_MAX_FULL = 64
_SHORT = 16
# NVRTC 13 unrolls a loop of constant trips by itself up to 260 to 360 operations in all, counted so. Ours, from loops of nine kinds.
_SMALL = 250
_COSTS = {
    "binary_expression": 1,
    "subscript_expression": 1,
    "update_expression": 1,
    "assignment_expression": 1,
    "unary_expression": 1,
    "pointer_expression": 1,
    "conditional_expression": 2,
    "if_statement": 1,
    "call_expression": 10,
}
_FLOATING = frozenset({"float", "double"})
_EXTREMA = frozenset({"fmaxf", "fminf", "fmax", "fmin", "max", "min"})


class Unroll:
    """`#pragma unroll k` on innermost counted loops, and reductions split into independent chains."""

    name = "unroll"
    summary = "Unroll counted loops"

    def propose(self, site: Site) -> Proposals:
        if not site.sound:
            return
        innermost = [n for n in walk(site.body) if n.type == "for_statement" and not _holds_loop(site, n)]
        if "__restrict" in site.unit.macros or len(innermost) == 0:
            return
        for order, loop in enumerate(innermost[:_MAX_LOOPS]):
            yield from self._pragmas(site, loop, order, len(innermost) == 1)
            yield from self._chains(site, loop, order)
        if len(innermost) > 1:
            counted = [n for n in innermost if _constant_trips(site, n) is None and not _is_constant(site, n)]
            edits = [e for loop in counted if (e := _pragma(site, loop, "4")) is not None]
            if len(edits) == len(counted) > 1:
                yield from proposal(
                    self.name,
                    "Unroll every innermost loop four times",
                    site.in_file(*edits),
                    0.3,
                    factor=4,
                    loop="all",
                )

    def families(self, site: Site) -> Families:
        """The factors of the innermost loops left open, one parameter for each; 1 keeps the compiler from unrolling."""
        if not site.sound or "__restrict" in site.unit.macros:
            return
        loops = [n for n in walk(site.body) if n.type == "for_statement" and not _holds_loop(site, n)][:_MAX_LOOPS]
        open_ = {
            f"factor{k}" if k else "factor": loop
            for k, loop in enumerate(loops)
            if _constant_trips(site, loop) is None
            and not _is_constant(site, loop)
            and _pragma(site, loop, "1") is not None
        }
        if not open_:
            return

        def make(values: Point) -> Proposal | None:
            edits = [_pragma(site, loop, str(values[name])) for name, loop in open_.items()]
            written = [e for e in edits if e is not None]  # None: it stands so already
            summary = f"Unroll innermost loops {', '.join(str(values[n]) for n in open_)} times"
            return next(proposal(self.name, summary, site.in_file(*written) if written else None, 0.3, **values), None)

        yield Family(self.name, self.summary, dict.fromkeys(open_, (1, 2, 4, 8, 16)), (), make, 0.3)

    def _pragmas(self, site: Site, loop: Node, order: int, alone: bool) -> Proposals:
        line = site.unit.line_of(loop.start_byte)
        trips = _constant_trips(site, loop)
        factors = _FACTORS if alone else _FACTORS[:2]
        known = trips <= _MAX_FULL if trips is not None else _is_constant(site, loop)
        if known and _done_anyway(loop, trips if trips is not None else _SHORT):
            return
        choices = [("full", "")] if known else [(str(k), str(k)) for k in factors]
        for rank, (label, argument) in enumerate(choices):
            edit = _pragma(site, loop, argument)
            if edit is None:
                continue
            times = "fully" if label == "full" else f"{label} times"
            # The compiler unrolls short constant loops by itself; others gain where loads overlap.
            prior = 0.15 if label == "full" else 0.3 - 0.04 * rank - 0.02 * order
            yield from proposal(
                self.name,
                f"Unroll the loop at line {line} {times}",
                site.in_file(edit),
                prior,
                factor=label,
                line=line,
            )

    def _chains(self, site: Site, node: Node, order: int) -> Proposals:
        loop = stride_loop(node)
        reduction = _reduction(site, loop) if loop is not None else None
        if loop is None or reduction is None:
            return
        line = site.unit.line_of(node.start_byte)
        for rank, parts in enumerate((4, 2)):
            edit = _split(site, loop, reduction, parts)
            # A chain of dependent additions costs four cycles each; independent ones overlap, and so do their loads.
            yield from proposal(
                self.name,
                f"Split the reduction at line {line} into {parts} independent accumulators",
                site.in_file(edit),
                0.34 - 0.05 * rank - 0.02 * order,
                accumulators=parts,
                line=line,
            )


def _holds_loop(site: Site, node: Node) -> bool:
    """Whether another loop stands inside, short ones of a constant number of trips left aside: those vanish."""
    body = node.child_by_field_name("body")
    inner = [n for n in walk(body) if n.type in ("for_statement", "while_statement", "do_statement")] if body else []
    return any((trips := _constant_trips(site, n)) is None or trips > _SHORT for n in inner)


def _constant_trips(site: Site, node: Node) -> int | None:
    loop = stride_loop(node)
    if loop is None:
        return None
    template = bindings(site.kernel, site.spec.steps[site.step].template_args)
    values = {}
    for name in names(loop.start) | names(loop.bound):
        known = template.get(name) or site.unit.macros.get(name) or site.unit.constants.get(name, "")
        try:
            values[name] = evaluate_int(known, {})
        except ArithmeticError_:
            return None
    try:
        low, high, step = (
            evaluate_int(text(loop.start), values),
            evaluate_int(text(loop.bound), values),
            evaluate_int(loop.step, {}),
        )
    except ArithmeticError_:
        return None
    return max(0, -(-(high - low) // step)) if step > 0 else None


def _is_constant(site: Site, node: Node) -> bool:
    """Whether the compiler knows how often the loop runs, though its value stands elsewhere: `i < pack::size`."""
    loop = stride_loop(node)
    if loop is None:
        return False
    constants = site.unit.macros.keys() | site.unit.constants.keys()
    constants |= {t.partition("=")[0].split()[-1] for t in site.kernel.template_parameters}
    for n in (*walk(loop.start), *walk(loop.bound)):
        inside = n.parent
        if n.type == "identifier" and text(n) not in constants:
            if inside is None or inside.type != "qualified_identifier":
                return False
        elif n.type in ("call_expression", "subscript_expression", "field_expression"):
            return False
    return True


def _done_anyway(loop: Node, trips: int) -> bool:
    """Whether the compiler unrolls a loop of so many trips fully without being told."""
    body = loop.child_by_field_name("body")
    if body is None or _before(loop) is not None:
        return False
    return trips * sum(_COSTS.get(n.type, 0) for n in walk(body)) <= _SMALL


def _before(loop: Node) -> Node | None:
    """A directive right before the loop."""
    above = loop.parent.children if loop.parent is not None else []
    earlier = [c for c in above if c.end_byte <= loop.start_byte and c.type != "comment"]
    return earlier[-1] if earlier and earlier[-1].type.startswith("preproc") else None


def _pragma(site: Site, loop: Node, argument: str) -> Edit | None:
    """The pragma before the loop, or another factor in the one that is there."""
    parent = loop.parent
    if parent is None or parent.type != "compound_statement":
        return None
    wanted = f"#pragma unroll {argument}".rstrip()
    before = _before(loop)
    if before is not None:
        match = re.fullmatch(r"#\s*pragma\s+unroll\b[^\n]*", text(before).strip())
        if not match or match[0] == wanted:
            return None
        length = len(match[0].encode())
        return Edit(Span(before.start_byte, before.start_byte + length), wanted)
    start = loop.start_byte
    head = site.unit.data[site.unit.data.rfind(b"\n", 0, start) + 1 : start]
    if head.strip():
        return Edit.insert(start, f"\n{site.indent_at(start)}{wanted}\n{site.indent_at(start)}")
    return Edit.insert(start, f"{wanted}\n{site.indent_at(start)}")


def _reduction(site: Site, loop: StrideLoop) -> dict[str, tuple[str, str, str]] | None:
    """The accumulators of a loop that does nothing but reduce: name to (type, operator, identity)."""
    statements = children(loop.body) if loop.body.type == "compound_statement" else [loop.body]
    found: dict[str, tuple[str, str, str]] = {}
    locals_: set[str] = set()
    if not site.local_only(loop.body) or not statements:
        return None
    values: list[Node] = []
    for statement in statements:
        if statement.type == "declaration":
            parts = declarators(statement)
            if any(not name or value is None or not pure(value) for name, value in parts):
                return None
            locals_ |= {name for name, _ in parts}
            values += [value for _, value in parts if value is not None]
            continue
        inner = children(statement)
        if statement.type != "expression_statement" or len(inner) != 1 or inner[0].type != "assignment_expression":
            return None
        sign, left, right = (inner[0].child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or right is None or left.type != "identifier" or not pure(right):
            return None
        name = text(left)
        shape = _operation(text(sign), name, right)
        kind = _local_type(site, name, loop.node)
        if shape is None or kind is None or name in locals_ or (name in found and found[name][1] != shape[0]):
            return None
        identity = "0" if shape[0] == "+" else "1" if shape[0] == "*" else name
        if kind in _FLOATING and identity in ("0", "1"):
            identity += ".0f" if kind == "float" else ".0"
        found[name] = (kind, shape[0], identity)
        values.append(shape[1])
    if not found or any(names(value) & set(found) for value in values):
        return None
    return found


def _operation(sign: str, name: str, right: Node) -> tuple[str, Node] | None:
    """Operator and operand of `acc += e`, `acc = acc + e`, `acc = e + acc`, `acc *= e`, `acc = fmaxf(acc, e)`."""
    if sign in ("+=", "*="):
        return sign[0], right
    if sign != "=":
        return None
    for operator in ("+", "*"):
        if right.type == "binary_expression":
            terms = [right.child_by_field_name("left"), right.child_by_field_name("right")]
            own = right.child_by_field_name("operator")
            if own is not None and text(own) == operator:
                for this, other in (terms, terms[::-1]):
                    if this is not None and other is not None and text(this) == name and name not in names(other):
                        return operator, other
    if right.type == "call_expression":
        function, arguments = right.child_by_field_name("function"), right.child_by_field_name("arguments")
        if (
            function is not None
            and arguments is not None
            and text(function) in _EXTREMA
            and len(children(arguments)) == 2
        ):
            a, b = children(arguments)
            for this, other in ((a, b), (b, a)):
                if text(this) == name and name not in names(other):
                    return text(function), other
    return None


def _local_type(site: Site, name: str, before: Node) -> str | None:
    """The type of a scalar local of the kernel that is declared once, before the loop."""
    found = []
    for node in walk(site.body):
        if node.type == "declaration" and name in [d for d, _ in declarators(node)]:
            found.append((declared_type(node), node.end_byte <= before.start_byte))
    if (
        len(found) != 1
        or not found[0][1]
        or found[0][0] not in (*_FLOATING, "int", "unsigned", "unsigned int", "long long")
    ):
        return None
    return found[0][0]


def _split(site: Site, loop: StrideLoop, found: dict[str, tuple[str, str, str]], parts: int) -> Edit:
    indent = site.indent_at(loop.node.start_byte)
    unit = "\t" if indent.startswith("\t") else "    "
    taken: list[str] = []

    def name_for(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    copies = {acc: [acc] + [name_for(f"{acc}_{p}") for p in range(1, parts)] for acc in found}
    lines = [
        f"{kind} {', '.join(f'{c} = {identity}' for c in copies[acc][1:])};"
        for acc, (kind, _, identity) in found.items()
    ]
    step = loop.step
    if not re.fullmatch(r"\d+", step):
        step = name_for("step") if not is_plain(step) or definition(site, step) is None else step
        if step != loop.step:
            lines.append(f"const {loop.type} {step} = {loop.step};")
    variable, bound = loop.variable, text(loop.bound)
    lines.append(f"{loop.type} {variable} = {text(loop.start)};")
    ahead = _times(parts - 1, step)
    bound = grouped_text(bound)
    within = f"{variable} + {ahead} < {bound}"
    if not is_wide(loop.type) and _far(site, loop):  # the last of the indices may lie beyond 2^32
        within = f"{variable} < {name_for('end')}"
        end = f"static_cast<long long>({text(loop.bound)}) - static_cast<long long>({step}) * {parts - 1}"
        lines.append(f"const {loop.type} {taken[-1]} = max({end}, 0LL);")
    start, kept = _kept_pragma(loop.node, parts)
    lines += kept
    lines.append(f"for (; {within}; {variable} += {_times(parts, step)}) {{")
    statements = children(loop.body) if loop.body.type == "compound_statement" else [loop.body]
    braces = any(s.type == "declaration" for s in statements)
    for part in range(parts):
        changes: list[tuple[int, int, str]] = []
        if part:
            changes += [
                (low, high, ahead if _stands_alone(loop.body, low) else f"({ahead})")
                for low, high, ahead in replace_name(loop.body, variable, f"{variable} + {_times(part, step)}")
            ]
            for acc, own in copies.items():
                changes += replace_name(loop.body, acc, own[part])
        body = [
            site.render(s.start_byte, s.end_byte, [c for c in changes if s.start_byte <= c[0] < s.end_byte])
            for s in statements
        ]
        lines += (
            [unit + "{", *(unit * 2 + line for line in body), unit + "}"] if braces else [unit + line for line in body]
        )
    lines.append("}")
    lines.append(f"for (; {variable} < {bound}; {_increment(variable, step)}) {{")
    lines += [unit + site.render(s.start_byte, s.end_byte) for s in statements]
    lines.append("}")
    for acc, (_, operator, _) in found.items():
        rest = copies[acc][1:]
        if operator in ("+", "*"):
            pairs = f" {operator} ".join(rest)
            lines.append(f"{acc} {operator}= {pairs};")
        else:
            lines += [f"{acc} = {operator}({acc}, {copy});" for copy in rest]
    inner = indent + unit
    written_lines = ("\n" + inner).join(lines)
    # A block of its own keeps the loop variable's name out of the code that follows.
    return Edit(Span(start, loop.node.end_byte), "{\n" + inner + written_lines + "\n" + indent + "}")


def _far(site: Site, loop: StrideLoop) -> bool:
    """Whether a step of the loop may be as large as what it runs over: the threads of a grid, or a parameter."""
    update = loop.node.child_by_field_name("update")
    by = update.child_by_field_name("right") if update is not None else None
    step = site.scope.index(by) if by is not None else None
    if loop.step.isdigit():
        return False
    return step is None or bool(step.names() & {"gridDim", *(p.name for p in site.kernel.parameters)})


def _kept_pragma(loop: Node, parts: int) -> tuple[int, list[str]]:
    """Where a loop begins with the pragma above it, and what is left of that for a loop that does `parts` steps in one."""
    start = with_pragma(loop)
    before = loop.prev_sibling
    if before is None or start == loop.start_byte:
        return start, []
    factor = re.fullmatch(r"(#\s*pragma\s+unroll)\s*\(?\s*(\d+)\s*\)?", text(before).strip())
    if factor is None:
        return start, [text(before).strip()]
    left = int(factor[2]) // parts
    return start, [f"{factor[1]} {left}"] if left > 1 else []


def _stands_alone(body: Node, offset: int) -> bool:
    """Whether the name at the offset is a whole index or argument, so that a sum in its place needs no parentheses."""
    node = body.named_descendant_for_byte_range(offset, offset + 1)
    parent = node.parent if node is not None else None
    return parent is not None and parent.type in ("subscript_argument_list", "argument_list")


def _times(count: int, step: str) -> str:
    return str(count * int(step)) if step.isdigit() else step if count == 1 else f"{count} * {step}"


def _increment(variable: str, step: str) -> str:
    return f"++{variable}" if step == "1" else f"{variable} += {step}"
