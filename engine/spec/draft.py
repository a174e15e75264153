"""Drafts a kernel spec from the source: roles, sizes and extents, with every assumption said beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from engine.cuda.aliases import aliases, condition_around
from engine.cuda.parse import parse
from engine.errors import UsageError
from engine.model import Program
from engine.spec.atomic_adds import atomic_adds
from engine.spec.constant_memory import unfilled_constants
from engine.spec.divisors import with_divisors
from engine.spec.draft_trials import KEEPING, Trials, halvings, inputs, other_shapes
from engine.spec.drafted_callers import (
    is_launched,
    no_launch,
    note_shared,
    passed_equal,
    passed_null,
    passed_products,
    set_looped,
    set_passed,
    set_products,
)
from engine.spec.drafted_constants import drafted_constants
from engine.spec.drafted_contents import is_index, named, set_absent, set_by_block, set_fill, set_finite, stored_at
from engine.spec.drafted_parts import ASSUMED, KEPT, SAID, Part, drafted_parts
from engine.spec.drafted_strides import set_strides
from engine.spec.drafted_type import ParameterTypes
from engine.spec.dtypes import parse_dtype
from engine.spec.extents import Extent, Trial, as_others, fit, trial_sizes
from engine.spec.gaps import Gap, asked_first
from engine.spec.guessed_launch import BLOCK, guessed_launch, named_in
from engine.spec.host_launch import deciding, device_blocks, grid_extents, host_sizes, in_grid
from engine.spec.indirect import indirect, scattered
from engine.spec.kernel_spec import Case, CompileOptions, Fill, KernelSpec, LaunchExpr, Role, Step
from engine.spec.related_values import set_equal, set_values
from engine.spec.shapes import (
    counted_shapes,
    first_shapes,
    is_tiled,
    launchable_shapes,
    ordered_shapes,
    shrunk,
    tile_of,
)
from engine.spec.size_gaps import COVERING, Reach, beyond, refuted, set_extent
from engine.spec.spec_text import launch_line, spec_text
from engine.spec.tables import split_kernel
from engine.spec.template_choice import template_arguments
from engine.spec.types import source_type
from engine.spec.usage import Usage

Probe = Callable[[Mapping[str, int]], Mapping[str, int]]
Roles = Callable[[Mapping[str, int]], Mapping[str, Role]]
_EARLY = re.compile(r"reads ([\w.]+)\[\d+\] before it is written")
_MANY_SIZES = 4  # of which some may be parts of others
_LONGEST = re.compile(r"max_|longest", re.IGNORECASE)  # the name of a size that bounds the segments of ragged rows
_SEGMENT = "per_segment"  # that size where the host names none


@dataclass(frozen=True)
class Draft:
    """A spec to be finished by a person.

    `text` is what to paste: `// optiml:` lines, or a table of an optiml.toml. `missing` says what could not be found out;
    where it is empty, `spec` is complete (its assumptions stand as comments in `text`).
    """

    spec: KernelSpec
    text: str
    missing: tuple[Gap, ...]


@dataclass(frozen=True)
class OriginalRuns:
    """Runs of the original that say what its text does not.

    `probe`: for a set of sizes, the number of elements touched of each buffer, by parameter. `moved` does so with all whole numbers
    in buffers 1 instead of 0, for buffers whose indices come from others. `roles` gives the roles of buffers that are no
    constants, for sizes that `probe` was called with. `trials` runs the draft itself: where its outputs are no numbers other
    inputs are tried, and its timing case is made no larger than a GPU does in some milliseconds. `untried` says why the original
    could not be run, where it could not.
    """

    probe: Probe | None = None
    moved: Probe | None = None
    roles: Roles | None = None
    trials: Trials | None = None
    untried: str = ""

    def ended(self, sizes: Mapping[str, int]) -> str:
        """What ended the trial at these sizes early, in words; "" where there are none."""
        return self.trials.ended(sizes) if self.trials is not None else ""


@dataclass(frozen=True)
class _Way:
    """How a draft is tried. `tiled`, `tile` and `divided` are of `trial_sizes`.

    `launching` are scalars that are sizes because launches depend on them, `hosts` sizes that the
    host's code alone knows. `grids` are expressions for extents of the launch's grid. `whole`: shapes to check are whole tiles.
    `positive`: floats are drawn from 0.1 to 1. `halvings`: of the timing case's lengths. `rows`: how long a row of a buffer may be.
    `shapes`: to check instead of those that follow from the sizes. `segment`: the size that bounds the segments of ragged rows.
    `blocks`: expressions for how many there are of a launch that follows from the device, with their value in trials.
    `kept`: buffers that the kernel reads before it writes them. `turned`: trials give the first size the largest value.
    `products`: sizes that the host computes of others.
    """

    runs: OriginalRuns = OriginalRuns()
    launching: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    tiled: bool = False
    tile: int = 0
    divided: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    grids: tuple[str, ...] = ()
    options: CompileOptions = field(default_factory=CompileOptions)
    launch: LaunchExpr | None = None
    positive: bool = False
    halvings: int = 0
    rows: tuple[str, ...] = ()
    shapes: tuple[Case, ...] = ()
    segment: str = ""
    turned: bool = False
    kept: frozenset[str] = frozenset()
    blocks: Mapping[str, int] = field(default_factory=dict)
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    equal: Mapping[str, str] = field(default_factory=dict)

    def given(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """What runs of the original are given: sizes, and those that the host computes of them."""
        return {**sizes, **{name: prod(sizes[f] for f in factors) for name, factors in self.products.items()}}


@dataclass(frozen=True)
class DraftForm:
    """How a draft is written: `form` is "comments" or "toml", `toml_file` the file's path relative to the optiml.toml."""

    form: str = "comments"
    toml_file: str = ""


