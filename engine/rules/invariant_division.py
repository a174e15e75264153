"""Integer division and remainder by a value that stays the same: cheaper where the value is known or small.

A GPU has no instruction for them: 32 bits take some twenty instructions and 64 bits about a hundred, a constant divisor
three (T. Granlund and P. Montgomery, "Division by Invariant Integers using Multiplication", PLDI 1994). What the spec's
sizes tell is only ever used behind a test, with the plain division beside it: other sizes stay right.
"""

import re
from dataclasses import dataclass

from engine.cuda.questions import pure, written
from engine.cuda.syntax import THREAD_NAMES, called, children, inside, names, strip, text, tokens, walk
from engine.rewrite import Edit, Node, Proposals, Scope, Site, Span, grouped, proposal
from engine.rules.idioms import StrideLoop, definition, in_parameters, stride_loop, with_pragma

_LOOPS = 4  # proposals for loops of one kernel
# Integer types by bits and sign.
_KINDS: dict[str, tuple[int, bool]] = {
    "int": (32, False), "int32_t": (32, False), "short": (32, False), "signed char": (32, False), "char": (32, False),
    "unsigned": (32, True), "unsigned int": (32, True), "uint32_t": (32, True), "uint": (32, True),
    "unsigned char": (32, False), "uint8_t": (32, False), "unsigned short": (32, False), "uint16_t": (32, False),
    "long long": (64, False), "long": (64, False), "int64_t": (64, False), "ptrdiff_t": (64, False),
    "unsigned long long": (64, True), "unsigned long": (64, True), "uint64_t": (64, True), "size_t": (64, True),
}  # fmt: skip
_WRITTEN = {(32, False): "int", (32, True): "unsigned int", (64, False): "long long", (64, True): "unsigned long long"}
_SUFFIX = {(32, False): "", (32, True): "u", (64, False): "LL", (64, True): "ULL"}
_SIGNS = ("+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>")
_DEPTH = 24


@dataclass(frozen=True)
class _Division:
    """`dividend / divisor` or `dividend % divisor` of integers, the divisor given by the kernel's parameters."""

    node: Node
    dividend: Node
    divisor: Node
    operator: str
    kind: tuple[int, bool]  # bits and sign of the result
    invariant: str  # the divisor over the kernel's parameters


class InvariantDivision:
    """Divisions by invariants: by the spec's sizes, by shifts, in 32 bits (each guarded), or kept up along a loop."""

    name = "invariant_division"
    summary = "Replace integer divisions by invariant values"

    def propose(self, site: Site) -> Proposals:
        if not site.sound or not site.manageable:
            return
        scope = site.scope
        found = [d for n in walk(site.body) if (d := _division(site, scope, n)) is not None]
        if not found:
            return
        yield from self._along_loops(site, scope, found)
        sizes = {d.invariant: [site.value_in(d.invariant, case) for case in site.spec.time] for d in found}
        same = [d for d in found if sizes[d.invariant][0] and len(set(sizes[d.invariant])) == 1]
        if same:
            values = {d.invariant: sizes[d.invariant][0] or 0 for d in same}
            what = " and ".join(f"{_short(i)} is {v}" for i, v in list(values.items())[:2])
            edits = _called(site, same, {i: str(v) for i, v in values.items()}, "constant")
            yield from proposal(
                self.name,
                f"Divide by a constant if {what}",
                site.in_file(*edits),
                0.4,
                form="constant",
                divisions=len(same),
            )
        powers = [d for d in found if d not in same and all(v and v & (v - 1) == 0 for v in sizes[d.invariant])]
        if powers:
            yield from proposal(
                self.name,
                "Shift and mask if a divisor is a power of two",
                site.in_file(*_called(site, powers, {}, "shift")),
                0.35,
                form="shift",
                divisions=len(powers),
            )
        wide = [d for d in found if d.kind[0] == 64]
        if wide:
            yield from proposal(
                self.name,
                "Divide in 32 bits if the values fit",
                site.in_file(*_called(site, wide, {}, "narrow")),
                0.4,
                form="narrow",
                divisions=len(wide),
            )

    def _along_loops(self, site: Site, scope: Scope, found: list[_Division]) -> Proposals:
        """Quotient and remainder of a loop variable go along with it instead of being divided for each time."""
        count = 0
        for node in walk(site.body):
            loop = stride_loop(node)
            edits = _incremental(site, scope, loop, found) if loop is not None and count < _LOOPS else None
            if edits is None or loop is None:
                continue
            count += 1
            line = site.unit.line_of(node.start_byte)
            yield from proposal(
                self.name,
                f"Update quotient and remainder of {loop.variable} incrementally in the loop at line {line}",
                site.in_file(*edits),
                0.4,
                form="incremental",
                line=line,
            )


