"""A kernel spec from a recording: the program's own sizes, values, launches and roles in place of what a draft assumes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from engine.capture.manifest import (
    BLOBS,
    CPU_CALL,
    RecordedKernel,
    RecordedLaunch,
    find_recorded,
    load_manifest,
    recording_folder,
)
from engine.capture.recorded_checks import RecordedShapes, tied_lengths
from engine.capture.recorded_launch import find_launch, per_extent
from engine.capture.recorded_values import (
    LARGE,
    MULTIPLES,
    NamedLaunch,
    changed,
    contents,
    fill_of,
    filling_size,
    fitting_size,
    may_hold_addresses,
    scalar_value,
    with_fields,
    written_number,
)
from engine.cuda.constants import words
from engine.cuda.load import load_program
from engine.cuda.parse import parse
from engine.errors import SourceError
from engine.model import LaunchConfig, Program
from engine.spec.draft import Draft, draft
from engine.spec.drafted_contents import UNUSED, named
from engine.spec.dtypes import parse_dtype
from engine.spec.extents import value_at
from engine.spec.find import project_options
from engine.spec.gaps import Gap
from engine.spec.kernel_spec import Argument, Case, Fill, Role
from engine.spec.launch_config import evaluate
from engine.spec.size_gaps import FILLING
from engine.spec.spec_checks import case_name
from engine.spec.spec_text import spec_text
from engine.spec.usage import Usage

_SIDE = 32  # a number that only the host knows, up to which it alone explains no buffer
_LEAST_WEIGHT = 0.001
_SMALL_BYTES = 1 << 20  # of a buffer whose size is taken from its allocation alone: segments of allocators are larger


def recorded_spec(
    root: Path,
    kernel: str,
    made: Draft | None = None,
    *,
    folder: Path | None = None,
    roles: Mapping[str, Role] = MappingProxyType({}),
    whole: Collection[str] = (),
) -> Draft | None:
    """The spec of a kernel as the recorded program called it; None where no launch of it is recorded.

    `kernel` is as of `find_recorded`. `made` is the draft to start from (default: one from the text alone). What the recording
    does not decide stays as drafted; `missing` names what cannot be restored. `folder` is the recording's, by default the
    repository's, `roles` are those that trial runs showed, of buffers, and `whole` the buffers that they went beyond: these are as long
    as their allocations.
    Raises UsageError for a recording that cannot be read, SourceError.
    """
    folder = folder or recording_folder(root)
    manifest = load_manifest(folder)
    found = find_recorded(manifest, kernel) if manifest is not None else None
    if found is None:
        return None
    options = project_options(root, root / found.file)
    program = load_program(root / found.file, kernels=[found.kernel], include=options.include, unit=options.unit)
    name = f"{found.kernel}<{found.template_args}>" if found.template_args else found.kernel
    made = made or draft(program, name, options=options)
    if roles:
        arguments = [replace(a, role=roles.get(a.name, a.role)) for a in made.spec.arguments]
        made = replace(made, spec=replace(made.spec, arguments=tuple(arguments)))
    restored = _Restored(program, made, found, folder, frozenset(whole)).draft()
    if restored.missing and len(found.launches) > 1:
        longest = max(found.launches, key=lambda r: r.total_us)
        alone = _Restored(
            program, made, replace(found, launches=(longest,)), folder, frozenset(whole), alone=True
        ).draft()
        restored = restored if alone.missing else alone
    return restored


@dataclass
class _Restored:
    """One draft on its way to what was recorded."""

    program: Program
    made: Draft
    found: RecordedKernel
    folder: Path
    whole: frozenset[str]  # buffers that are as long as their allocations
    alone: bool = False  # launches of other shapes are left out
    notes: dict[str, list[str]] = field(default_factory=dict)
    grid: Mapping[str, int] = field(default_factory=dict)  # as `FoundLaunch` has it

    def __post_init__(self) -> None:
        # Constant memory is in no recording: what the draft says of it stays.
        self.constants = tuple(a for a in self.made.spec.arguments if a.symbol)
        self.spec = replace(self.made.spec, arguments=tuple(a for a in self.made.spec.arguments if not a.symbol))
        self.missing: list[Gap] = list(self.made.missing)
        names = self.spec.steps[0].arguments
        self.launches = [
            NamedLaunch(r, with_fields(self.spec, dict(zip(names, r.arguments, strict=True))))
            for r in self.found.launches
            if len(r.arguments) == len(names)
        ]
        null = [a for a in self.spec.arguments if self._null(a)]
        self._closed(*(f"the size of '{a.name}'" for a in null))
        self.spec = replace(self.spec, arguments=tuple(a for a in self.spec.arguments if a not in null))

    def draft(self) -> Draft:
        if not self.launches:
            count = len(self.found.launches[0].arguments)
            gap = Gap(
                f"the recording has {count} arguments, the source {len(self.spec.arguments)}: run 'optiml capture' again"
            )
            return replace(self.made, missing=(gap, *self.made.missing))
        self._scalars()
        sizes = self._sizes()
        self._values(sizes)
        self._products(sizes)
        sizes = self._launch(sizes)
        self._buffers(sizes)
        self._cases(sizes)
        self._refused()
        self.spec = replace(self.spec, arguments=self.spec.arguments + self.constants)
        for a in self.constants:
            self._say(f"args.{a.name}", "assumed: constant memory is not recorded")
        text = spec_text(self.spec, self.notes, self.missing, "comments", "")
        return Draft(self.spec, text, tuple(self.missing))

    def _null(self, a: Argument) -> bool:
        """Whether a pointer of a struct was null in every launch."""
        return (
            "." in a.name
            and a.role != "scalar"
            and all(not int(e.arguments[a.name].data or "0", 16) for e in self.launches)
        )

    def _say(self, key: str, what: str) -> None:
        self.notes.setdefault(key, []).append(what)

    def _closed(self, *starts: str) -> None:
        """Gaps that the recording closes."""
        self.missing = [m for m in self.missing if not m.startswith(starts)]

    def _set(self, argument: Argument) -> None:
        new = [argument if a.name == argument.name else a for a in self.spec.arguments]
        self.spec = replace(self.spec, arguments=tuple(new))

    # ---- scalars and sizes

    def _scalars(self) -> None:
        """Values of scalars that are no sizes; a whole number that differs between launches becomes a size."""
        first, longest = self._heaviest(), self._longest()
        for a in filter(self._unlike, self.spec.arguments):
            self._set(replace(a, value="0"))  # a number of its own
        for a in self.spec.arguments:
            if a.role != "scalar" or self.spec.fields(a.name):
                continue
            recorded = first.arguments[a.name]
            if a.type == "struct:1" or parse_dtype(a.type).kind == "bytes" or parse_dtype(a.type).lanes > 1:
                if a.type.startswith("struct:"):
                    self._set(replace(a, type=f"struct:{recorded.size}", value=f"hex:{recorded.data}"))
                    self._closed(f"the type of '{a.name}'", f"the value of '{a.name}'")
                    self._say(f"args.{a.name}", "recorded: the value")
                continue
            dtype = parse_dtype(a.type)
            values = [scalar_value(each.arguments[a.name], dtype) for each in self.launches]
            if a.size_name or values[0] is None or None in values:
                continue
            if _is_expression(a.value) and (text := self._expression(a.value, values)):
                self._set(replace(a, value=text))
                self._say(f"args.{a.name}", "assumed: the value, which every recorded launch agrees with")
                continue
            whole = dtype.kind == "int" and all(isinstance(v, int) and 0 <= v <= longest for v in values)
            if whole and len(set(values)) > 1:
                self._set(replace(a, value=a.name.rpartition(".")[2] if "." in a.name else ""))
                continue
            value = scalar_value(recorded, dtype)
            if value is not None:
                self._set(replace(a, value=written_number(value, dtype)))
                more = ", differs between launches" if len(set(values)) > 1 else ""
                self._say(f"args.{a.name}", f"recorded: the value{more}")

    def _unlike(self, a: Argument) -> bool:
        """Whether a scalar that is drafted as another argument was passed with other values."""
        named = next((b for b in self.spec.arguments if a.value and b.name == a.value == b.size_name), None)
        if named is None or self.spec.fields(a.name):
            return False
        one, other = (
            [scalar_value(each.arguments[b.name], parse_dtype(b.type)) for each in self.launches] for b in (a, named)
        )
        return one != other

    def _longest(self) -> int:
        """Elements of the longest buffer: a number above it is no extent of anything."""
        return max((length for each in self.launches for length in self._lengths(each)), default=0)

    def _lengths(self, each: NamedLaunch) -> list[int]:
        """Elements that each buffer of a launch has room for."""
        return [each.room(a.name) // parse_dtype(a.type).itemsize for a in self._pointers()]

    def _pointers(self) -> Iterator[Argument]:
        return (a for a in self.spec.arguments if a.role != "scalar")

    def _expression(self, drafted: str, values: Sequence[int | float | None]) -> str:
        """What gives a scalar's recorded values: one of the sizes, else what the draft assumes of them; "" where neither does."""
        arguments = [a for a in self.spec.arguments if a.size_name]
        sizes = [
            {
                a.size_name: v
                for a in arguments
                if isinstance(v := scalar_value(r.arguments[a.name], parse_dtype(a.type)), int)
            }
            for r in self.launches
        ]
        tried = [*sizes[0], drafted]
        return next((t for t in tried if all(value_at(t, s) == v for s, v in zip(sizes, values, strict=True))), "")

    def _heaviest(self) -> NamedLaunch:
        return max(self.launches, key=lambda each: each.launch.total_us)

    def _sizes(self) -> list[dict[str, int]]:
        """The free sizes of each launch. Names that are no arguments keep their drafted values for now."""
        drafted = {n: int(v) for n, v in self.spec.time[0].sizes.items()} if self.spec.time else {}
        free = [a for a in self.spec.arguments if a.size_name]
        sizes = []
        for each in self.launches:
            own = dict(drafted)
            for a in free:
                value = scalar_value(each.arguments[a.name], parse_dtype(a.type))
                if isinstance(value, int) and value >= 0:
                    own[a.size_name] = value
                elif value is not None:
                    gap = f"the size '{a.size_name}' was {value} in a recorded launch: no size is negative"
                    self.missing.append(Gap(gap))
            sizes.append(own)
        return sizes

    def _values(self, sizes: list[dict[str, int]]) -> None:
        """What the draft takes for a size, and what is beyond every buffer and decides no launch, is a value."""
        longest = self._longest()
        for a in self.spec.arguments:
            if not a.size_name or all(own.get(a.size_name, 0) <= longest for own in sizes):
                continue
            own = sizes[self.launches.index(self._heaviest())]
            try:
                decides = evaluate(self.program, self.spec, 0, own) != evaluate(
                    self.program, self.spec, 0, {**own, a.size_name: own[a.size_name] // 2}
                )
            except SourceError:
                continue
            if not decides and not any(a.size_name in words(b.size) for b in self._pointers()):
                self._set(replace(a, value=str(own[a.size_name])))
                self._say(f"args.{a.name}", "recorded: the value")
                for each in sizes:
                    del each[a.size_name]

    def _products(self, sizes: list[dict[str, int]]) -> None:
        """A length that is the product of two others in every recorded launch is that in each case."""
        scalars = [
            a for a in self.spec.arguments if a.size_name and all(own.get(a.size_name, 0) > LARGE for own in sizes)
        ]
        for a, (one, other) in itertools.product(scalars, itertools.combinations([b.size_name for b in scalars], 2)):
            name, text = a.size_name, f"{one}*{other}"
            if any(name not in own or value_at(text, own) != own[name] for own in sizes):
                continue
            for b in self.spec.arguments:
                written = [
                    text if t == name else re.sub(rf"\b{re.escape(name)}\b", f"({text})", t)
                    for t in (b.size, b.fill.low, b.fill.high)
                ]
                fill = replace(b.fill, low=written[1], high=written[2])
                self._set(replace(b, size=written[0], fill=fill, value=text if b.size_name == name else b.value))
            self._say(f"args.{a.name}", "assumed: the value, which every recorded launch agrees with")
            for own in sizes:
                del own[name]

    # ---- the launch

    def _launch(self, sizes: list[dict[str, int]]) -> list[dict[str, int]]:
        """The sizes that give the recorded launches; where the host's text gives them for none, the spec declares the launch."""
        before = self.spec.steps[0].launch
        found = find_launch(self.program, self.spec, self.launches, sizes)
        self.spec, self.grid = found.spec, found.grid
        self._closed("the launch: ")
        if found.problem:
            self.missing.append(Gap(f"the launch: {found.problem}", "launch"))
        elif self.spec.steps[0].launch != before:
            self._say("launch", "assumed: the grid, from the recorded launches")
        for a in self._pointers():
            if not set(words(a.size)).isdisjoint(sizes[0].keys() - found.sizes[0].keys()):
                self._set(replace(a, size=""))  # of what only the host knows
        return found.sizes

    # ---- buffers

    def _buffers(self, sizes: list[dict[str, int]]) -> None:
        tied = tied_lengths(self.spec, sizes)
        names = [n for n in sizes[0] if all(own[n] >= 1 for own in sizes) and n not in tied]
        passed = {a.size_name or a.name for a in self.spec.arguments}
        sides = {n for n in names if n not in passed and all(own[n] <= _SIDE for own in sizes)}  # of blocks, mostly
        heaviest = self.launches.index(self._heaviest())
        threads = self._heaviest().launch.block
        blocks = [k * threads[0] * threads[1] * threads[2] for k in (1, 2, 4)]
        likely = (lambda text: False, self._per_thread(sizes[heaviest]))
        unit = parse(self.program.data, self.program.kernel_file)
        used = named(self.program, Usage(unit, unit.kernel(self.spec.kernel)))
        for a in self.spec.arguments:
            if a.role == "scalar":
                continue
            trials = [(own, each.room(a.name)) for own, each in zip(sizes, self.launches, strict=True)]
            if any(each.buffer(a.name) is None for each in self.launches):
                self.missing.append(
                    Gap(f"the size of '{a.name}': it was not an address in GPU memory in a recorded launch")
                )
                continue
            if a.name not in used and "." not in a.name:
                self._closed(f"the size of '{a.name}'")
                self._say(f"args.{a.name}", UNUSED)
                self._set(replace(a, role="in", size="1", fill=Fill("constant", "0")))
                continue
            dtype = parse_dtype(a.type)
            room = trials[heaviest][1]
            if a.size and self._exact() and any((value_at(a.size, o) or 0) * dtype.itemsize > r for o, r in trials):
                a = replace(a, size="")  # the program has no room for it
            if a.name in self.whole and self._exact():
                a = replace(a, size=str(min(room for _, room in trials) // dtype.itemsize))
                self._closed(f"the size of '{a.name}'")
                self._say(f"args.{a.name}", f"{FILLING}, as the kernel goes beyond less")
            elif a.size.isdigit() and self._exact() and room > int(a.size) * dtype.itemsize:
                a = replace(a, size="")  # the text shows a part of it
            elif (
                a.size
                and self._exact()
                and (whole := filling_size(names, trials, dtype.itemsize, a.size))
                and (a.role != "out" or not self.grid.keys().isdisjoint(words(whole)))
            ):
                a = replace(a, size=whole)
                self._say(f"args.{a.name}", FILLING)
            if a.size:
                short = next(((o, r) for o, r in trials if (value_at(a.size, o) or 0) * dtype.itemsize > r), None)
                if short is not None:
                    gap = f"the size of '{a.name}': {a.size} needs more than the {short[1]} bytes recorded"
                    self.missing.append(Gap(gap, f"args.{a.name}"))
            elif (
                (size := fitting_size(names, trials, dtype.itemsize, (dtype.lanes, *blocks), likely[a.role == "out"]))
                and (size.isdigit() or not sides.issuperset(words(size)))
            ) or (size := per_extent(self.grid, trials, dtype.itemsize)):
                a = replace(a, size=size)
                self._closed(f"the size of '{a.name}'")
                self._say(f"args.{a.name}", FILLING)
            elif why := self._constant(sizes[heaviest], room, dtype.itemsize):
                a = replace(a, size=str(room // dtype.itemsize))
                self._closed(f"the size of '{a.name}'")
                self._say(f"args.{a.name}", f"{FILLING}, {why}")
            pairs = [(b.before, b.after) for each in self.launches if (b := each.buffer(a.name)) is not None]
            if changed(pairs) and a.role == "in":
                a = replace(a, role="inout")
                self._say(f"args.{a.name}", "recorded: written")
            elements = value_at(a.size, sizes[heaviest]) if a.size else None
            buffer = self.launches[heaviest].buffer(a.name)
            if elements and buffer is not None and a.role in ("in", "inout"):
                found = contents(self.folder / BLOBS, buffer, dtype, elements)
                if found is not None and found.size:
                    fill, said = fill_of(found, dtype, sizes[heaviest], a.fill)
                    a = replace(a, fill=fill)
                    if said:
                        self._say(f"args.{a.name}", said)
            self._set(a)

    def _per_thread(self, own: Mapping[str, int]) -> Callable[[str], bool]:
        """Whether a size grows as the launch's threads do: what tells two sizes of one value apart for a result of each thread."""
        other = {name: value * (2 + at) for at, (name, value) in enumerate(own.items())}
        try:
            here, there = (_threads(evaluate(self.program, self.spec, 0, s)) for s in (own, other))
        except SourceError:
            return lambda text: False
        return lambda text: (value_at(text, own) or 0) * there == (value_at(text, other) or -1) * here

    def _exact(self) -> bool:
        """Whether allocations are as long as they were asked for."""
        return all(each.launch.call == CPU_CALL for each in self.launches)

    def _constant(self, own: Mapping[str, int], room: int, itemsize: int) -> str:
        """Why a buffer may be taken for one of constant size, as long as its allocation; "" where nothing says so.

        The CPU runtime's allocations are as long as they were asked for; others may be segments of an allocator, unless they are
        small, or as long as the launch has threads, or a small multiple of that.
        """
        if room < itemsize:
            return ""
        if self._exact():
            return "which no size explains"
        count = _threads(self._heaviest().launch)
        whole = room <= _SMALL_BYTES or room in {k * count * itemsize for k in MULTIPLES}
        return "as the launch is always the same" if whole and self._fixed_launch(own) else ""

    def _fixed_launch(self, own: Mapping[str, int]) -> bool:
        """Whether the launch is the same for larger sizes: what a block leaves is then of one size too."""
        try:
            other = {name: 2 * value for name, value in own.items()}
            return evaluate(self.program, self.spec, 0, own) == evaluate(self.program, self.spec, 0, other)
        except SourceError:
            return False

    # ---- cases and what cannot be restored

    def _cases(self, sizes: list[dict[str, int]]) -> None:
        """Timing cases weighted by the time of their launches; checks keep their drafted sizes, with the host's names as recorded."""
        weights: dict[tuple[tuple[str, int], ...], float] = {}
        for each, own in zip(self.launches, sizes, strict=True):
            key = tuple(own.items())
            weights[key] = weights.get(key, 0.0) + each.launch.total_us
        most = max(weights.values()) or 1.0
        time = tuple(
            Case(case_name(dict(k)), dict(k), max(_LEAST_WEIGHT, round(w / most, 3)))
            for k, w in sorted(weights.items(), key=lambda item: -item[1])
        )
        self.spec = RecordedShapes(self.program, self.spec, sizes, self.grid).spec(time)
        self._say("time", "recorded: the shapes, weighted by their time")
        if self.alone:
            self._say("time", "assumed: the longest-running launch alone, as no spec gives all of the recorded ones")

    def _refused(self) -> None:
        """What a recording has and a spec cannot: addresses in buffers and structs, clusters."""
        for a in self.spec.arguments:
            each = [launch.arguments[a.name] for launch in self.launches]
            known = {f.offset for f in self.spec.fields(a.name)}
            if a.role == "scalar" and any(b.at not in known for r in each for b in r.buffers):
                self.missing.append(
                    Gap(f"'{a.name}' is a struct with addresses of GPU memory, which cannot be restored")
                )
            elif a.role != "scalar" and may_hold_addresses(a) and any(b.addresses for r in each for b in r.buffers):
                self.missing.append(Gap(f"'{a.name}' contains addresses of GPU memory, which cannot be restored"))
        if any(any(x > 1 for x in launch.launch.cluster) for launch in self.launches):
            self.missing.append(Gap("thread block clusters: a spec cannot declare them"))
        pointers = [a.name for a in self.spec.arguments if a.role != "scalar"]
        for one, other in itertools.combinations(pointers, 2):
            pairs = [(launch.buffer(one), launch.buffer(other)) for launch in self.launches]
            if all(p and q and p.address == q.address for p, q in pairs):
                self._say(f"args.{other}", f"recorded: the same buffer as '{one}'")


def _is_expression(value: str) -> bool:
    return bool(value) and not value.replace(".", "").lstrip("-").isdigit() and not value.startswith("hex:")


def _threads(launch: LaunchConfig | RecordedLaunch) -> int:
    return math.prod(launch.grid) * math.prod(launch.block)
