"""The compiled probe: what the compiler says of a few points leaves others out of the feasible set, before the search begins."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import dataclass, field

from engine.compile.compiler import Translation
from engine.cuda.closure import closure
from engine.cuda.items import directive_parts, tokens_of
from engine.errors import OptimlError
from engine.evaluate.build import Builder
from engine.model import Binary, LaunchConfig, Program
from engine.predict.occupancy import resident_warps
from engine.predict.targets import TargetParameters
from engine.tune.feasible import Feasible, fits, without
from engine.tune.space import Point
from engine.tune.strategy import EXHAUSTIVE_MOST
from engine.tune.template import ConstantTemplate, Template, program_at

_MOST = 16  # points that are compiled, and four for each compiler at most. Ours
_OF_EACH = 4
# The first answer is waited for so long: compilers have to start in any case, which takes half a second on an idle machine. Ours.
_FIRST_S = 4.0
_MOST_S = 1.5  # how long the others are waited for after that. Ours
_MOST_READ = 64  # points of a rule's template, each of which is written out for it. Ours
_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFINED = re.compile(r"\bdefined\b\s*(?:\(\s*\w+\s*\)|\w+)")

Launches = tuple[tuple[LaunchConfig, ...], ...]


@dataclass
class _Group:
    """Points that are one to the compiler, with their launches; `large` are those whose blocks may be too large."""

    points: dict[Point, Launches] = field(default_factory=dict)
    large: list[Point] = field(default_factory=list)

    def probe(self, default: Point | None) -> Point:
        """The point to compile: one that is compiled in any case, else one that is most likely to be launched."""
        if default is not None and default in self.points:
            return default
        return min(self.points, key=lambda p: max((s.threads for case in self.points[p] for s in case), default=0))


@dataclass(frozen=True)
class Compilers:
    """So many compilers; `submit` starts a compile on one of them."""

    submit: Callable[[Translation], Future[Binary]]
    count: int


def probe(
    original: Program,
    template: Template,
    found: Feasible,
    builder: Builder,
    compilers: Compilers,
    limit: int | None = None,
) -> Feasible:
    """The set without the points whose blocks would need more registers (or shared memory) than a multiprocessor has.

    Points that differ only in what the compiler does not see have the same machine code, so one compile speaks for all of
    them: the original's if it is among them, else that of the smallest block. Asked are the groups with the most points in
    doubt, at most four for each compiler. A point with code of its own is asked only where all points will be tried
    (there are few, and no fewer evaluations allowed: `limit`). What does not compile or has no answer 1.5 s after the first stays in
    the set, and its own compile will tell. What it made comes from the cache when the point is tried.
    Raises RefusedError that names the limit which leaves nothing to tune.
    """
    all_tried = len(found.points) <= min(EXHAUSTIVE_MOST, EXHAUSTIVE_MOST if limit is None else limit)
    groups = [g for g in _groups(original, template, found, builder) if g.large and (all_tried or len(g.points) > 1)]
    groups.sort(key=lambda g: -len(g.large))
    asked: list[tuple[_Group, Future[Binary]]] = []
    for group in groups[: min(_MOST, _OF_EACH * compilers.count)]:
        with suppress(OptimlError):
            program = program_at(original, template, group.probe(template.default))
            asked.append((group, compilers.submit(builder.translation(builder.slice(program)))))
    futures = [future for _, future in asked]
    if wait(futures, timeout=_FIRST_S, return_when=FIRST_COMPLETED).done:
        wait(futures, timeout=_MOST_S)
    reasons: dict[Point, str] = {}
    for group, future in asked:
        if future.cancel() or not future.done() or future.exception() is not None:
            continue
        used = future.result().resources
        for point in group.large:
            if reason := fits(used, group.points[point], builder.target):
                reasons[point] = reason
    return without(template, found, reasons) if reasons else found


def _groups(original: Program, template: Template, found: Feasible, builder: Builder) -> Iterable[_Group]:
    """The points by what the compiler gets to see of them."""
    constants = isinstance(template, ConstantTemplate)
    if not constants and len(found.points) > _MOST_READ:
        return ()
    try:
        text = builder.slice(original)
    except OptimlError:
        return ()  # whoever builds the original says why
    defines = builder.spec.compile.defines
    shaping = shapes_code(text, builder.expressions, defines, template.space.names) if constants else frozenset()
    target = builder.target
    least = target.warp * resident_warps(
        TargetParameters.registers_per_thread, target
    )  # threads, which fit with any code
    groups: dict[Hashable, _Group] = {}
    for point in found.points:
        key: Hashable
        bounds: Sequence[int | None] = ()
        if constants:
            figures = template.figures(point)
            launches, bounds = figures.launches or (), figures.bounds
            key = tuple(v for n, v in template.space.named(point).items() if n in shaping)
        else:
            try:
                program = program_at(original, template, point)
                key, launches = builder.slice(program), builder.launches(program)
            except OptimlError:
                continue
        group = groups.setdefault(key, _Group())
        group.points[point] = launches
        # To a bound on its threads, which holds here, the compiler keeps the registers by itself.
        if any(
            launch.threads > least and not (bounds and bounds[step])
            for case in launches
            for step, launch in enumerate(case)
        ):
            group.large.append(point)
    return groups.values()


def shapes_code(text: str, expressions: Iterable[str], defines: Iterable[str], names: Iterable[str]) -> frozenset[str]:
    """Those of the constants `names` whose values the compiler may see in a device slice, by macros that use them too.

    A name that stands only in its own definition, in what no code uses, or in questions whether it is defined, has no part in the
    preprocessed text: that is the same for all its values. Where macros paste names, or a header of the toolkit that is
    included could use a macro of that name, it counts as seen.
    """
    wanted = frozenset(names)
    bodies: defaultdict[str, set[str]] = defaultdict(set)
    reached = {word for expression in expressions for word in _WORD.findall(expression)}
    for define in defines:
        name, _, value = define.partition("=")
        bodies[name].update(_WORD.findall(value))
    headers = False
    for token in tokens_of(text):
        if token.kind != "directive":
            reached.update(_WORD.findall(token.text))  # of strings too: _Pragma has names in one
            continue
        word, rest = directive_parts(token.text)
        if word == "define":
            match = _WORD.match(rest)
            if "##" in rest:
                return wanted
            if match:
                bodies[match[0]].update(_WORD.findall(rest[match.end() :]))
        elif word == "include":
            headers = True
        elif word not in ("ifdef", "ifndef", "elifdef", "elifndef", "undef"):
            reached.update(_WORD.findall(_DEFINED.sub(" ", rest)))
    if headers:
        reached.update(wanted & bodies.keys())
    reached = closure(reached, lambda word: bodies[word])
    return wanted & reached