def draft(
    program: Program, kernel_name: str, *, runs: OriginalRuns = OriginalRuns(), written: DraftForm = DraftForm(),
    options: CompileOptions | None = None, launch: LaunchExpr | None = None,
) -> Draft:  # fmt: skip
    """A draft of the spec of one kernel (its name may carry template arguments).

    Without `runs` extents are read from index expressions and their bounds, and roles from the text. `options` are the project's
    own.
    `launch` is one that somebody gives; the host's is not looked for then.
    Raises UsageError for an unknown kernel, SourceError for a broken file.
    """

    def made_by(way: _Way) -> Draft:
        return _draft(program, kernel_name, written, way)

    way = _Way(OriginalRuns(untried=runs.untried), options=options or CompileOptions(), launch=launch)
    if launch is not None:
        own, others = named_in(launch, program, kernel_name)
        way = replace(way, launching=own, hosts=others)
    made = made_by(way)
    # How many blocks there are may follow from numbers that the kernel is not given, or that nothing in it bounds.
    for find in (_equal, _hosts, _launching, _segments):
        if (found := find(program, made, way)) != way:
            way, made = found, made_by(found)
    trials = runs.trials
    if runs.probe is None:
        return made
    grids, blocks = grid_extents(program, made.spec), device_blocks(program, made.spec)
    way = replace(
        way, runs=runs, tiled=is_tiled(made.spec), grids=grids, blocks=blocks, tile=tile_of(program, made.spec)
    )
    made = made_by(way)
    # Some sizes are parts of others, which mostly come first; what goes beyond its arrays at odd sizes may be made for whole tiles.
    turned, tiled = replace(way, turned=True), replace(way, tiled=True, whole=True)
    many = len(made.spec.check[0].sizes) >= _MANY_SIZES
    computed = _products(program, made, way) if _open(made) else way
    for other in (computed, turned, tiled):
        if way.tiled or other == way or not (_open(made) or (other is turned and many and _loose(made))):
            continue
        other_made = made_by(other)
        if (_open(other_made), _loose(other_made)) < (_open(made), _loose(made)):
            way, made = other, other_made
    return made if trials is None or made.missing else _tried(made, way, made_by, trials)


