"""Two passes over the same elements become one.

A sum of exponentials is kept relative to the largest value so far and rescaled when that grows (Milakov and
Gimelshein, "Online normalizer calculation for softmax", 2018). A sum of squared deviations is kept around the mean of
the first 1, 2, 4, 8 ... values (as Welford, 1962, around the mean so far, with a division for each): around the first
value alone it loses digits where that is an outlier. What a thread has is then moved to the reference that the second
pass used, whatever lies between the passes: nothing, or a reduction over the threads that share the row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from engine.cuda.questions import assigned, declarators, declared_type, pure_value, written
from engine.cuda.syntax import called, children, inside, names, text, walk
from engine.rewrite import Declared, Edit, Node, Pattern, Proposals, Scope, Site, proposal, template

Kind = Literal["exponentials", "squares"]
_EXPONENTIALS = frozenset({"expf", "exp", "__expf", "exp2f", "exp2", "hexp"})
_MAXIMA = frozenset({"fmaxf", "fmax", "max"})
_POWERS = frozenset({"powf", "pow", "__powf"})
_FLOATS = frozenset({"float", "double"})
_LOOP = Pattern("for ($I $i = $start; $condition; $update) $body;")
_SUM = Pattern("$s += $v")
_LARGEST = Pattern(
    "if ($v > $s) $s = $v;", "if ($v >= $s) $s = $v;", "$s = $v > $s ? $v : $s", "$s = $v >= $s ? $v : $s",
    "$s = $f($s, $v)", "$s = $f($v, $s)",
)  # fmt: skip
_SCALED, _SCALED_LEFT = Pattern("$x * $k", "$x / $k"), Pattern("$k * $x")
_SQUARE = Pattern("$x * $y", *(f"$f($x, {two})" for two in ("2", "2.f", "2.0", "2.0f", "2.")))
_CALL = Pattern("$f($x)")
_DIFFERENCE = Pattern("$x - $m")


@dataclass(frozen=True)
class PassLoop:
    """A counted `for` loop with one statement besides declarations, which adds to (or raises) one variable."""

    node: Node
    variable: str
    start: Node
    condition: Node
    update: Node
    statement: Node
    target: str
    declared: Declared
    operation: Literal["max", "sum"]
    value: Node  # what is combined into the target
    values: dict[str, Node]  # the variables that the body declares


@dataclass(frozen=True)
class Passes:
    """Loop `second` sums a function of each value and of `reference`, which is known only after loop `first`.

    `value` is the C text of an element in the first loop, `type` that of the sums. For exponentials, `function` and
    `scale` (with `@` for the difference) say what is summed, e.g. "expf" and "@ * 0.125f"; for squares `factor` is what
    each one is multiplied with ("" for 1, else " / cols"). `kept` says that the first loop's target is still unchanged
    where the second begins.
    """

    kind: Kind
    first: PassLoop
    second: PassLoop
    value: str
    type: str
    reference: str
    function: str
    scale: str
    factor: str
    kept: bool


class OnePass:
    """Maximum and sum of exponentials, or mean and variance, in one loop over the row."""

    name = "one_pass"
    summary = "Merge two passes over a row into one"

    def propose(self, site: Site) -> Proposals:
        for number, found in enumerate(passes(site)):
            if found.kind == "exponentials":
                summary = "Online softmax: maximum and sum of exponentials in one pass"
                form, snippet = "online", "online_exponentials"
            else:
                summary = "Sum values and squared deviations in one pass"
                form, snippet = "shifted", "shifted_squares"
            edits = site.in_file(*_rewrite(site, found, snippet))
            yield from proposal(self.name, summary, edits, 0.6, form=form, loop=number)


def _rewrite(site: Site, found: Passes, snippet: str) -> list[Edit]:
    first, second, unit = found.first, found.second, site.indent_unit
    before, each, after, instead = _written(site, found, snippet)
    inner = site.indent_at(first.statement.start_byte)
    outer = site.indent_at(first.node.start_byte)
    statement = text(first.statement) if found.kind == "squares" else ""
    lines = ([site.render(first.statement.start_byte, first.statement.end_byte)] if statement else []) + each
    body = first.statement.parent
    if body is not None and body.type == "compound_statement":
        loop = Edit.replace(first.statement, f"\n{inner}".join(lines))
    else:
        deep = outer + unit
        loop = Edit.replace(first.statement, "{\n" + "".join(f"{deep}{x}\n" for x in lines) + f"{outer}}}")
    start = first.node.start_byte
    above = first.node.prev_sibling
    if above is not None and above.type == "preproc_call":  # an unroll pragma
        start = above.start_byte
    edits = [
        Edit.insert(start, "".join(f"{x}\n{outer}" for x in before)),
        Edit.replace(first.start, text(second.start)),
        loop,
    ]
    if after:
        edits.append(Edit.insert(first.node.end_byte, "".join(f"\n{outer}{x}" for x in after)))
    pragma = second.node.prev_sibling
    if pragma is not None and pragma.type == "preproc_call":
        edits.append(Edit(site.line_span(pragma), ""))
    edits.append(Edit.replace(second.node, f"\n{site.indent_at(second.node.start_byte)}".join(instead)))
    return edits


def _written(site: Site, found: Passes, snippet: str) -> tuple[list[str], list[str], list[str], list[str]]:
    """Lines before the first loop, in it, after it, and instead of the second loop."""
    single = found.type == "float"
    form = template("engine.rules", snippet)
    values = {f"{name}": number + "f" * single for name, number in (("zero", "0.0"), ("one", "1.0"), ("two", "2.0"))}
    values |= {"T": found.type, "element": found.value, "reference": found.reference, "target": found.second.target}
    values |= {"open": "(" if found.factor else "", "close": f"){found.factor}" if found.factor else ""}
    values |= {"largest": found.first.target, "smaller": "", "moved": ""} if found.kind == "exponentials" else {}
    for hole in form.holes:
        if hole not in values:
            values[hole] = site.fresh(hole, list(values.values()))
    after = []
    if found.kind == "exponentials":
        value, largest, f = values["value"], values["largest"], "f" * single
        # Equal infinities, which would make their difference no number, are told apart; minima and maxima would drop a NaN.
        values["smaller"] = _exponential(found, f"-fabs{f}({value} - {largest})")
        own = largest if found.kept else site.fresh("own", list(values.values()))
        after = [] if found.kept else [f"const {found.type} {own} = {largest};"]
        values["moved"] = "" if own == found.reference else f" * {_exponential(found, f'{own} - {found.reference}')}"
    parts = {name: part.render(**values).splitlines() for name, part in form.sections().items()}
    return parts["before"], parts["each"], after, parts["instead"]


def _exponential(found: Passes, difference: str) -> str:
    return f"{found.function}({difference if found.scale == '@' else found.scale.replace('@', f'({difference})')})"


def passes(site: Site) -> Iterator[Passes]:
    """Every such pair of loops that stand in one block, in order of text."""
    if not site.sound or not site.manageable:
        return
    scope = site.scope
    shared = {s.name for s in site.kernel.shared}
    for block in walk(site.body):
        if block.type != "compound_statement":
            continue
        loops = [loop for child in children(block) if (loop := _loop(scope, child)) is not None]
        for k, first in enumerate(loops):
            for second in loops[k + 1 :]:
                found = _pair(scope, shared, first, second)
                if found is not None:
                    yield found
                    break


def _loop(scope: Scope, node: Node) -> PassLoop | None:
    found = _LOOP.match(node)
    if found is None or text(found["i"]) in written(found["body"]):
        return None
    *declarations, last = children(found["body"]) if found["body"].type == "compound_statement" else [found["body"]]
    if any(s.type != "declaration" or not pure_value(s) for s in declarations):
        return None
    values: dict[str, Node] = {}
    for statement in declarations:
        for name, value in declarators(statement):
            if not name or value is None or name in values or declared_type(statement) not in (*_FLOATS, "int", "auto"):
                return None
            values[name] = value
    operation: Literal["max", "sum"] = "max"
    combined = _LARGEST.match(last, f=lambda n: text(n).removeprefix("std::") in _MAXIMA)
    if combined is None:
        operation, combined = "sum", _SUM.match(last)
    if combined is None or combined["s"].type != "identifier" or not pure_value(combined["v"]):
        return None
    target, value = text(combined["s"]), combined["v"]
    declared = scope.lookup(target, node)
    if declared is None or declared.shape != "scalar" or inside(declared.node, node) or declared.type not in _FLOATS:
        return None
    if target in values or target in names(found["condition"]) or target in names(value):
        return None
    parts = (text(found["i"]), found["start"], found["condition"], found["update"])
    return PassLoop(node, *parts, last, target, declared, operation, value, values)


def _bare(node: Node) -> Node:
    while node.type in ("parenthesized_expression", "condition_clause") and len(children(node)) == 1:
        node = children(node)[0]
    return node


def _pair(scope: Scope, shared: set[str], first: PassLoop, second: PassLoop) -> Passes | None:
    if second.operation != "sum" or first.declared == second.declared:
        return None
    if _header(scope, first) != _header(scope, second):
        return None
    starts = [_canonical(scope, loop, loop.start) for loop in (first, second)]
    if starts[0] != starts[1] and not (first.operation == "max" and _one_later(scope, first, second)):
        return None
    between = _between(first.node, second.node)
    if _stores(between, shared):
        return None
    changed = {n for s in between for n in written(s)}
    needed = names(first.node) - {first.variable, first.target, *first.values}
    if needed & changed or any(
        scope.lookup(n, first.node) != scope.lookup(n, second.node) for n in needed & names(second.node)
    ):
        return None
    value = _canonical(scope, first, first.value)
    if "[" not in value and "element" not in value:
        return None
    matched = _summed(scope, second, value)
    if matched is None or (matched[0] == "exponentials") != (first.operation == "max"):
        return None
    kind, reference, function, scale, factor = matched
    known = scope.lookup(reference, second.node)
    if known is None or known.shape != "scalar" or reference == second.target:
        return None
    for part in (scale, factor):
        used = {w for w in part.replace("@", " ").replace("(", " ").replace(")", " ").split() if w.isidentifier()}
        # What scales the difference must be the same, and known, before the first loop.
        if used & changed or any(scope.lookup(w, first.node) != scope.lookup(w, second.node) for w in used):
            return None
    kept = first.target not in changed
    return Passes(kind, first, second, text(first.value), first.declared.type, reference, function, scale, factor, kept)


def _between(first: Node, second: Node) -> list[Node]:
    found = []
    node = first.next_named_sibling
    while node is not None and node != second:
        found.append(node)
        node = node.next_named_sibling
    return found


def _stores(statements: list[Node], shared: set[str]) -> bool:
    """Whether the statements may change an array in global memory."""
    for statement in statements:
        for node in walk(statement):
            target = assigned(node)
            target = _bare(target) if target is not None else None
            if target is None or target.type == "identifier":
                continue
            base = target.child_by_field_name("argument")
            if target.type != "subscript_expression" or base is None or text(base) not in shared:
                return True
    return False


def _header(scope: Scope, loop: PassLoop) -> tuple[str, str]:
    update = text(loop.update).replace(" ", "").replace(loop.variable, "#")
    update = "#++" if update in ("++#", "#+=1") else update
    return _canonical(scope, loop, loop.condition), update


def _one_later(scope: Scope, first: PassLoop, second: PassLoop) -> bool:
    """Whether the first loop leaves out the element that its target starts from."""
    a, b = scope.index(first.start), scope.index(second.start)
    return a is not None and b is not None and a.plus(b, -1).constant == 1


def _canonical(scope: Scope, loop: PassLoop, node: Node) -> str:
    """The expression in one spelling: the counter as `#`, the body's variables by their values, elements by number."""
    node = _bare(node)
    if node.type == "identifier":
        name = text(node)
        if name == loop.variable:
            return "#"
        return _canonical(scope, loop, loop.values[name]) if name in loop.values else name
    if node.type == "subscript_expression":
        origin = scope.element(node)
        if origin is not None and origin[1] is not None and not set(loop.values) & origin[1].names():
            return f"element({origin[0]}, {origin[1].renamed(loop.variable, '#').render()})"
    left, sign, right = (node.child_by_field_name(f) for f in ("left", "operator", "right"))
    if node.type == "binary_expression" and left is not None and sign is not None and right is not None:
        return f"({_canonical(scope, loop, left)} {text(sign)} {_canonical(scope, loop, right)})"
    if not node.children:
        return text(node)
    return " ".join(_canonical(scope, loop, c) for c in node.children if c.type != "comment")


