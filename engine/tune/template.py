"""Templates: a program whose text depends on named figures, and what is known of a point before anything is compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

from engine.cuda.closure import closure
from engine.cuda.constants import integers, value_span, words
from engine.cuda.edit import edit_program
from engine.cuda.kernel import Edit, Span, Unit
from engine.cuda.launch import sites
from engine.cuda.parse import parse
from engine.errors import OptimlError, RefusedError, UsageError
from engine.model import Evaluation, LaunchConfig, Program
from engine.rewrite.proposal import Family, Proposal
from engine.settings.suffixes import KERNELS
from engine.spec.constant_values import bound_at, launches_at, shared_bytes, value_at
from engine.spec.kernel_spec import KernelSpec
from engine.tune.space import ParameterSpace, Point
from engine.verify.screen import screen

Launches = tuple[tuple[LaunchConfig, ...], ...]  # a tuple, with a launch per step, for each timing case

_DEFINE = rb"(?m)^[ \t]*#[ \t]*define[ \t]+%s\b"
_WITH_ARGUMENTS = _DEFINE + rb"\("


@dataclass
class UnusableTemplate(RefusedError):
    """A template that fails its test: at `point` (values by name) its code ends so."""

    point: Mapping[str, int] = field(default_factory=dict)
    evaluation: Evaluation | None = None


@dataclass(frozen=True)
class Figures:
    """What a point's text says of its launches: one per step for each timing case, and the static shared memory in bytes.

    None: the text does not say; the compiler and the launch will. `impossible` names what does not hold at this point. `bounds`
    are the threads that each step's `__launch_bounds__` admits, None where there is none or it is no plain arithmetic.
    """

    launches: Launches | None
    shared_bytes: int | None
    impossible: str = ""
    bounds: tuple[int | None, ...] = ()


class Template(Protocol):
    """A program with figures left open."""

    @property
    def name(self) -> str:
        """ "constants", "model", or the name of the rule that wrote it."""
        ...

    @property
    def by_rules(self) -> bool:
        """Whether its text is the user's or a rule's, whose code is trusted."""
        ...

    @property
    def summary(self) -> str: ...

    @property
    def space(self) -> ParameterSpace: ...

    @property
    def default(self) -> Point | None:
        """The point that is the original itself; None where none is."""
        ...

    def proposal(self, point: Point) -> Proposal:
        """The edit of the original that makes it this point's program. Raises OptimlError where there is none."""
        ...

    def figures(self, point: Point) -> Figures: ...

    def launches(self, point: Point) -> Launches | None:
        """What a point launches, per timing case and step; None where only its program says."""
        ...


def program_at(original: Program, template: Template, point: Point) -> Program:
    """The program of a point. Raises OptimlError where the template has none there."""
    return edit_program(original, template.proposal(point).edits)


