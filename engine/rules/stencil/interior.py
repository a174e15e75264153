"""A copy of a loop without the tests of its neighbours, for threads that have all of them."""

import re
from dataclasses import dataclass
from itertools import product

from engine.cuda.questions import pure, written
from engine.cuda.syntax import ancestors, children, compact, inside, names, operands, strip, text, walk
from engine.rewrite import Change, Edit, MatchedRule, Node, Scope, Site, Space, Span, Values, reindent
from engine.rules.idioms import inclusive_loop, stride_loop

_LOOPS = ("for_statement", "while_statement")
_SIGNED = frozenset({"int", "long", "long long", "int32_t", "int64_t", "const int", "const long", "const int32_t"})
_WORSE = {"<": -1, "<=": -1, ">": 1, ">=": 1}  # the sign of the difference that makes the comparison less likely
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_SUM = re.compile(r"\+ \(-(\d+)\)")
_MOST_VALUES = 8  # of a counter that a test is not linear in: tests are written for each
_MOST_TESTS = 24
_WIDEST = 100  # characters of a line with a condition


@dataclass(frozen=True)
class _Counter:
    """A loop's first and last value: as expressions, and as numbers where they are."""

    ends: tuple[Node, Node]
    exclusive: bool
    numbers: tuple[int, int] | None

    def written(self, last: bool) -> str:
        """One of them as C text, for a place where an operand may stand."""
        if self.numbers is not None:
            return _operand(str(self.numbers[last]))
        return _operand(text(self.ends[last]) + (" - 1" if last and self.exclusive else ""))


@dataclass(frozen=True)
class _Test:
    """A statement or value under conditions, and the changes of the text that leave it where all of them hold."""

    node: Node
    changes: tuple[tuple[int, int, str], ...]
    conditions: tuple[str, ...]
    loop: Node


@dataclass(frozen=True)
class Interior:
    """The loop whose tests are `tests`."""

    site: Site
    loop: Node
    tests: tuple[_Test, ...]

    @property
    def condition(self) -> str:
        """Under which every test of the loop holds."""
        return " && ".join(dict.fromkeys(c for test in self.tests for c in test.conditions))


class InteriorPeel(MatchedRule[Interior]):
    """Loops over neighbours test each of them: `if (j >= 0 && j < n)`. The first and the last tell for all."""

    name = "interior"
    summary = "Loops over neighbours without tests where all neighbours exist"

    def match(self, site: Site) -> Interior | None:
        if not site.sound or not site.manageable:
            return None
        tests = [test for node in walk(site.body) if (test := _test(site, site.scope, node)) is not None]
        for loop in (test.loop for test in tests):
            mine = tuple(test for test in tests if test.loop == loop)
            found = Interior(site, loop, mine)
            few = found.condition.count("&&") < _MOST_TESTS
            if few and site.local_only(loop) and not _peeled(loop, found.condition):
                return found
        return None

    def space(self, match: Interior) -> Space:
        return Space([({}, 0.5)])

    def rewrite(self, match: Interior, values: Values) -> Change | None:
        site, loop = match.site, match.loop
        above = loop.prev_named_sibling
        start = above.start_byte if above is not None and above.type.startswith("preproc") else loop.start_byte
        indent, unit = site.indent_at(loop.start_byte), site.indent_unit
        gone = [change for test in match.tests for change in test.changes]
        changes = [c for c in gone if not any(o[0] <= c[0] and c[1] <= o[1] and o is not c for o in gone)]
        copies = (site.render(start, loop.end_byte, changes), site.render(start, loop.end_byte))
        inner, whole = (reindent(indent + copy, indent, indent + unit) for copy in copies)
        condition = match.condition
        if len(indent + condition) > _WIDEST:
            condition = condition.replace(" && ", f" &&\n{indent}{unit}")
        written_text = f"if ({condition}) {{\n{inner}\n{indent}}} else {{\n{whole}\n{indent}}}"
        line = site.unit.data.count(b"\n", 0, loop.start_byte) + 1
        edit = Edit(Span(start, loop.end_byte), written_text)
        summary = f"No tests of neighbours in the loop of line {line} where all neighbours exist"
        return Change(summary, site.in_file(edit), {"line": line})