def _short(expression: str) -> str:
    return re.sub(r"(?<!\w)\((\w+)\)", r"\1", expression)


def _division(site: Site, scope: Scope, node: Node) -> _Division | None:
    if node.type != "binary_expression":
        return None
    sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
    if sign is None or left is None or right is None or text(sign) not in ("/", "%"):
        return None
    above, below = _kind(site, scope, left), _kind(site, scope, right)
    if above is None or below is None or site.constant(right) is not None or not pure(node):
        return None
    invariant = in_parameters(site, right)
    if invariant is None or not names(right) or b"//" in site.unit.data[left.end_byte : right.start_byte]:
        return None
    # In a declaration of a shared array, or of a constant, a call cannot stand.
    if b"/*" in site.unit.data[left.end_byte : right.start_byte] or _in_extent(node):
        return None
    return _Division(node, left, right, text(sign), _common(above, below), invariant)


def _in_extent(node: Node) -> bool:
    above = node.parent
    while above is not None and above.type not in ("compound_statement", "declaration"):
        if above.type in ("array_declarator", "case_statement", "template_argument_list"):
            return True
        above = above.parent
    return above is not None and above.type == "declaration" and "constexpr" in text(above).split("=")[0]


def _common(left: tuple[int, bool], right: tuple[int, bool]) -> tuple[int, bool]:
    """The type of an operation between two integers (C++17, "usual arithmetic conversions")."""
    if left[0] == right[0]:
        return left[0], left[1] or right[1]
    return max(left, right)


def _kind(site: Site, scope: Scope, node: Node, depth: int = 0) -> tuple[int, bool] | None:
    """Bits and sign of an expression's integer type; None for what is no integer, or not known to be one."""
    if depth > _DEPTH:
        return None
    if node.type == "parenthesized_expression" and len(children(node)) == 1:
        return _kind(site, scope, children(node)[0], depth + 1)
    if node.type == "number_literal":
        match = re.fullmatch(r"(?:0[xX][\da-fA-F]+|\d+)([uUlL]*)", text(node))
        return ((64 if "l" in match[1].lower() else 32), "u" in match[1].lower()) if match else None
    if node.type == "identifier":
        return _variable(site, scope, node, depth)
    if node.type == "field_expression":
        owner = node.child_by_field_name("argument")
        return (32, True) if owner is not None and text(owner) in THREAD_NAMES else None
    if node.type == "binary_expression":
        sign, left, right = (node.child_by_field_name(f) for f in ("operator", "left", "right"))
        if sign is None or left is None or right is None or text(sign) not in _SIGNS:
            return None
        first, second = _kind(site, scope, left, depth + 1), _kind(site, scope, right, depth + 1)
        if first is None or second is None:
            return None
        return first if text(sign) in ("<<", ">>") else _common(first, second)
    if node.type == "cast_expression":
        kind = node.child_by_field_name("type")
        return _KINDS.get(_bare(text(kind))) if kind is not None else None
    if node.type == "call_expression":
        match = re.match(r"static_cast\s*<([^<>]*)>\s*\(", text(node))
        written_type = match[1] if match else called(node)
        return _KINDS.get(_bare(written_type))
    if node.type == "subscript_expression":
        array = node.child_by_field_name("argument")
        parameter = scope.parameters.get(text(array)) if array is not None else None
        if array is None or parameter is None or scope.lookup(text(array), array) is not None:
            return None
        return _KINDS.get(_bare(parameter.base)) if parameter.type.count("*") == 1 else None
    return None