@dataclass
class ConstantTemplate:
    """A template on named integer constants of the program: macros and file-scope constants, each with its values."""

    original: Program
    spec: KernelSpec
    space: ParameterSpace
    name: str = "constants"
    by_rules: ClassVar[bool] = True
    _places: dict[str, tuple[str, Span]] = field(default_factory=dict)
    _known: dict[tuple[int, ...], Launches | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        now: dict[str, int] = {}
        defined = {define.partition("=")[0] for define in self.spec.compile.defines}
        for parameter in self.space.parameters:
            if parameter.name in defined:
                raise UsageError(
                    f"'{parameter.name}' is set by compile.defines of the spec, so its value in the file has no effect",
                    parameter.where or self.spec.origin, "remove it from compile.defines",
                )  # fmt: skip
            path, place, value = locate(self.original, parameter.name, parameter.where)
            self._places[parameter.name] = (path, place)
            now[parameter.name] = value
        self.default: Point = tuple(now[name] for name in self.space.names)
        self._relevant = self._launch_names()
        self._launches(now)  # what is wrong with the launch as it stands is the user's to see

    @property
    def summary(self) -> str:
        return f"Set {', '.join(self.space.names)}"

    def proposal(self, point: Point) -> Proposal:
        values = self.space.named(point)
        edits: dict[str, tuple[Edit, ...]] = {}
        for name, value in values.items():
            path, place = self._places[name]
            written = str(value) if value >= 0 else f"({value})"
            if self.original.files[path][place.start : place.end].decode() != written:
                edits[path] = (*edits.get(path, ()), Edit(place, written))
        summary = "Set " + ", ".join(f"{n} = {v}" for n, v in values.items())
        return Proposal("tuner", self.name, summary, edits, values)

    def place(self, name: str) -> tuple[str, Span]:
        """The file of a parameter's definition, and where its value stands."""
        return self._places[name]

    # ---- what the text says

    def launches(self, point: Point) -> Launches | None:
        values = self.space.named(point)
        key = tuple(v for n, v in values.items() if n in self._relevant)
        if key not in self._known:
            try:
                self._known[key] = self._launches(values)
            except OptimlError:
                self._known[key] = None
        return self._known[key]

    def figures(self, point: Point) -> Figures:
        values, launches = self.space.named(point), self.launches(point)
        impossible = "" if launches else "the launch can be evaluated"
        return Figures(launches, self._shared(values), impossible, self._bounds(values))

    def _bounds(self, values: Mapping[str, int]) -> tuple[int | None, ...]:
        found = []
        for step in self.spec.steps:
            kernel = next((k for k in self._unit.kernels if step.kernel in (k.name, k.qualified)), None)
            found.append(bound_at(self._unit, kernel, values) if kernel is not None else None)
        return tuple(found)

    def _launches(self, values: Mapping[str, int]) -> Launches:
        unit = self._unit
        steps = []
        for step in self.spec.steps:
            launch = step.launch
            if launch is not None:
                named = dict(launch.constants)
                for name in words(" ".join((*launch.grid, *launch.block, launch.shared))):
                    value = value_at(unit, name, values)
                    if value is not None and (name in named or name in values):
                        named[name] = value
                launch = replace(launch, constants=tuple(named.items()))
            steps.append(replace(step, launch=launch))
        return launches_at(self.original, replace(self.spec, steps=tuple(steps)), values)

    def _shared(self, values: Mapping[str, int]) -> int | None:
        """Static shared memory of the step that needs most, in bytes, as far as the declarations are plain arithmetic."""
        most = 0
        for step in self.spec.steps:
            try:
                total = shared_bytes(self._unit, self._unit.kernel(step.kernel), values)
            except KeyError:
                return None
            if total is None:
                return None
            most = max(most, total)
        return most

    @property
    def _unit(self) -> Unit:
        return parse(self.original.data, self.original.kernel_file)

    def _launch_names(self) -> frozenset[str]:
        """The parameters that launches may depend on: those that the launching functions or the declared launches reach."""
        texts: list[str] = []
        for step in self.spec.steps:
            if step.launch is not None:
                texts += [*step.launch.grid, *step.launch.block, step.launch.shared]
            for site in sites(self.original, step.kernel):
                unit = parse(self.original.files[site.path], site.path)
                around = [f for f in unit.functions if f.span.contains(site.span)]
                texts += [unit.text(f.span) for f in around] or [unit.data.decode("utf-8", "replace")]
        tables = {**self._unit.constants, **self._unit.macros}
        for path, data in self.original.files.items():
            if path.endswith(KERNELS):
                unit = parse(data, path)
                tables |= {**unit.constants, **unit.macros}
        reached = closure((w for t in texts for w in words(t)), lambda word: words(tables.get(word, "")))
        return frozenset(n for n in self.space.names if n in reached)


def locate(program: Program, name: str, where: str = "") -> tuple[str, Span, int]:
    """Path, place and present value of a named integer constant of the program.

    Raises UsageError where there is none of that name, more than one, or one that is no plain number.
    """
    found: list[tuple[str, Span | None, int | None]] = []
    for path, data in program.files.items():
        if path.endswith(KERNELS) and re.search(rb"\b%s\b" % re.escape(name.encode()), data):
            unit = parse(data, path)
            if name in unit.macros or name in unit.constants:
                found.append((path, value_span(unit, name), integers(unit, [name]).get(name)))
    if not found and any(re.search(_WITH_ARGUMENTS % re.escape(name.encode()), d) for d in program.files.values()):
        raise UsageError(f"'{name}' is a macro with arguments", where, f"write #define {name} 4")
    if not found:
        raise UsageError(
            f"'{name}' is neither a macro nor a constant of the program", where,
            f"define it: #define {name} 4, or constexpr int {name} = 4 at file scope",
        )  # fmt: skip
    # The kernel's own file counts alone: another one may launch a kernel of the same name with constants of its own.
    found = [f for f in found if f[0] == program.kernel_file] or found
    path, place, value = found[0]
    unit = parse(program.files[path], path)
    if place is None and name not in unit.macros and len(found) == 1:
        raise UsageError(
            f"'{name}' is not a separate constant", where, f"write #define {name} 4, or constexpr int {name} = 4"
        )
    if len(found) > 1 or place is None or (name in unit.macros and name in unit.constants):
        at = [unit.line_of(m.start()) for m in re.finditer(_DEFINE % re.escape(name.encode()), unit.data)]
        lines = f" (lines {' and '.join(map(str, at[:3]))})" if len(at) > 1 else ""
        raise UsageError(f"'{name}' is defined more than once{lines}", where, "keep one definition")
    if value is None:
        raise UsageError(f"'{name}' is not a plain integer", where, f"write #define {name} 4")
    return path, place, value


def tunable(template: ConstantTemplate) -> None:
    """Raises RefusedError for a constant that other code of the program uses: no point that changes it can be suggested."""
    original, space = template.original, template.space
    for at, parameter in enumerate(space.parameters):
        other = next((v for v in parameter.values if v != template.default[at]), None)
        if other is None:
            continue
        point = (*template.default[:at], other, *template.default[at + 1 :])
        reason = screen(original, program_at(original, template, point), template.spec)
        if reason is not None:
            raise RefusedError(
                f"'{parameter.name}' cannot be tuned: a point {reason}", parameter.where,
                "define a separate constant for the kernel and its launch",
            )  # fmt: skip


@dataclass
class RuleTemplate:
    """A template that a rewrite rule writes: one family of its proposals."""

    original: Program
    family: Family
    space: ParameterSpace
    default: Point | None = None
    by_rules: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return self.family.rule

    @property
    def summary(self) -> str:
        return self.family.summary

    def proposal(self, point: Point) -> Proposal:
        made = self.family.make(self.space.named(point))
        if made is None:
            raise OptimlError(f"the rule {self.family.rule} cannot write this point")
        return replace(made, proposer="tuner")

    def launches(self, point: Point) -> None:
        """Nothing: that would take writing its text."""

    def figures(self, point: Point) -> Figures:
        """Nothing beyond what the family itself says of its limits."""
        return Figures(None, None, self.family.impossible(self.space.named(point)))