def _tried(made: Draft, way: _Way, made_by: Callable[[_Way], Draft], trials: Trials) -> Draft:
    """The draft as its trial runs leave it; with a gap where no inputs are known that say something."""
    positive, problem = inputs(trials, made.spec, lambda: made_by(replace(way, positive=True)).spec)
    if problem:
        return _asked(made, problem)
    way = replace(way, positive=positive)
    failing = dict(trials.failing(made.spec, made.spec.check))
    if early := {found[1] for said in failing.values() if (found := _EARLY.search(said))}:
        # Whether it reads what was there depends on its inputs: those of the first trials did not show it.
        way = replace(way, kept=frozenset(early))
        made = made_by(way)
        failing = dict(trials.failing(made.spec, made.spec.check))
    if failing:
        shapes = other_shapes(trials, made.spec, failing)
        loose = [said for said in failing.values() if refuted(made.text, said)]
        # What its trials touched did not explain the size: other contents may lead beyond it at these shapes, too.
        loose = [*trials.failing(made.spec, shapes).values()] if loose and shapes else loose
        for said in loose:
            if name := refuted(made.text, said):
                return _open_at(made, f"the size of '{name}': with the drafted one the kernel {said}", name)
        if not shapes:
            return _asked(made, f"at each of the drafted sizes the kernel {next(iter(failing.values()))}")
        way = replace(way, shapes=shapes)
        made = made_by(way)
    count = halvings(trials, made.spec)
    return made_by(replace(way, halvings=count)) if positive or count else made


def _asked(made: Draft, problem: str) -> Draft:
    """The draft with a gap: inputs with which the kernel does something that can be compared."""
    drawn = [a.name for a in made.spec.arguments if a.role in ("in", "inout")]
    whole = [a.name for a in made.spec.arguments if is_index(a)]
    asked = f"suitable inputs: with random ones {problem}; write a fill"
    if len(whole) > 1:
        names = "', '".join(whole)
        asked += f" (the contents of '{names}' may have to belong together)"
    return _open_at(made, asked, (whole or drawn)[0] if drawn else "")


def _open_at(made: Draft, asked: str, name: str) -> Draft:
    """The draft with one gap, closed by the line of an argument ("": by none)."""
    gap = Gap(asked, f"args.{name}" if name else "")
    mark = "// optiml: " if made.text.startswith("//") else ""
    return replace(made, missing=(gap,), text=f"{made.text}{mark}# missing: {gap}\n")


def _equal(program: Program, made: Draft, way: _Way) -> _Way:
    """With sizes as equal as the host has them, where its launch follows from one that it passes for several."""
    if not _unlaunched(made):
        return way
    kernel = parse(program.data, program.kernel_file).kernel(made.spec.kernel)
    return replace(way, equal=passed_equal(program, kernel))


def _hosts(program: Program, made: Draft, way: _Way) -> _Way:
    return replace(way, hosts=in_grid(program, made.spec)) if _unlaunched(made) else way


def _unlaunched(made: Draft) -> bool:
    return any(gap.key == "launch" for gap in made.missing)


def _segments(program: Program, made: Draft, way: _Way) -> _Way:
    """With a size that bounds the segments of ragged rows, where the kernel is given where they begin."""
    unit = parse(program.data, program.kernel_file)
    if not any(_holds_offsets(made.spec, name) for name in Usage(unit, unit.kernel(made.spec.kernel)).offsets()):
        return way
    named = [n for n in made.spec.time[0].sizes if _LONGEST.match(n)]
    return replace(way, segment=named[0]) if named else replace(way, segment=_SEGMENT, hosts=(*way.hosts, _SEGMENT))


def _holds_offsets(spec: KernelSpec, name: str) -> bool:
    return any(a.name == name and a.role == "in" and parse_dtype(a.type).kind == "int" for a in spec.arguments)


def _products(program: Program, made: Draft, way: _Way) -> _Way:
    """With sizes that the host computes of others, `n = rows * cols`: at other values some kernels leave their buffers."""
    unit = parse(program.data, program.kernel_file)
    found = passed_products(program, unit.kernel(made.spec.kernel))
    more = [name for factors in found.values() for name in factors if name not in {a.name for a in made.spec.arguments}]
    return replace(way, products=found, hosts=tuple(dict.fromkeys((*way.hosts, *more)))) if found else way