def _variable(site: Site, scope: Scope, node: Node, depth: int) -> tuple[int, bool] | None:
    name = text(node)
    declared = scope.lookup(name, node)
    if declared is not None:
        if declared.shape != "scalar":
            return None
        if "auto" in declared.type.split():
            return _kind(site, scope, declared.value, depth + 1) if declared.value is not None else None
        return _KINDS.get(_bare(declared.type))
    parameter = scope.parameters.get(name)
    if parameter is not None:
        return _KINDS.get(_bare(parameter.base)) if not parameter.pointer else None
    return (32, False) if site.constant(node) is not None else None


def _bare(written_type: str) -> str:
    words = [w for w in written_type.replace("std::", "").split() if w not in ("const", "constexpr", "register")]
    return " ".join(words)


def _called(site: Site, found: list[_Division], values: dict[str, str], form: str) -> list[Edit]:
    """Each division as a call of a helper that tests before it takes the short way."""
    helpers: dict[tuple[str, tuple[int, bool], str], str] = {}
    texts: list[str] = []
    opening: dict[int, str] = {}
    closing: dict[int, int] = {}
    edits: list[Edit] = []
    for division in found:
        value = values.get(division.invariant, "")
        key = (division.operator, division.kind, value)
        if key not in helpers:
            # The C library has a function remainder.
            base = ("quotient" if division.operator == "/" else "remainder") + (f"_{value}" if value else "_by")
            helpers[key] = site.fresh(base, list(helpers.values()))
            texts.append(_helper(helpers[key], division, value, form))
        start, end = division.node.start_byte, division.node.end_byte
        opening[start] = opening.get(start, "") + f"{helpers[key]}("
        closing[end] = closing.get(end, 0) + 1
        edits.append(Edit(Span(division.dividend.end_byte, division.divisor.start_byte), ", "))
    edits += [Edit.insert(at, added) for at, added in opening.items()]
    edits += [Edit.insert(at, ")" * times) for at, times in closing.items()]
    first = site.declaration_start
    return [Edit.insert(first, "".join(texts)), *edits]


def _helper(name: str, division: _Division, value: str, form: str) -> str:
    kind, operator = _WRITTEN[division.kind], division.operator
    bits, unsigned = division.kind
    plain = f"value {operator} by"
    if form == "constant":
        literal = value + _SUFFIX[division.kind]
        said = f"value {operator} by, without a division where `by` is {value}."
        test, short = f"by == {literal}", f"value {operator} {literal}"
    elif form == "shift":
        said = f"value {operator} by, without a division where `by` is a power of two."
        test = "by != 0 && (by & (by - 1)) == 0" if unsigned else "value >= 0 && by > 0 && (by & (by - 1)) == 0"
        lowest = "(__ffsll(static_cast<long long>(by)) - 1)" if bits == 64 else "(__ffs(static_cast<int>(by)) - 1)"
        short = f"value >> {lowest}" if operator == "/" else "value & (by - 1)"
    else:
        said = f"value {operator} by, in 32 bits where both fit."
        joined = "value | by" if unsigned else "static_cast<unsigned long long>(value | by)"
        test = f"({joined}) >> 32 == 0" if unsigned else f"{joined} >> 32 == 0"
        short = f"static_cast<unsigned int>(value) {operator} static_cast<unsigned int>(by)"
    return (
        f"// {said}\n__device__ __forceinline__ {kind} {name}({kind} value, {kind} by) {{\n"
        f"    if ({test}) {{\n        return {short};\n    }}\n    return {plain};\n}}\n\n"
    )