def _test(site: Site, scope: Scope, node: Node) -> _Test | None:
    """The node as something that is done, or has a value, where neighbours exist; None where it is something else."""
    if node.type not in ("if_statement", "conditional_expression"):
        return None
    condition, then, otherwise = (node.child_by_field_name(f) for f in ("condition", "consequence", "alternative"))
    if condition is None or then is None:
        return None
    if node.type == "if_statement" and otherwise is not None:
        return None
    leaves = node.type == "if_statement" and compact(then).strip("{}") == "continue;"
    parts = operands(strip(condition), "||" if leaves else "&&")
    counters = _counters(site, node)
    loop = _outermost(scope, node, condition, counters)
    if loop is None or not pure(condition):
        return None
    conditions = [_worst(site, scope, part, leaves, counters, loop) for part in parts]
    if any(c is None for c in conditions):
        return None
    start, end, inner = node.start_byte, node.end_byte, children(then)
    if leaves:
        changes = [(start, end, "")]
    elif then.type == "compound_statement" and not (len(inner) == 1 and b"\n" not in (inner[0].text or b"\n")):
        changes = [(start, then.start_byte, "")]
    else:
        first, last = (inner[0], inner[-1]) if then.type == "compound_statement" else (then, then)
        changes = [(start, first.start_byte, ""), (last.end_byte, end, "")]
    return _Test(node, tuple(changes), tuple(c for each in conditions if each is not None for c in each), loop)


def _counters(site: Site, node: Node) -> dict[str, _Counter]:
    """The counters of the loops around the node."""
    found: dict[str, _Counter] = {}
    for above in ancestors(node, site.body):
        exclusive = stride_loop(above)
        loop = exclusive or inclusive_loop(above)
        if loop is None or loop.step != "1" or loop.type not in _SIGNED:
            continue
        first, last = site.constant(loop.start), site.constant(loop.bound)
        numbers = None
        if first is not None and last is not None:
            numbers = first, last - (exclusive is not None)
            if numbers[1] < numbers[0]:
                continue
        found.setdefault(loop.variable, _Counter((loop.start, loop.bound), exclusive is not None, numbers))
    return found


def _outermost(scope: Scope, node: Node, condition: Node, counters: dict[str, _Counter]) -> Node | None:
    """The outermost loop around the node in which nothing that the condition tests changes but counters; None without one."""
    found = None
    for above in ancestors(node, scope.body):
        if above.type not in _LOOPS:
            continue
        used = _used(scope, condition, above)
        mine = [counters[name] for name in used if name in counters and inside(counters[name].ends[0], above)]
        used |= {name for counter in mine if not counter.numbers for end in counter.ends for name in names(end)}
        fixed = used - set(counters)
        declared = {
            name for name in fixed for d in [scope.lookup(name, node)] if d is not None and inside(d.node, above)
        }
        if fixed & written(above) or declared:
            break
        found = above
    return found


def _used(scope: Scope, node: Node, loop: Node) -> set[str]:
    """The names in an expression, those that the loop's body defines replaced by the names in their definitions."""
    found: set[str] = set()
    for name in names(node):
        value = _definition(scope, name, node, loop)
        found |= _used(scope, value, loop) if value is not None else {name}
    return found


def _definition(scope: Scope, name: str, at: Node, loop: Node) -> Node | None:
    declared = scope.lookup(name, at)
    if declared is None or not inside(declared.node, loop) or declared.type not in _SIGNED:
        return None
    header = declared.node.parent is not None and declared.node.parent.type == "for_statement"
    return None if header or declared.shape != "scalar" or scope.changed(declared) else declared.value