def _launching(program: Program, made: Draft, way: _Way) -> _Way:
    return replace(way, launching=deciding(program, made.spec))


def _open(made: Draft) -> int:
    """How many buffers have no size."""
    return sum(a.role != "scalar" and not a.size for a in made.spec.arguments)


def _loose(made: Draft) -> int:
    """How many buffers have a size that only covers what was touched."""
    return made.text.count(COVERING)


def _draft(program: Program, kernel_name: str, written: DraftForm, way: _Way) -> Draft:
    """As `draft`, in one way."""
    unit = parse(program.data, program.kernel_file)
    types = aliases(program, way.options.defines, way.options.include, way.options.unit)
    base, template_args = split_kernel(kernel_name)
    try:
        kernel = unit.kernel(base)
    except KeyError:
        there = ", ".join(sorted(k.qualified for k in unit.kernels)) or "no kernel"
        raise UsageError(f"has no kernel '{base[:100]}'", program.kernel_file, f"it has {there}") from None
    base = kernel.qualified
    missing: list[Gap] = []
    notes: list[str] = []
    if condition := condition_around(program, kernel, way.options.defines):
        asked = f"what '{condition[:80]}' asks for: the kernel stands behind it; write compile.defines"
        missing.append(Gap(asked, "compile.defines"))
    if not template_args:
        template_args = template_arguments(program, unit, kernel, notes, missing)
    usage = Usage(unit, kernel)
    usage.guards |= way.launching | usage.counted & {v.name for v in unfilled_constants(program, unit, kernel)}
    kinds = ParameterTypes(program, types, kernel, template_args)
    parts = [part for p in kernel.parameters for part in drafted_parts(kinds, p, usage, missing)]
    note_shared(program, kernel, parts)
    set_passed(program, kernel, parts)
    set_looped(program, kernel, parts)
    parts += drafted_constants(kinds, usage, missing)
    set_values(program, kernel, template_args, parts)
    set_equal(parts, way.equal)
    parts = with_divisors(program, kernel, parts)
    way = replace(way, products=set_products(parts, way.products))
    known = {p.name: kinds.of(p).dtype is not None for p in kernel.parameters}
    rows = set_strides(parts, way.hosts, usage, template_args)
    sizes = list(dict.fromkeys([p.size for p in parts if p.size] + [*way.hosts]))
    way = replace(way, divided=usage.divided(sizes))
    reach = _reach(usage, parts, sizes, replace(way, rows=rows))
    if reach.touched:  # a pointer of a struct that no trial follows may be null
        parts = [
            p
            for p in parts
            if "." not in p.argument.name or p.argument.role == "scalar" or p.argument.name in reach.touched
        ]
    _set_roles(usage, parts, sizes, way)
    if reach.touched and not reach.ended:
        set_absent(parts, passed_null(program, kernel, template_args), named(program, usage), reach.touched)
    offsets = usage.offsets() if way.segment else []
    for part in parts:
        if part.argument.role != "scalar":
            set_extent(part, reach, usage, missing, way.runs.untried, offsets)
    for part in parts:
        if way.segment and part.argument.role == "out" and way.segment in re.findall(r"\w+", part.argument.size):
            # Segments that are shorter than they may be leave the end as it was.
            part.argument = replace(part.argument, role="inout")
            part.notes = [*(n for n in part.notes if n not in SAID.values()), KEPT]
        if way.segment and part.argument.name in offsets:
            part.argument = replace(part.argument, fill=Fill("offsets", "0", f"{way.segment} + 1"))
            part.notes.append(f"assumed: where segments begin, each of at most {way.segment}")
            continue
        set_fill(part, {p.argument.name: p.argument for p in parts}, reach.tables, usage)
        if way.positive:
            set_finite(part)
    missing += beyond(program, usage, [p.argument.size for p in parts])
    check, time = first_shapes(sizes, [p.argument for p in parts], way.divided)
    if way.turned:
        check = ordered_shapes(check, sizes, [p.argument for p in parts])
    unnamed = any("." in gap.key.removeprefix("args.") for gap in missing)  # what a pointer of a struct points to
    if all(p.argument.role in ("in", "scalar") for p in parts) and all(known.values()) and not unnamed:
        # Of a pointer that is handed on the text shows no end: trials are no proof that nothing is ever written.
        handed_on = any(p.argument.role == "in" and usage.uses[p.argument.name].escapes for p in parts)
        wrote = "the kernel wrote to no buffer in any trial" if handed_on else "the kernel writes to no buffer"
        missing.append(Gap(f"an output: {wrote} that it is given, so nothing can be compared"))
    added = atomic_adds(program, kernel)
    kept = [source_type(types, kernel, shared.type, template_args) for shared in kernel.shared if shared.name in added]
    sums = [
        *(parse_dtype(p.argument.type) for p in parts if p.argument.name in added),
        *(k for k in kept if k is not None),
    ]
    floats = any(dtype.kind == "float" for dtype in sums)
    spec = KernelSpec(
        file=program.kernel_file,
        steps=(Step(base, template_args, tuple(p.name for p in kernel.parameters)),),
        arguments=tuple(p.argument for p in parts),
        check=check,
        time=(time,),
        deterministic=not floats,
        compile=way.options,
    )
    host, problem = dict[str, int](), ""
    if way.launch is not None:
        spec = replace(spec, steps=(replace(spec.steps[0], launch=way.launch),))
    else:
        host, problem = host_sizes(program, spec) if is_launched(program, kernel) else ({}, no_launch(program, kernel))
    threads = usage.threads(sizes) if problem else ""
    if threads:
        host = {}
        launch = LaunchExpr((f"cdiv({threads}, {BLOCK})",), (str(BLOCK),))
        spec = replace(spec, steps=(replace(spec.steps[0], launch=launch),))
    elif problem:
        missing.append(Gap(f"the launch: {problem}", "launch", launch_line(guessed_launch(usage, sizes, program))))
    spec = counted_shapes(program, kernel, spec, way.divided)
    spec = launchable_shapes(program, spec, sizes, host, way.divided, way.whole)
    spec = shrunk(program, spec, sizes, way.halvings)
    spec = replace(spec, check=way.shapes or spec.check)
    set_by_block(parts, way.blocks)
    spec = replace(spec, arguments=tuple(p.argument for p in parts))
    missing = [*asked_first(missing, way.runs.untried)]
    written = replace(written, toml_file=written.toml_file or program.kernel_file)
    text = _render(spec, parts, notes, missing, written, way)
    return Draft(spec, text, tuple(missing))