def _incremental(site: Site, scope: Scope, loop: StrideLoop, found: list[_Division]) -> list[Edit] | None:
    """The loop with quotient and remainder of its variable carried along; None where it has none or may skip its end."""
    mine = [
        d for d in found
        if inside(d.node, loop.body) and text(strip(d.dividend)) == loop.variable
        and scope.lookup(loop.variable, d.node) == scope.lookup(loop.variable, loop.body)
    ]  # fmt: skip
    kind = _KINDS.get(_bare(loop.type))
    parent = loop.node.parent
    if not mine or kind is None or loop.body.type != "compound_statement" or parent is None:
        return None
    if parent.type != "compound_statement" or any(n.type == "continue_statement" for n in walk(loop.body)):
        return None
    divisor = mine[0].divisor
    mine = [d for d in mine if tokens(strip(d.divisor)) == tokens(strip(divisor))]
    steady = names(divisor) | names(loop.start)
    if steady & written(loop.node) or any(d.kind != kind for d in mine):
        return None
    for name in names(divisor):
        if scope.lookup(name, divisor) != scope.lookup(name, loop.node):
            return None
    if not _counts_up(site, loop) or not all(_kind(site, scope, n) for n in (loop.start, divisor)):
        return None
    taken: list[str] = []

    def name_for(base: str) -> str:
        taken.append(site.fresh(base, taken))
        return taken[-1]

    kind_text, by = loop.type, grouped(strip(divisor))
    quotient, remainder = name_for(f"{loop.variable}_quotient"), name_for(f"{loop.variable}_remainder")
    outer = site.indent_at(loop.node.start_byte)
    inner = site.indent_at(children(loop.body)[0].start_byte) if children(loop.body) else outer + site.indent_unit
    first = text(loop.start) if loop.start.type == "number_literal" else f"static_cast<{kind_text}>({text(loop.start)})"
    head = [f"{kind_text} {quotient} = {first} / {by};", f"{kind_text} {remainder} = {first} % {by};"]
    if loop.step == "1":
        tail = [f"if (++{remainder} == {by}) {{", f"    {remainder} = 0;", f"    ++{quotient};", "}"]
    else:
        by_quotient, by_remainder = name_for(f"{loop.variable}_step"), name_for(f"{loop.variable}_rest")
        step = f"static_cast<{kind_text}>({loop.step})"
        head.append(f"const {kind_text} {by_quotient} = {step} / {by};")
        head.append(f"const {kind_text} {by_remainder} = {step} % {by};")
        tail = [
            f"{quotient} += {by_quotient};",
            f"{remainder} += {by_remainder};",
            f"if ({remainder} >= {by}) {{",
            f"    {remainder} -= {by};",
            f"    ++{quotient};",
            "}",
        ]
    start = with_pragma(loop.node)
    last = children(loop.body)[-1].end_byte
    edits = [Edit.insert(start, "".join(f"{line}\n{outer}" for line in head))]
    edits += [Edit.replace(d.node, quotient if d.operator == "/" else remainder) for d in mine]
    return [*edits, Edit.insert(last, "".join(f"\n{inner}{line}" for line in tail))]


def _counts_up(site: Site, loop: StrideLoop) -> bool:
    """Whether start and step are made of what is never negative: numbers and the threads' and blocks' places."""

    def fine(node: Node | None, depth: int = 0) -> bool:
        if node is None or depth > _DEPTH:
            return False
        node = strip(node)
        if node.type == "number_literal":
            return True
        if node.type == "identifier":
            return site.constant(node) is not None or fine(definition(site, text(node)), depth + 1)
        if node.type == "field_expression":
            return text(node.child_by_field_name("argument") or node) in THREAD_NAMES
        if node.type == "binary_expression" and text(node.child_by_field_name("operator") or node) in (
            "+",
            "*",
            "/",
            "%",
        ):
            return all(fine(node.child_by_field_name(f), depth + 1) for f in ("left", "right"))
        return False

    update = loop.node.child_by_field_name("update")
    if loop.step == "1" or update is None:
        return fine(loop.start) and loop.step == "1"
    by = update.child_by_field_name("right")
    return fine(loop.start) and fine(by) and text(update.child_by_field_name("operator") or update) == "+="