def _summed(scope: Scope, loop: PassLoop, value: str) -> tuple[Kind, str, str, str, str] | None:
    """(kind, reference, function, scale, factor) of what the loop adds; None where it is neither kind."""

    def fixed(node: Node) -> bool:
        return node.type != "binary_expression" and _outside(loop, node)

    node = _value_of(loop, loop.value)
    squares = _squares(scope, loop, node, value)
    if squares is not None:
        return "squares", squares, "", "@", ""
    scaled = _SCALED.match(node, k=fixed)
    squares = _squares(scope, loop, _value_of(loop, scaled["x"]), value) if scaled is not None else None
    if scaled is not None and squares is not None:
        return "squares", squares, "", "@", f" {_operator(node)} {text(scaled['k'])}"
    call = _CALL.match(node)
    if call is None or called(node) not in _EXPONENTIALS:
        return None
    inner, function = _value_of(loop, call["x"]), text(call["f"])
    reference = _deviation(scope, loop, inner, value)
    if reference is not None:
        return "exponentials", reference, function, "@", ""
    for pattern, scale in ((_SCALED, "@ {} {}"), (_SCALED_LEFT, "{1} {0} @")):
        scaled = pattern.match(inner, k=fixed)
        reference = _deviation(scope, loop, _value_of(loop, scaled["x"]), value) if scaled is not None else None
        if scaled is not None and reference is not None:
            return "exponentials", reference, function, scale.format(_operator(inner), text(scaled["k"])), ""
    return None