def _reach(usage: Usage, parts: list[Part], sizes: list[str], way: _Way) -> Reach:
    """How far trials and the text show that the kernel reaches into its buffers."""
    trials: dict[str, list[Trial]] = {}
    later: dict[str, list[Trial]] = {}
    static: dict[str, list[Trial]] = {}
    buffers = [p.argument.name for p in parts if p.argument.role != "scalar"]
    values = {p.argument.name: p.argument.value for p in parts if p.argument.role == "scalar" and p.argument.value}
    # The text does not show every index that comes from a buffer: where one moves what is touched, it is one.
    offsets = usage.offsets() if way.segment else []
    indices = any(is_index(p.argument) for p in parts if p.argument.name not in offsets)
    failed = False  # some trial gave nothing before others did
    ended = ""
    # With no size at all one trial says everything: nothing can vary.
    for at, chosen in enumerate(_trials_of(sizes, way)):
        if way.runs.probe is not None and (sizes or at == 0):
            given = way.given(chosen)
            reached = way.runs.probe(given)
            failed |= not reached and not trials
            ended = ended or way.runs.ended(given)
            for name, touched in reached.items():
                trials.setdefault(name, []).append((chosen, touched))
            for name, touched in way.runs.moved(given).items() if way.runs.moved is not None and indices else ():
                later.setdefault(name, []).append((chosen, touched))
        whole = {n: int(v) for n, v in values.items() if v.isdigit()}
        for name in buffers:
            reach = usage.extent(name, {**whole, **chosen})
            if reach is not None:
                static.setdefault(name, []).append((chosen, reach))
    if failed and not way.tiled:
        trials, later = {}, {}  # what odd sizes are too small for looks constant to the others
    extents = {}
    for name in buffers:
        # A probe reaches what it reaches: a buffer read at random places, or by a small fixed grid, looks constant or small.
        # The text then decides.
        measured, read = fit(trials.get(name, []), way.grids, way.rows), fit(static.get(name, []))
        options = [o for o in (measured, read and replace(read, measured=False)) if o is not None]
        options.sort(key=lambda o: (not o.exact, o.text.isdigit()))
        if options:
            extents[name] = options[0]
    for name in buffers:
        if name not in extents and (size := as_others(trials.get(name, []), [e.text for e in extents.values()])):
            extents[name] = Extent(size, False)
    tables = {name: indirect(trials.get(name, []), later.get(name, [])) for name in buffers}
    found = {name: table for name, table in tables.items() if table is not None}
    for name, index in stored_at(usage, [p.argument for p in parts], found).items():
        if index in extents and index not in found:
            found[name] = scattered(found[name], extents[index].text)
    assumed = tuple(p.argument.name for p in parts if ASSUMED in p.notes and p.argument.role == "scalar")
    return Reach(extents, found, {*trials}, way.runs.probe is not None, ended, assumed)


