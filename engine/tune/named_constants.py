"""A rule's template as text: the figures of its edit become named constants of the file, which can be tuned again elsewhere."""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from engine.arith import evaluate
from engine.compile.built import Built
from engine.cuda.edit import edit_program
from engine.cuda.items import pieces_of
from engine.cuda.kernel import Edit, Span
from engine.cuda.parse import parse
from engine.errors import OptimlError, RefusedError
from engine.model import Program
from engine.spec.kernel_spec import KernelSpec
from engine.tune.declare import declared
from engine.tune.space import Condition, Point
from engine.tune.template import RuleTemplate, program_at, tunable

_NUMBER = re.compile(r"(\d+)([uUlL]*)", re.ASCII)
_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*\b")
# Not the arguments of a function
_PLAIN = re.compile(r"(?<!\w)\([\d\s+*-]+\)|(?<!\w)\(\s*\d+\s*/\s*[1-9]\d*\s*\)", re.ASCII)
_CHOICE = re.compile(r"\s*(\d+)\s*\?([^?:]*):([^?:]*)", re.ASCII)
_BYTES = "surrogateescape"  # what is no UTF-8 in a file is left as it is
_MOST_SAMPLES = 48  # points whose texts are compared; writing one takes some milliseconds
_MOST_CHECKED = 6  # points that are compiled, each in both forms
_MOST_FACTORS = 7  # parameters of a product or quotient
_MOST_SHIFT = 64  # of a figure from what it depends on


@dataclass(frozen=True)
class WrittenConstant:
    """The program with named constants, at one point of its template.

    `names` are the constants by the parameter, `fixed` the parameters that stay figures because the text changes in more than
    figures with them, `points` further points of the template as values of the constants, each with the program that the rule
    writes there.
    """

    program: Program
    names: Mapping[str, str]
    fixed: tuple[str, ...]
    points: tuple[tuple[Mapping[str, int], Program], ...]


def written(template: RuleTemplate, spec: KernelSpec, points: Sequence[Point], at: Point) -> WrittenConstant:
    """The program of the point `at` with as many parameters as named constants as can be, and their `tune` and `where` lines.

    `points` are the feasible ones. Raises RefusedError where no parameter can be.
    """
    texts = _Texts(template)
    names = template.space.names
    allowed = [_alone(texts, points, at, k) for k in range(len(names))]
    free = [k for k, values in enumerate(allowed) if len(values) > 1]
    inside = [p for p in points if all(value in values for value, values in zip(p, allowed, strict=True))]
    # Where all of them together do more than each alone, as many as can be.
    for count in range(len(free), 0, -1):
        for some in combinations(free, count):
            near = [p for p in inside if all(k in some or p[k] == at[k] for k in range(len(at)))]
            samples = [p for p in _spread(near, at) if texts.program(p) is not None]
            figures = _fits(texts, samples, names, some)
            if figures:
                return _assembled(template, spec, texts, at, _Fitted(near, samples, some, figures))
    raise RefusedError(
        f"the rule {template.name} changes more than numbers in the source",
        do="use best.patch, which has plain numbers",
    )