def _operator(node: Node) -> str:
    return text(node.child_by_field_name("operator") or node)


def _squares(scope: Scope, loop: PassLoop, node: Node, value: str) -> str | None:
    """The reference of a squared deviation."""
    square = _SQUARE.match(node, f=lambda n: text(n).removeprefix("std::") in _POWERS)
    sides = [side for name, side in square.items() if name != "f"] if square is not None else []
    found = {_deviation(scope, loop, _value_of(loop, side), value) for side in sides}
    return found.pop() if len(found) == 1 else None


def _value_of(loop: PassLoop, node: Node) -> Node:
    node = _bare(node)
    steps = 0
    while node.type == "identifier" and text(node) in loop.values and steps < 8:
        node, steps = _bare(loop.values[text(node)]), steps + 1
    return node


def _deviation(scope: Scope, loop: PassLoop, node: Node, value: str) -> str | None:
    """The name subtracted from the element: `m` of `x[i] - m`."""
    found = _DIFFERENCE.match(node)
    reference = _bare(found["m"]) if found is not None else node
    if found is None or reference.type != "identifier" or text(reference) in {loop.variable, *loop.values}:
        return None
    return text(reference) if _canonical(scope, loop, found["x"]) == value else None


def _outside(loop: PassLoop, node: Node) -> bool:
    return (
        pure_value(node)
        and not names(node) & {loop.variable, *loop.values}
        and not any(n.type in ("call_expression", "subscript_expression") for n in walk(node))
    )