def _trials_of(sizes: list[str], way: _Way) -> tuple[dict[str, int], ...]:
    if len(sizes) > _MANY_SIZES + 2:  # the host's count blocks: with the largest values a launch would not end in time
        sizes = [*way.hosts, *(each for each in sizes if each not in way.hosts)]
    return trial_sizes(sizes[::-1] if way.turned else sizes, tiled=way.tiled, divided=way.divided, tile=way.tile)


def _set_roles(usage: Usage, parts: list[Part], sizes: list[str], way: _Way) -> None:
    """Roles as trials show them, where these agree; the text shows neither what functions do with a pointer nor which writes come first."""
    seen: dict[str, set[Role]] = {}
    for chosen in _trials_of(sizes, way):
        for name, each in way.runs.roles(way.given(chosen)).items() if way.runs.roles is not None else ():
            seen.setdefault(name, set()).add(each)
    for part in parts:
        argument = part.argument
        found = seen.get(argument.name)
        if found and not usage.uses[argument.name].atomic:
            role: Role = found.pop() if len(found) == 1 and argument.name not in way.kept else "inout"
            if role == "in" and usage.uses[argument.name].stored:
                role = "inout"  # a store behind a condition that no trial met
            if role == argument.role == "out":
                continue
            notes = [n for n in part.notes if n not in SAID.values()]
            said = SAID[role] if role != "inout" else KEPT if argument.role == "out" else ""
            part.argument, part.notes = replace(argument, role=role), [*notes, said] if said else notes


def _render(
    spec: KernelSpec, parts: list[Part], notes: list[str], missing: list[Gap], written: DraftForm, way: _Way
) -> str:
    hosts = [name for name in way.hosts if name != _SEGMENT]
    shapes = [f"assumed: {', '.join(hosts)} of the launch are sizes"] if hosts else []
    said = {
        "kernel": notes,
        "deterministic": ["assumed: atomics on floats"],
        "launch": [] if way.launch is not None else ["assumed: the launch, as the host's cannot be read"],
        "check": [
            *(["assumed: the kernel is made for whole tiles"] if way.whole else []),
            *([KEEPING] if way.shapes else []),
            *(["assumed: no size is larger than one before it"] if way.turned and not way.shapes else []),
        ],
        "time": ["assumed: the shapes", *shapes],
        **{f"args.{part.argument.name}": part.notes for part in parts},
    }
    typed = [part.argument.name for part in parts if part.typed]
    return spec_text(spec, said, missing, written.form, written.toml_file, typed)
