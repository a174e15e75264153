"""Recognises a convolution layer with one thread for each output: a sum over channels, rows and columns of a filter.

`out[n][k][y][x] = f(sum of in[n][c][y * stride + dy][x * stride + dx] * filters[k][c][dy][dx])`, with or without tests for the border.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.cuda.questions import Polynomial, number, pure_value, variables, written
from engine.cuda.syntax import children, inside, operands, strip, text, walk
from engine.rewrite import ElementAccess, Node, Pattern, Scope, Site, once
from engine.rules.idioms import Grids, StrideLoop, inclusive_loop, stride_loop
from engine.rules.idioms.digits import Decoded, complete, decoded, extents, kept_names, quotient

_UPDATE = Pattern("$s += $a * $b;", "$s = fmaf($a, $b, $s);", "$s = __fmaf_rn($a, $b, $s);")
_ELEMENTS = frozenset({"float", "double"})
_WIDEST = 11  # rows and columns of a filter: each of its products is a line of unrolled code


@dataclass(frozen=True)
class ImageAxis:
    """One axis of the image: input place = stride * output + step * tap + first, for `taps` taps from 0 on.

    `size` is the number of places to test for (None: every place of an output below `extent` is in the image); `below` says whether
    places may be negative.
    """

    name: str
    type: str
    extent: Polynomial
    stride: int
    step: int
    taps: int
    first: Polynomial
    size: Polynomial | None
    below: bool


@dataclass(frozen=True)
class Tensor:
    """An array of which an element is `base + channel * i + row * j + column * k` (+ `output` * output channel)."""

    array: str
    element: str
    base: Polynomial
    channel: Polynomial
    row: Polynomial
    column: Polynomial
    output: Polynomial


@dataclass(frozen=True)
class Convolution:
    """A kernel of that form. `assumed` are parameters and the values that they have in every case: to be tested.

    `nest` adds up `target`, of type `sum_type`; `outputs` names the output channel and `images` what is left, each with its extent.
    """

    site: Site
    found: Decoded
    nest: Node
    target: str
    sum_type: str
    x: ImageAxis
    y: ImageAxis
    channels: Polynomial
    image: Tensor
    filters: Tensor
    outputs: tuple[str, Polynomial] | None
    images: tuple[str, Polynomial] | None
    assumed: Mapping[str, int]

    @property
    def chosen(self) -> tuple[str, ...]:
        """The variables that say which output a thread computes."""
        others = (pair[0] for pair in (self.outputs, self.images) if pair is not None)
        return self.x.name, self.y.name, *others


@dataclass(frozen=True)
class _Loop:
    """One loop of the nest, counted from 0 to `count`; its variable is `first` more."""

    name: str
    first: int
    count: Polynomial


@dataclass(frozen=True)
class _Sum:
    """What the nest does: factors of the products and tests of the border."""

    target: Node
    factors: tuple[Node, Node]
    tests: tuple[tuple[Polynomial, str], ...]  # (place, what is tested of it: "low" or the exclusive bound as C text)
    bounds: Mapping[str, Polynomial]


@once
def convolution(site: Site) -> Convolution | None:
    """The kernel as a convolution; None where it has another form."""
    if (
        not site.sound
        or not site.manageable
        or site.kernel.shared
        or not site.launch_visible
        or not site.pointers_distinct
    ):
        return None
    if not site.local_only(site.body, site.type_names):
        return None
    loops = [n for n in walk(site.body) if n.type in ("for_statement", "while_statement", "do_statement")]
    nest = loops[0] if 2 <= len(loops) <= 3 and all(inside(n, loops[0]) for n in loops) else None
    found = decoded(site, nest) if nest is not None else None
    if nest is None or found is None or _jumps(site, nest):
        return None
    counted = [stride_loop(n) or inclusive_loop(n) for n in loops]
    variables_ = {loop.variable for loop in counted if loop is not None}
    scope = Scope(site.unit, site.kernel, kept_names(site) | found.digits.keys() | variables_)
    assumed: dict[str, int] = {}
    known = _CaseValues(site, assumed)
    chain = [_counted(scope, known, loop) for loop in counted if loop is not None]
    sum_ = _summed(scope, nest)
    if sum_ is None or len(chain) != len(loops) or any(loop is None for loop in chain):
        return None
    form = _Form(site, scope, found, known, nest, sum_, dict(assumed))
    return form.match([loop for loop in chain if loop is not None])


def _jumps(site: Site, nest: Node) -> bool:
    if any(n.type in ("return_statement", "break_statement", "goto_statement", "switch_statement") for n in walk(nest)):
        return True
    return any(n.type in ("goto_statement", "switch_statement", "break_statement") for n in walk(site.body))


@dataclass
class _CaseValues:
    """Numbers that parameters have in every case; those that are used are noted in `assumed`."""

    site: Site
    assumed: dict[str, int]

    def number(self, value: Polynomial) -> int | None:
        """The value as a number, with the values that its names have in all cases."""
        given: dict[str, int] = {}
        for name in value.names():
            shown = self.site.unit.macros.get(name, self.site.unit.constants.get(name, ""))
            if shown.strip().isdigit():
                given[name] = int(shown)
                continue
            values = {self.site.scalar_values(case).get(name) for case in self.site.cases}
            one = next(iter(values)) if len(values) == 1 else None
            if not isinstance(one, int) or name in written(self.site.body):
                return None
            given[name] = self.assumed[name] = one
        total = 0
        for product, factor in value.terms.items():
            for part in product:
                if part not in given:
                    return None
                factor *= given[part]
            total += factor
        return total


def _counted(scope: Scope, known: _CaseValues, loop: StrideLoop) -> _Loop | None:
    first, bound = scope.index(loop.start), scope.index(loop.bound)
    start = known.number(first) if first is not None else None
    if loop.step != "1" or start is None or bound is None:
        return None
    last = 1 if stride_loop(loop.node) is None else 0
    return _Loop(loop.variable, start, bound.plus(number(last - start)))


def _summed(scope: Scope, nest: Node) -> _Sum | None:
    """The products that the nest adds up, and the tests before them."""
    values: dict[str, Node] = {}
    tests: list[tuple[Polynomial, str]] = []
    bounds: dict[str, Polynomial] = {}

    def note(condition: Node | None, *, negated: bool) -> bool:
        for part in operands(condition, "||" if negated else "&&") if condition is not None else ():
            one = _test(scope, part, negated=negated)
            if one is None:
                return False
            tests.append((one[0], one[1].render() if one[1] is not None else "low"))
            if one[1] is not None:
                bounds[one[1].render()] = one[1]
            if one[2]:
                tests.append((one[0], "low"))
        return condition is not None

    node: Node | None = nest
    while node is not None:
        if node.type == "for_statement":
            node = node.child_by_field_name("body")
        elif node.type == "if_statement":
            if node.child_by_field_name("alternative") is not None or not note(
                node.child_by_field_name("condition"), negated=False
            ):
                return None
            node = node.child_by_field_name("consequence")
        elif node.type == "compound_statement":
            statements = [s for s in children(node) if s.type != "preproc_call"]
            for statement in statements[:-1]:
                if _leaves(statement, "continue_statement"):
                    if not note(statement.child_by_field_name("condition"), negated=True):
                        return None
                elif statement.type == "declaration" and pure_value(statement):
                    values |= {
                        v.name: v.value for v in variables(statement) if v.shape == "scalar" and v.value is not None
                    }
                else:
                    return None
            node = statements[-1] if statements else None
        elif node.type == "expression_statement":
            update = _UPDATE.match(node)
            if (
                update is None
                or update["s"].type != "identifier"
                or not pure_value(update["a"])
                or not pure_value(update["b"])
            ):
                return None
            one, two = (_factor(scope, values, update[hole]) for hole in ("a", "b"))
            return _Sum(update["s"], (one, two), tuple(tests), bounds) if one is not None and two is not None else None
        else:
            return None
    return None


def leaves_out_again(statement: Node, guards: Sequence[str]) -> bool:
    """Whether the author returns where one of these conditions holds, as text: behind them no check can meet that again."""
    condition = statement.child_by_field_name("condition")
    known = {"".join(guard.split()) for guard in guards}
    return (
        condition is not None
        and _leaves(statement, "return_statement")
        and all("".join(text(part).split()) in known for part in operands(condition, "||"))
    )


def _leaves(statement: Node, kind: str) -> bool:
    """Whether it is an `if` without an `else` that does nothing but end the kernel or a turn of a loop."""
    if statement.type != "if_statement" or statement.child_by_field_name("alternative") is not None:
        return False
    inner = statement.child_by_field_name("consequence")
    while inner is not None and inner.type == "compound_statement" and len(children(inner)) == 1:
        inner = children(inner)[0]
    return inner is not None and inner.type == kind


def _factor(scope: Scope, values: Mapping[str, Node], node: Node) -> Node | None:
    """The element that a factor is, by way of a variable of its type."""
    node = strip(node)
    value = values.get(text(node)) if node.type == "identifier" else None
    if value is not None:
        declared = scope.lookup(text(node), node)
        kind = declared.type.replace("const", "").strip() if declared is not None else ""
        origin = scope.element(strip(value)) if strip(value).type == "subscript_expression" else None
        if origin is None or kind not in ("auto", scope.parameters[origin[0]].base):
            return None
        node = strip(value)
    if node.type == "call_expression" and text(node).startswith("__ldg"):
        node = next((n for n in walk(node) if n.type == "subscript_expression"), node)
    return node if node.type == "subscript_expression" else None


def _test(scope: Scope, part: Node, *, negated: bool) -> tuple[Polynomial, Polynomial | None, bool] | None:
    """(place, exclusive bound, whether it cannot be negative): the bound is None for the test that the place is not negative."""
    part = _unwrapped(part)
    sign, left, right = (part.child_by_field_name(f) for f in ("operator", "left", "right"))
    if part.type != "binary_expression" or sign is None or left is None or right is None:
        return None
    a, b = scope.index(left), scope.index(right)
    if a is None or b is None:
        return None
    operator, opposite = text(sign), {"<": ">=", ">=": "<", ">": "<=", "<=": ">"}
    if operator not in opposite:
        return None
    operator = opposite[operator] if negated else operator
    if operator in (">", "<="):  # the place comes first, or the bound
        a, b, operator, left, right = b, a, {">": "<", "<=": ">="}[operator], right, left
    # Now a < b, or a >= b.
    if operator == ">=":
        return (a, None, False) if b.constant == 0 else None
    if a.constant == -1:
        return b, None, False
    return a, b, "unsigned" in text(left) or "uint" in text(left) or "size_t" in text(left)


def _unwrapped(node: Node) -> Node:
    while node.type in ("parenthesized_expression", "condition_clause") and len(children(node)) == 1:
        node = children(node)[0]
    return node


@dataclass(frozen=True)
class _Axes:
    """Which variables are the axes: outputs x and y, the loops over columns, rows and channels."""

    x: str
    y: str
    column: _Loop
    row: _Loop
    channel: _Loop | None
    known: Mapping[str, Polynomial | None]


@dataclass(frozen=True)
class _Form:
    """The parts of a kernel that may be a convolution."""

    site: Site
    scope: Scope
    found: Decoded
    known: _CaseValues
    nest: Node
    sum: _Sum
    counted: Mapping[str, int]  # what the loops' first values assume

    def match(self, loops: list[_Loop]) -> Convolution | None:
        """The convolution, whichever of the factors is the image."""
        site, declared = self.site, self.scope.lookup(text(self.sum.target), self.sum.target)
        kind = declared.type.replace("const", "").strip() if declared is not None else ""
        if declared is None or declared.shape != "scalar" or kind not in _ELEMENTS or inside(declared.node, self.nest):
            return None
        uses = self.scope.uses(self.scope.body)
        factors = [self.scope.element(node) for node in self.sum.factors]
        arrays = {origin[0] for origin in factors if origin is not None}
        if uses is None or len(arrays) != 2 or any(u.writes and u.array in arrays for u in uses):
            return None
        if len([u for u in uses if inside(u.node, self.nest)]) != 2 or not self._alone(uses):
            return None
        known = extents(site, self.found, Grids.of(site))
        for image, filters in (factors, factors[::-1]):
            form = self._as(image, filters, loops, known) if image is not None and filters is not None else None
            if form is not None:
                return form
        return None

    def _alone(self, uses: list[ElementAccess]) -> bool:
        """Whether nothing but the sum is left of the nest."""
        inner = {v.name for n in walk(self.nest) if n.type == "declaration" for v in variables(n)}
        return bool(uses) and written(self.nest) <= inner | {text(self.sum.target)}

    def _as(
        self,
        image: tuple[str, Polynomial | None],
        filters: tuple[str, Polynomial | None],
        loops: list[_Loop],
        known: Mapping[str, Polynomial | None],
    ) -> Convolution | None:
        at, weight = image[1], filters[1]
        kinds = {self.scope.parameters[array].base for array in (image[0], filters[0])}
        if at is None or weight is None or len(kinds) != 1 or not kinds <= _ELEMENTS:
            return None
        for axes in self._axes(at, loops, known):
            form = self._spanned(image[0], filters[0], at, weight, axes)
            if form is not None:
                return form
        return None

    def _axes(self, at: Polynomial, loops: list[_Loop], known: Mapping[str, Polynomial | None]) -> Iterator[_Axes]:
        entering = [n for n in self.found.digits if n in at.names() and known.get(n) is not None]
        for column in loops:
            for row in loops:
                channel = next((loop for loop in loops if loop not in (row, column)), None)
                if row is column or (channel is None) != (len(loops) == 2):
                    continue
                for x in entering:
                    for y in entering:
                        if x != y:
                            yield _Axes(x, y, column, row, channel, known)

    def _spanned(self, image: str, filters: str, at: Polynomial, weight: Polynomial, axes: _Axes) -> Convolution | None:
        x_part, y_part = at.split(axes.x), at.split(axes.y)
        column, row = at.split(axes.column.name), at.split(axes.row.name)
        if x_part is None or y_part is None or column is None or row is None:
            return None
        self.known.assumed.clear()
        self.known.assumed.update(self.counted)
        x = self._span(axes.x, axes.column, axes, (x_part[0], column[0]))
        y = self._span(axes.y, axes.row, axes, (y_part[0], row[0]))
        if x is None or y is None or x[1] != number(1):
            return None
        entering = {axes.x, axes.y, axes.column.name, axes.row.name}
        if not all(entering & place.names() for place, _ in self.sum.tests):
            return None
        base, parts = at, []
        for name in (axes.x, axes.y, axes.column.name, axes.row.name, axes.channel.name if axes.channel else ""):
            cut = base.split(name) if name else (number(0), base)
            if cut is None:
                return None
            parts.append(cut[0])
            base = cut[1]
        channel = parts[-1]
        # The place in the image includes what comes before its border.
        shift = x[2].times(x[1]).plus(y[2].times(y[1]))
        operand = Tensor(image, self.scope.parameters[image].base, base.plus(shift, -1), channel, y[1], x[1], number(0))
        outputs, images = self._others(operand, weight, axes)
        weights = self._weights(filters, weight, axes, outputs)
        if weights is None or not self._fixed(operand, images) or not self._fixed(weights, None):
            return None
        chosen = [axes.x, axes.y, *(n for n in (outputs, images) if n is not None)]
        if not complete(self.found, chosen) or any(axes.known.get(n) is None for n in chosen):
            return None
        counts = [(n, e) if n and (e := axes.known.get(n)) is not None else None for n in (outputs, images)]
        count = axes.channel.count if axes.channel is not None else number(1)
        declared = self.scope.lookup(text(self.sum.target), self.sum.target)
        kind = declared.type.replace("const", "").strip() if declared is not None else "float"
        return Convolution(
            self.site, self.found, self.nest, text(self.sum.target), kind, x[0], y[0], count, operand, weights,
            counts[0], counts[1], dict(self.known.assumed),
        )  # fmt: skip

    def _span(
        self, name: str, loop: _Loop, axes: _Axes, factors: tuple[Polynomial, Polynomial]
    ) -> tuple[ImageAxis, Polynomial, Polynomial] | None:
        """The axis, the distance of neighbours in memory, and the place of tap 0 of output 0."""
        tests = [(place, what) for place, what in self.sum.tests if {name, loop.name} & place.names()]
        taps, extent = self.known.number(loop.count), axes.known[name]
        if taps is None or extent is None or not 1 <= taps <= _WIDEST:
            return None
        places = {place for place, _ in tests}
        if len(places) > 1 or any(name not in place.names() for place in places):
            return None
        stride: Polynomial | None
        if places:
            place = next(iter(places))
            by_output, by_tap = place.split(name), place.split(loop.name)
            if by_output is None or by_tap is None:
                return None
            stride, step = by_output[0], by_tap[0]
            first = Polynomial({p: f for p, f in place.terms.items() if name not in p and loop.name not in p})
            apart = quotient(factors[1], step)
        else:
            step, first, apart = number(1), number(0), factors[1]
            stride = quotient(factors[0], apart)
        if apart is None or stride is None or factors[0] != stride.times(apart) or factors[1] != step.times(apart):
            return None
        strides, steps = self.known.number(stride), self.known.number(step)
        if strides is None or steps is None or not 1 <= strides <= 4 or not 1 <= steps <= 4:
            return None
        upper = [self.sum.bounds[what] for _, what in tests if what != "low"]
        origin = first
        first = first.plus(number(steps * loop.first))
        if not all(self._spellable(p, None) for p in (first, *upper)) or len(set(upper)) > 1:
            return None
        below = any(what == "low" for _, what in tests)
        kind = self.found.types.get(name, "int")
        return (
            ImageAxis(name, kind, extent, strides, steps, taps, first, upper[0] if upper else None, below),
            apart,
            origin,
        )

    def _others(self, image: Tensor, weight: Polynomial, axes: _Axes) -> tuple[str | None, str | None]:
        """The variables of the output channel and of the image."""
        left = [n for n in self.found.digits if n not in (axes.x, axes.y)]
        outputs = next((n for n in left if n in weight.names()), None)
        images = next((n for n in left if n in image.base.names() and n != outputs), None)
        return outputs, images

    def _weights(self, filters: str, weight: Polynomial, axes: _Axes, outputs: str | None) -> Tensor | None:
        rest, parts = weight, []
        for name in (axes.channel.name if axes.channel else "", axes.row.name, axes.column.name, outputs or ""):
            cut = rest.split(name) if name else (number(0), rest)
            if cut is None:
                return None
            parts.append(cut[0])
            rest = cut[1]
        if not parts[1].terms or not parts[2].terms:
            return None
        # Taps are counted from 0.
        for loop, part in ((axes.row, parts[1]), (axes.column, parts[2])):
            rest = rest.plus(part.times(number(loop.first)))
        return Tensor(filters, self.scope.parameters[filters].base, rest, parts[0], parts[1], parts[2], parts[3])

    def _fixed(self, operand: Tensor, images: str | None) -> bool:
        parts = (operand.base, operand.channel, operand.row, operand.column, operand.output)
        return all(self._spellable(part, images) for part in parts)

    def _spellable(self, value: Polynomial, images: str | None) -> bool:
        """Whether a value can be written before the work: of parameters, constants and what is the same for all threads."""
        site = self.site
        plain = {v.name for node in self.found.plain for v in variables(node)}
        scalars = {p.name for p in site.kernel.parameters if not p.pointer} - written(site.body)
        return value.names() <= scalars | plain | set(site.unit.macros) | set(site.unit.constants) | (
            {images} if images else set()
        )