def _worst(
    site: Site, scope: Scope, part: Node, negated: bool, counters: dict[str, _Counter], loop: Node
) -> list[str] | None:
    """The comparison for the values of counters for which it is least likely; None where they cannot be told."""
    part = strip(part)
    operator, left, right = (part.child_by_field_name(f) for f in ("operator", "left", "right"))
    if part.type != "binary_expression" or operator is None or left is None or right is None:
        return None
    sign = _OPPOSITE.get(text(operator), "") if negated else text(operator)
    sides = scope.index(left), scope.index(right)
    if sign not in _WORSE or sides[0] is None or sides[1] is None or not _signed(site, scope, part, loop):
        return None
    difference = sides[0].plus(sides[1], -1)
    used = {n for n in _used(scope, part, loop) & set(counters) if inside(counters[n].ends[0], loop)}
    choices: list[list[tuple[str, str]]] = []
    for name in sorted(used):
        counter, halves = counters[name], difference.split(name)
        factor = halves[0].constant if halves is not None else None
        if not counter.numbers and not all(_signed(site, scope, end, loop) for end in counter.ends):
            return None
        if factor:
            choices.append([(name, counter.written((factor > 0) != (_WORSE[sign] > 0)))])
        elif counter.numbers and counter.numbers[1] - counter.numbers[0] < _MOST_VALUES:
            low, high = counter.numbers
            choices.append([(name, _operand(str(value))) for value in range(low, high + 1)])
        else:
            return None
    pairs = [dict(values) for values in product(*choices)] if used else []
    return [f"{_with(site, scope, left, v, loop)} {sign} {_with(site, scope, right, v, loop)}" for v in pairs] or None


def _operand(written_text: str) -> str:
    return written_text if re.fullmatch(r"\w+", written_text) else f"({written_text})"


def _signed(site: Site, scope: Scope, node: Node, loop: Node) -> bool:
    """Whether the expression is made of signed numbers, so that it is monotonous in each."""
    for at in walk(node):
        if at.type in ("field_expression", "call_expression", "cast_expression", "conditional_expression"):
            return False
        if at.type == "number_literal" and not text(at).removeprefix("-").isdigit():
            return False
        if at.type != "identifier" or site.constant(at) is not None:
            continue
        declared = scope.lookup(text(at), at)
        parameter = scope.parameters.get(text(at))
        kind = declared.type if declared is not None else parameter.base if parameter is not None else ""
        if kind not in _SIGNED or (declared is None and parameter is not None and parameter.pointer):
            return False
        value = _definition(scope, text(at), at, loop)
        if value is not None and not _signed(site, scope, value, loop):
            return False
    return True


def _with(site: Site, scope: Scope, node: Node, values: dict[str, str], loop: Node) -> str:
    """The expression with numbers for counters and definitions for what the loop defines."""
    changes = []
    for at in walk(node):
        if at.type != "identifier":
            continue
        value = _definition(scope, text(at), at, loop)
        number = site.constant(at)
        if text(at) in values or number is not None:
            instead = values[text(at)] if text(at) in values else _operand(str(number))
            changes.append((at.start_byte, at.end_byte, instead))
        elif value is not None:
            inner = _with(site, scope, value, values, loop)
            whole = value.type in ("identifier", "number_literal") or node.type == "identifier"
            changes.append((at.start_byte, at.end_byte, inner if whole else f"({inner})"))
    return _SUM.sub(r"- \1", site.render(node.start_byte, node.end_byte, changes))


def _peeled(loop: Node, condition: str) -> bool:
    """Whether the loop stands in what is left for threads at the border."""
    for above in ancestors(loop):
        tested = above.child_by_field_name("condition") if above.type == "if_statement" else None
        if tested is not None and " ".join(text(strip(tested)).split()) == condition:
            return True
    return False