def check(
    found: WrittenConstant, spec: KernelSpec, spec_path: str | None, build: Callable[[Program], Built]
) -> tuple[Mapping[str, int], ...]:
    """Hold the text with constants against what the rule writes: at some points both have to be the same machine code.

    Gives these points as values of the constants. Raises RefusedError, and as `build`.
    """
    template = declared(found.program, spec, spec_path)
    if template is None or not set(found.names.values()) <= set(template.space.names):
        raise RefusedError("its constants were not found in the file")
    tunable(template)
    now = template.space.named(template.default)
    step = max(1, len(found.points) // _MOST_CHECKED)
    checked = []
    for values, program in found.points[::step][:_MOST_CHECKED]:
        point = tuple({**now, **values}[name] for name in template.space.names)
        if build(program_at(found.program, template, point)).identity != build(program).identity:
            at = ", ".join(f"{name} = {value}" for name, value in values.items())
            raise RefusedError(f"with named constants the machine code differs at {at}")
        checked.append(values)
    return tuple(checked)


class _Texts:
    """The files of points as tokens, written once."""

    def __init__(self, template: RuleTemplate) -> None:
        self.template = template
        self._known: dict[Point, Program | None] = {}
        self._tokens: dict[tuple[Point, str], list[str]] = {}

    def program(self, point: Point) -> Program | None:
        if point not in self._known:
            try:
                self._known[point] = program_at(self.template.original, self.template, point)
            except OptimlError:
                self._known[point] = None
        return self._known[point]

    def tokens(self, point: Point, path: str) -> list[str]:
        program = self.program(point)
        assert program is not None
        if (point, path) not in self._tokens:
            self._tokens[point, path] = pieces_of(program.files[path].decode(errors=_BYTES))
        return self._tokens[point, path]


def _alone(texts: _Texts, points: Sequence[Point], at: Point, k: int) -> set[int]:
    """The values of this parameter, that of `at` among them, between which the text changes in figures alone, if it does."""
    allowed = {at[k]}
    for p in points:
        beside = p != at and all(a == b for i, (a, b) in enumerate(zip(p, at, strict=True)) if i != k)
        if beside and _figures(texts, [at, p]):
            allowed.add(p[k])
    return allowed


def _spread(points: Sequence[Point], at: Point) -> list[Point]:
    """Some of the points, from everywhere, `at` first."""
    others = [p for p in points if p != at]
    step = max(1, -(-len(others) // _MOST_SAMPLES))
    return [at, *others[::step]]


Place = tuple[str, int]  # a file and the number of a token there


def _figures(texts: _Texts, samples: Sequence[Point]) -> dict[Place, list[int]] | None:
    """The whole numbers that differ between the points' texts, with their values; None where anything else differs."""
    original = texts.template.original
    programs = [texts.program(point) for point in samples]
    if any(program is None for program in programs):
        return None
    found: dict[Place, list[int]] = {}
    for path in original.files:
        lists = [texts.tokens(point, path) for point in samples]
        if any(len(tokens) != len(lists[0]) for tokens in lists):
            return None
        for number, column in enumerate(zip(*lists, strict=True)):
            if all(token == column[0] for token in column):
                continue
            read = [_NUMBER.fullmatch(token) for token in column]
            if any(match is None or (match[1].startswith("0") and len(match[1]) > 1) for match in read):
                return None
            if len({match[2] for match in read if match}) > 1:
                return None
            found[path, number] = [int(match[1]) for match in read if match]
    return found


def _fits(
    texts: _Texts, samples: Sequence[Point], names: Sequence[str], free: Sequence[int]
) -> dict[Place, str] | None:
    """The figures that differ between the points' texts as expressions; None where that is not all, or one has no expression."""
    terms = list(_terms(samples, names, free))
    found = {}
    for place, values in (_figures(texts, samples) or {}).items():
        expression = _fitted(values, terms)
        if expression is None:
            return None
        found[place] = expression
    return found


@dataclass(frozen=True)
class _Term:
    """A product of parameters over another, with the values of both at the points. "" is 1."""

    over: str
    under: str
    above: list[int]
    below: list[int]

    def times(self, values: Sequence[int], shift: int) -> str | None:
        """This times a fraction, with `shift` added, where that gives these values with nothing left over."""
        p, q = (values[0] - shift) * self.below[0], self.above[0]
        if p <= 0:
            return None
        p, q = p // math.gcd(p, q), q // math.gcd(p, q)
        if any((v - shift) * b * q != a * p for v, a, b in zip(values, self.above, self.below, strict=True)):
            return None
        over = [text for text in (self.over, str(p) if p > 1 or not self.over else "") if text]
        under = [text for text in (self.under, str(q) if q > 1 else "") if text]
        text = " * ".join(over)
        if under:
            divisor = " * ".join(under)
            text += f" / ({divisor})" if "*" in divisor else f" / {divisor}"
        return f"{text} {'+' if shift > 0 else '-'} {abs(shift)}" if shift else text


def _fitted(values: Sequence[int], terms: Sequence[_Term]) -> str | None:
    """An expression that has these values, the simplest of them."""
    for shift in (0, -1, 1):
        for term in terms:
            if (found := term.times(values, shift)) is not None:
                return found
    for term in terms:
        if term.over and not term.under and (found := _line(term, values) or _part(term, values)):
            return found
    return None


def _line(term: _Term, values: Sequence[int]) -> str | None:
    """A term times a whole number, with another added."""
    of = term.above
    other = next((k for k, each in enumerate(of) if each != of[0]), None)
    if other is None:
        return None
    factor = (values[other] - values[0]) // (of[other] - of[0])
    shift = values[0] - factor * of[0]
    return term.times(values, shift) if factor > 0 and abs(shift) <= _MOST_SHIFT else None


def _part(term: _Term, values: Sequence[int]) -> str | None:
    """A term divided by a whole number, as C divides."""
    part = term.above[0] // values[0] if values[0] else 0
    held = part > 1 and all(v == a // part for v, a in zip(values, term.above, strict=True))
    return f"{term.over} / {part}" if held else None


def _terms(samples: Sequence[Point], names: Sequence[str], free: Sequence[int]) -> Iterator[_Term]:
    """Products of some parameters over products of others, and a few sums; the simplest first."""
    one = [1] * len(samples)
    powers = sorted(product((0, 1, -1), repeat=min(len(free), _MOST_FACTORS)), key=lambda each: sum(map(abs, each)))
    for each in powers[1:]:
        over = [k for k, power in zip(free, each, strict=False) if power > 0]
        under = [k for k, power in zip(free, each, strict=False) if power < 0]
        above = [math.prod(p[k] for k in over) for p in samples]
        below = [math.prod(p[k] for k in under) for p in samples]
        if all(above) and all(below):
            yield _Term(" * ".join(names[k] for k in over), " * ".join(names[k] for k in under), above, below)
    for a in free:
        if all(p[a] for p in samples):
            yield _Term(f"{names[a]} * {names[a]}", "", [p[a] * p[a] for p in samples], one)
        for b in free:
            if a != b and all((p[a] + 1) * p[b] for p in samples):
                yield _Term(f"({names[a]} + 1) * {names[b]}", "", [(p[a] + 1) * p[b] for p in samples], one)
            if a < b and all(p[a] + p[b] for p in samples):
                yield _Term(f"({names[a]} + {names[b]})", "", [p[a] + p[b] for p in samples], one)


@dataclass(frozen=True)
class _Fitted:
    """Numbers of the text as expressions over the free parameters (by their place), the points of these, and those that were fitted."""

    points: Sequence[Point]
    samples: Sequence[Point]
    free: Sequence[int]
    expressions: Mapping[Place, str]


def _assembled(template: RuleTemplate, spec: KernelSpec, texts: _Texts, at: Point, fitted: _Fitted) -> WrittenConstant:
    """The text of the point `at` with its numbers as expressions over named constants."""
    points, samples, free, figures = fitted.points, fitted.samples, fitted.free, fitted.expressions
    paths = {path for path, _ in figures}
    if len(paths) > 1:
        raise RefusedError(f"the numbers of the rule {template.name} are in several files")
    (path,) = paths
    program = texts.program(at)
    assert program is not None
    space = template.space
    names = _named(program, spec, [space.names[k] for k in free])
    edits, earliest = [], len(program.files[path])
    begin = 0
    tokens = texts.tokens(at, path)
    for number, token in enumerate(tokens):
        if (path, number) in figures:
            earliest = min(earliest, begin)
            alone = "".join(tokens[max(0, number - 1) : number + 2 : 2]) in ("()", "[]")
            text = _in_place(figures[path, number], token, names, alone=alone)
            edits.append(Edit(Span(begin, begin + len(token)), text))
        begin += len(token.encode(errors=_BYTES))
    place = _before(program, path, spec, earliest)
    lines = []
    for k in free:
        name = names[space.names[k]]
        lines += [f"#ifndef {name}", f"#define {name} {at[k]}", "#endif"]
    for k in free:
        values = [v for v in space.parameters[k].values if any(p[k] == v for p in points)]
        lines.append(f"// optiml: tune {names[space.names[k]]} = {', '.join(map(str, values))}")
    now = {name: str(at[k]) for k, name in enumerate(space.names) if k not in free}
    for condition in space.conditions:
        if condition.names & names.keys():
            asked = _shortened(_renamed(condition, {**now, **names}))
            lines += [f"// optiml: where {asked}"] if asked else []
    edits.append(Edit.insert(place, "\n".join(lines) + "\n"))
    # Where the figures were not fitted they have yet to show that they are right.
    seen = set(samples)
    unseen = [p for p in points if p not in seen]
    held = [(p, texts.program(p)) for p in _spread(unseen or samples, at)]
    shown = tuple(({names[space.names[k]]: p[k] for k in free}, made) for p, made in held if made is not None)
    fixed = tuple(name for k, name in enumerate(space.names) if k not in free)
    return WrittenConstant(edit_program(program, {path: edits}), names, fixed, shown)


def _in_place(expression: str, token: str, names: Mapping[str, str], *, alone: bool) -> str:
    """What stands where a figure stood, in brackets unless it stands there `alone`."""
    match = _NUMBER.fullmatch(token)
    suffix = match[2] if match else ""
    text = _WORD.sub(lambda word: names[word[0]], expression)
    if suffix:
        text = f"{text} * 1{suffix}" if text in names.values() else f"({text}) * 1{suffix}"
    return text if alone or text in names.values() else f"({text})"


def _renamed(condition: Condition, names: Mapping[str, str]) -> str:
    return _WORD.sub(lambda word: names.get(word[0], word[0]), condition.text)


def _shortened(condition: str) -> str:
    """What is left to ask where numbers alone are worked out: in brackets, as the condition of a choice, and among what must hold
    together. "" where it holds in any case.
    """
    before = ""
    while condition != before:
        before = condition
        condition = _PLAIN.sub(lambda found: str(evaluate(found[0], {})), condition)
    choice = _CHOICE.fullmatch(condition)
    if choice:
        return _shortened(choice[2] if int(choice[1]) else choice[3])
    parts = [part.strip() for part in condition.split("&&")]
    if any(part.count("(") != part.count(")") or "|" in part or "?" in part for part in parts):
        return condition
    return " && ".join(p for p in dict.fromkeys(parts) if _WORD.search(p) or not evaluate(p, {}))


def _named(program: Program, spec: KernelSpec, parameters: Sequence[str]) -> dict[str, str]:
    """Names for constants that stand in none of the program's files."""
    kernel = re.sub(r"<.*|.*::", "", spec.steps[0].kernel)
    prefix = re.sub(r"_kernel$", "", re.sub(r"\W+", "_", kernel), flags=re.IGNORECASE).upper()
    taken = {word for data in program.files.values() for word in re.findall(rb"[A-Za-z_]\w*", data)}
    names = {}
    for parameter in parameters:
        name = base = f"{prefix}_{parameter.upper()}"
        number = 1
        while name.encode() in taken:
            number += 1
            name = f"{base}_{number}"
        names[parameter] = name
        taken.add(name.encode())
    return names


def _before(program: Program, path: str, spec: KernelSpec, offset: int) -> int:
    """Where definitions can stand that are used from this place on: above the item that it is in, and above the kernel."""
    unit = parse(program.files[path], path)
    items = [f.span.start for f in unit.functions if f.span.contains(Span(offset, offset))] or [offset]
    items += [kernel.span.start for kernel in unit.kernels if spec.steps[0].kernel in (kernel.name, kernel.qualified)]
    data = unit.data
    place = data.rfind(b"\n", 0, min(items)) + 1
    while place:
        above = data.rfind(b"\n", 0, place - 1) + 1
        line = data[above:place].strip()
        if not (line.startswith((b"//", b"template")) or line.endswith(b"\\")):
            break
        place = above
    return place
