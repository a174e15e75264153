"""Drafts a kernel spec from the source: roles, sizes and extents, with every assumption said beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from engine.arith import evaluate_int
from engine.errors import SourceError, UsageError
from engine.model import Program
from engine.source.aliases import aliases, condition_around
from engine.source.model import Kernel, Parameter, Unit
from engine.source.parse import parse
from engine.spec.check import case_name, derived_cases
from engine.spec.dtypes import parse_dtype
from engine.spec.extents import Extent, Trial, fit, trial_sizes
from engine.spec.host import deciding, for_checks, host_sizes, launchable
from engine.spec.indirect import ROWS, Indirect, indirect
from engine.spec.model import Argument, Case, Fill, KernelSpec, LaunchExpr, Step
from engine.spec.types import source_type, template_defaults
from engine.spec.usage import Usage

Probe = Callable[[Mapping[str, int]], Mapping[str, int]]

# Ours: large enough that a kernel takes tens of microseconds, small enough that all buffers fit any GPU.
_TIME_SIZES = {1: 1 << 24, 2: 4096, 3: 1024}
_TIME_SIZE_MANY = 128
_TILE = 64  # a multiple of the sides of tiles that people use
_SMALL = re.compile(r"(radius|ksize|kernel_size|filter|stride|pad|dilation|halo|width_k)", re.IGNORECASE)
_MAX_BYTES = 4 << 30
_MAX_CHECKED = 30_000  # elements of one buffer in a check; ours: docs/spec.md asks for less than some 20,000
_LONG = 4099  # of a length that is short for timing: its checks are those of any length
_BLOCK = 256  # threads of a launch that is assumed
_UNSEEN = "no host code launches the kernel; add launch.grid and launch.block"


@dataclass(frozen=True)
class Draft:
    """A spec to be finished by a person.

    `text` is what to paste: `// optiml:` lines, or a table of an optiml.toml. `missing` says what could not be found out;
    where it is empty, `spec` is complete (its assumptions stand as comments in `text`).
    """

    spec: KernelSpec
    text: str
    missing: tuple[str, ...]


@dataclass
class _Part:
    argument: Argument
    notes: list[str]


def draft(
    program: Program, kernel_name: str, *, probe: Probe | None = None, moved: Probe | None = None, form: str = "comments",
    toml_file: str = "",
) -> Draft:  # fmt: skip
    """A draft of the spec of one kernel (its name may carry template arguments).

    `probe` runs the original: for a set of sizes it gives the number of elements touched of each buffer, by parameter.
    `moved` does so with all whole numbers in buffers 1 instead of 0, for buffers whose indices come from others.
    Without them extents are read from index expressions and their bounds. `form` is "comments" or "toml"; `toml_file` is
    the file's path relative to the optiml.toml. Raises UsageError for an unknown kernel, SourceError for a broken file.
    """
    made = _draft(program, kernel_name, None, form, toml_file)
    # A number that nothing in the kernel bounds may still say how many blocks there are.
    more = deciding(program, made.spec)
    if more:
        made = _draft(program, kernel_name, None, form, toml_file, more)
    if probe is None:
        return made
    tiled = _is_tiled(made.spec)
    made = _draft(program, kernel_name, probe, form, toml_file, more, tiled, moved=moved)
    if not tiled and _open(made):
        # What goes beyond its arrays at odd sizes, or refuses them, may be made for whole tiles.
        other = _draft(program, kernel_name, probe, form, toml_file, more, tiled=True, whole=True, moved=moved)
        if _open(other) < _open(made):
            return other
    return made


def _open(made: Draft) -> int:
    """How many buffers have no size."""
    return sum(a.role != "scalar" and not a.size for a in made.spec.arguments)


def _draft(
    program: Program, kernel_name: str, probe: Probe | None, form: str, toml_file: str,
    launching: frozenset[str] = frozenset(), tiled: bool = False, whole: bool = False, moved: Probe | None = None,
) -> Draft:  # fmt: skip
    """As `draft`; `launching` are scalars that are sizes because launches depend on them, `tiled` is of `trial_sizes`.

    `whole`: shapes to check are whole tiles.
    """
    unit = parse(program.data, program.kernel_file)
    types = aliases(program)
    base, template_args = _split(kernel_name)
    try:
        kernel = unit.kernel(base)
    except KeyError:
        there = ", ".join(sorted(k.qualified for k in unit.kernels)) or "no kernel"
        raise UsageError(f"has no kernel '{base[:100]}'", program.kernel_file, f"it has {there}") from None
    missing: list[str] = []
    notes: list[str] = []
    if condition := condition_around(program, kernel):
        missing.append(f"what '{condition[:80]}' asks for: the kernel stands behind it; write compile.defines")
    if not template_args:
        template_args = _template_arguments(program, unit, kernel, notes, missing)
    usage = Usage(unit, kernel)
    usage.guards |= launching
    parts = [_part(types, kernel, p, usage, template_args, missing) for p in kernel.parameters]
    sizes = [p.argument.name for p in parts if p.argument.role == "scalar" and not p.argument.value]
    extents, tables = _extents(usage, parts, sizes, probe, moved, tiled)
    for part in parts:
        if part.argument.role != "scalar":
            table = tables.get(part.argument.name)
            _set_extent(part, extents.get(part.argument.name), table, usage, missing)
    for part in parts:
        _set_fill(part, {p.argument.name: p.argument for p in parts}, tables, usage)
    time = _time_case(sizes, [p.argument for p in parts])
    if all(p.argument.role in ("in", "scalar") for p in parts):
        missing.append("an output: the kernel writes to no buffer that it is given, so nothing can be compared")
    floats = any(
        usage.uses[p.argument.name].atomic and parse_dtype(p.argument.type).kind == "float"
        for p in parts
        if p.argument.role != "scalar"
    )
    spec = KernelSpec(
        file=program.kernel_file,
        steps=(Step(base, template_args, tuple(p.name for p in kernel.parameters)),),
        arguments=tuple(p.argument for p in parts),
        check=_affordable(_awkward(time), [p.argument for p in parts]),
        time=(time,),
        deterministic=not floats,
    )
    host, problem = host_sizes(program, spec) if _launched(program, kernel) else ({}, _UNSEEN)
    threads = usage.threads(sizes) if problem else ""
    if threads:
        host = {}
        launch = LaunchExpr((f"cdiv({threads}, {_BLOCK})",), (str(_BLOCK),))
        spec = replace(spec, steps=(replace(spec.steps[0], launch=launch),))
    elif problem:
        missing.append(f"the launch: {problem}")
    spec = replace(spec, check=_with(spec.check, for_checks(host)), time=_with(spec.time, host))
    lengths = {n for n in sizes if n not in host and not _SMALL.search(n)}
    if whole:
        spec = replace(spec, check=_whole_tiles(spec, lengths))
    spec = _launchable(program, spec, lengths)
    text = _render(spec, parts, notes, missing, form, toml_file or program.kernel_file, whole)
    return Draft(spec, text, tuple(missing))


def _split(name: str) -> tuple[str, str]:
    base, _, rest = name.partition("<")
    return base.strip(), rest.strip().removesuffix(">").strip()


def _launched(program: Program, kernel: Kernel) -> tuple[str, ...] | None:
    from engine.source.launch import sites

    try:
        found = sites(program, kernel.name)
    except SourceError:
        return None
    return tuple(site.template_args for site in found) or None


def _template_arguments(program: Program, unit: Unit, kernel: Kernel, notes: list[str], missing: list[str]) -> str:
    if not kernel.template_parameters:
        return ""
    names = {p.partition("=")[0].split()[-1] for p in kernel.template_parameters}
    for arguments in _launched(program, kernel) or ():
        words = set(re.findall(r"(?<!\w)[A-Za-z_]\w*", arguments))
        if arguments and not words & names and all(w in _KNOWN_WORDS or _is_type(w) for w in words):
            return arguments
    open_ = [p for p in kernel.template_parameters if "=" not in p and "..." not in p]
    if not open_:
        return template_defaults(kernel)
    chosen = []
    for parameter in open_:
        kind = " ".join(parameter.split()[:-1])
        whole = kind == "auto" or (_is_type(kind) and parse_dtype(kind).kind == "int")
        chosen.append(
            "float" if kind in ("typename", "class") else "true" if kind == "bool" else "256" if whole else "?"
        )
        if chosen[-1] == "?":
            missing.append(f"the template argument for '{parameter[:60]}': write it in the kernel's name")
    notes.append(f"assumed: template arguments <{', '.join(chosen)}>")
    return ", ".join(chosen)


_KNOWN_WORDS = frozenset({"true", "false", "unsigned", "signed", "long", "int", "const"})


def _is_type(text: str) -> bool:
    from engine.errors import SpecError

    try:
        parse_dtype(text)
    except SpecError:
        return False
    return True


def _part(
    types: Mapping[str, str], kernel: Kernel, parameter: Parameter, usage: Usage, template_args: str, missing: list[str]
) -> _Part:
    name, notes = parameter.name, []
    dtype = source_type(types, kernel, parameter.base, template_args)
    if dtype is None:
        missing.append(f"the type of '{name}' ('{parameter.base[:60]}'): write struct:N with its size in bytes")
    kind = dtype.name if dtype else "struct:1"
    if not parameter.pointer:
        if dtype is not None and dtype.kind == "int" and dtype.lanes == 1 and usage.is_size(name):
            return _Part(Argument(name, kind, "scalar"), [])
        # Not 1: that would hide a factor that an edit forgets, and what stands beside `1 - beta`.
        value = "1e-5" if re.search("eps", name, re.IGNORECASE) else "0.75" if dtype and dtype.kind == "float" else "1"
        if dtype is None or dtype.kind == "bytes":
            value = "hex:00"
            missing.append(f"the value of '{name}': write hex: and its bytes")
        else:
            notes.append("assumed: the value")
        return _Part(Argument(name, kind, "scalar", value=value), notes)
    use = usage.uses[name]
    if parameter.const:
        return _Part(Argument(name, kind, "in"), notes)
    if use.escapes or not use.indices:
        notes.append("assumed: read and written (its uses are not all visible)")
        return _Part(Argument(name, kind, "inout"), notes)
    if not use.written:
        notes.append("assumed: only read, though the pointer is not const")
        return _Part(Argument(name, kind, "in"), notes)
    if use.read and use.starts_written and not use.atomic:
        notes.append("assumed: each element is written before it is read")
        return _Part(Argument(name, kind, "out"), notes)
    return _Part(Argument(name, kind, "inout" if use.read else "out"), notes)


def _extents(
    usage: Usage, parts: list[_Part], sizes: list[str], probe: Probe | None, moved: Probe | None, tiled: bool
) -> tuple[dict[str, Extent], dict[str, Indirect]]:
    """Buffers' sizes as far as something explains them, and those of buffers whose indices come from others."""
    trials: dict[str, list[Trial]] = {}
    later: dict[str, list[Trial]] = {}
    static: dict[str, list[Trial]] = {}
    buffers = [p.argument.name for p in parts if p.argument.role != "scalar"]
    values = {p.argument.name: p.argument.value for p in parts if p.argument.role == "scalar" and p.argument.value}
    looked_up = {name for other in usage.uses for name in usage.indexed_by(other)}
    # With no size at all one trial says everything: nothing can vary.
    for at, chosen in enumerate(trial_sizes(sizes, tiled=tiled)):
        if probe is not None and (sizes or at == 0):
            for name, touched in probe(chosen).items():
                trials.setdefault(name, []).append((chosen, touched))
            for name, touched in moved(chosen).items() if moved is not None and looked_up else ():
                later.setdefault(name, []).append((chosen, touched))
        whole = {n: int(v) for n, v in values.items() if v.isdigit()}
        for name in buffers:
            reach = usage.extent(name, {**whole, **chosen})
            if reach is not None:
                static.setdefault(name, []).append((chosen, reach))
    extents = {}
    for name in buffers:
        # A probe reaches what it reaches: a buffer read at random places, or by a small fixed grid, looks constant or small.
        # The text then decides.
        measured, read = fit(trials.get(name, [])), fit(static.get(name, []))
        options = [o for o in (measured, read and replace(read, measured=False)) if o is not None]
        options.sort(key=lambda o: (not o.exact, o.text.isdigit()))
        best = options[0] if options else None
        if best:
            extents[name] = best
    tables = {name: indirect(trials.get(name, []), later.get(name, [])) for name in looked_up}
    return extents, {name: table for name, table in tables.items() if table is not None}


def _set_extent(part: _Part, extent: Extent | None, table: Indirect | None, usage: Usage, missing: list[str]) -> None:
    name = part.argument.name
    if table is not None:
        part.argument = replace(part.argument, size=table.size)
        part.notes.append("assumed: the size" if table.high else f"assumed: a table of {ROWS} rows")
        return
    looked_up = any(name in usage.indexed_by(other) for other in usage.uses)
    if extent is None or looked_up:
        why = (
            "its indices come from another buffer"
            if looked_up
            else "no expression of the sizes explains what is touched"
        )
        missing.append(f"the size of '{name}': {why}")
        return
    part.argument = replace(part.argument, size=extent.text)
    if not extent.exact:
        part.notes.append("assumed: the size (the end is not touched)")
    elif not extent.measured:
        part.notes.append("assumed: the size, from the text")


def _set_fill(part: _Part, arguments: Mapping[str, Argument], tables: Mapping[str, Indirect], usage: Usage) -> None:
    argument = part.argument
    if argument.role not in ("in", "inout"):
        return
    dtype = parse_dtype(argument.type)
    if argument.role == "inout" and usage.uses[argument.name].atomic:
        part.argument = replace(argument, fill=Fill("constant", "0"))
        part.notes.append("assumed: starts at zero")
    elif dtype.kind in ("int", "bool", "bytes"):
        into = usage.indexed_by(argument.name)
        targets = [found for t in into if (found := tables[t].high if t in tables else arguments[t].size)]
        most = int(dtype.limits[1]) + 1
        high = "2" if dtype.kind == "bool" else str(min(most, 256))
        if targets:
            high = targets[0] if most > _MAX_CHECKED else f"min({targets[0]}, {most})"
        part.argument = replace(argument, fill=Fill("integers", "0", high))
        part.notes.append("assumed: the range of its values")


def _time_case(sizes: list[str], arguments: list[Argument]) -> Case:
    lengths = [n for n in sizes if not _SMALL.search(n)]
    each = _TIME_SIZES.get(max(1, len(lengths)), _TIME_SIZE_MANY)
    chosen: dict[str, int | float] = {n: each if n in lengths else 3 for n in sizes}
    case = Case(case_name(chosen), chosen)
    while each > 1 and _bytes(arguments, case) > _MAX_BYTES:
        each //= 2
        chosen = {n: each if n in lengths else 3 for n in sizes}
        case = Case(case_name(chosen), chosen)
    return case


def _launchable(program: Program, spec: KernelSpec, lengths: set[str]) -> KernelSpec:
    """The spec with shapes for which the host's figures give a launch: smaller ones for timing, whole tiles for checks."""
    time = spec.time[0]
    while not launchable(program, spec, time) and max([time.sizes[n] for n in lengths], default=0) > _TILE:
        sizes = {n: max(1, int(v) // 2) if n in lengths and v > 1 else v for n, v in time.sizes.items()}
        time = Case(case_name(sizes), sizes)
    check = tuple(c for c in spec.check if launchable(program, spec, c))
    if len(check) < len(spec.check):
        # The grid counts whole tiles only: an odd shape would leave a border out, or everything.
        tiled = _whole_tiles(spec, lengths)
        check = tuple(c for c in tiled if launchable(program, spec, c)) or check or spec.check
    return replace(spec, time=(time,), check=check)


def _whole_tiles(spec: KernelSpec, lengths: set[str]) -> tuple[Case, ...]:
    """Check shapes whose lengths are multiples of the sides of tiles."""
    sizes = [{n: -(-int(v) // _TILE) * _TILE if n in lengths else v for n, v in c.sizes.items()} for c in spec.check]
    least = Case("", {n: _TILE if n in lengths else v for n, v in spec.check[0].sizes.items()})
    # Whole tiles of 64 on every side may be too much to check.
    if max(_largest(list(spec.arguments), least), _TILE ** len(lengths)) > _MAX_CHECKED:
        order, base = sorted(lengths), spec.check[0].sizes
        sizes = [{**base, **{n: 8 << ((k >> i) & 1) for i, n in enumerate(order)}} for k in range(3)]
    return tuple(Case(case_name(s), s) for at, s in enumerate(sizes) if s not in sizes[:at])


def _awkward(time: Case) -> tuple[Case, ...]:
    """Check shapes for a timing case whose sizes are lengths, however short they are."""
    return derived_cases((Case("", {n: v if _SMALL.search(n) else max(int(v), _LONG) for n, v in time.sizes.items()}),))


def _affordable(cases: tuple[Case, ...], arguments: list[Argument]) -> tuple[Case, ...]:
    """Check shapes with smaller, still odd lengths where a buffer would take long to check without a GPU."""
    found: list[Case] = []
    for case in cases:
        while _largest(arguments, case) > _MAX_CHECKED:
            name = max(case.sizes, key=lambda n: case.sizes[n])
            if case.sizes[name] <= 3:
                break
            sizes = {**case.sizes, name: int(case.sizes[name]) // 2 | 1}
            case = Case(case_name(sizes), sizes)
        if case not in found:
            found.append(case)
    return tuple(found)


def _is_tiled(spec: KernelSpec) -> bool:
    """Whether a size has to be a multiple of something: the checks say so, or the block has as many threads."""
    named = [a.name for a in spec.arguments if a.role == "scalar" and not a.value]
    lengths = [n for n in named if not _SMALL.search(n)]
    return any(all(c.sizes[n] % _TILE == 0 for c in spec.check) for n in lengths)


def _with(cases: tuple[Case, ...], more: Mapping[str, int]) -> tuple[Case, ...]:
    sizes = [{**case.sizes, **more} for case in cases]
    return tuple(Case(case_name(s), s) for s in sizes) if more else cases


def _largest(arguments: list[Argument], case: Case) -> int:
    return max((evaluate_int(a.size, case.sizes) for a in arguments if a.role != "scalar" and a.size), default=0)


def _bytes(arguments: list[Argument], case: Case) -> int:
    buffers = [a for a in arguments if a.role != "scalar" and a.size]
    return sum(evaluate_int(a.size, case.sizes) * parse_dtype(a.type).itemsize for a in buffers)


def _table(values: Mapping[str, object]) -> str:
    return "{ " + ", ".join(f"{k} = {v if isinstance(v, str) else json.dumps(v)}" for k, v in values.items()) + " }"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _argument(argument: Argument) -> str:
    values: dict[str, object] = {}
    if argument.type.startswith("struct:"):
        values["type"] = _quoted(argument.type)
    if argument.role == "scalar":
        return _table({**values, "value": _quoted(argument.value)})
    values["role"] = _quoted(argument.role)
    values["size"] = _quoted(argument.size or "?")
    fill = argument.fill
    if argument.role != "out":
        parts = {"kind": _quoted(fill.kind), "low": _quoted(fill.low), "high": _quoted(fill.high)}
        given = {k: v for k, v in parts.items() if v != '""'}
        values["fill"] = _table(given) if len(given) > 1 else _quoted(fill.kind)
    return _table(values)


def _render(
    spec: KernelSpec, parts: list[_Part], notes: list[str], missing: list[str], form: str, toml_file: str, whole: bool
) -> str:
    step = spec.steps[0]
    name = f"{step.kernel}<{step.template_args}>" if step.template_args else step.kernel
    rows: list[tuple[str, list[str]]] = []
    if form == "toml":
        rows += [("[[kernel]]", []), (f"file = {_quoted(toml_file)}", [])]
    if form == "toml" or step.template_args:
        rows.append((f"kernel = {_quoted(name)}", notes))
    if not spec.deterministic:
        rows.append(("deterministic = false", ["assumed: atomics on floats"]))
    if step.launch:
        launch = {"grid": _quoted(step.launch.grid[0]), "block": _quoted(step.launch.block[0])}
        rows.append((f"launch = {_table(launch)}", ["assumed: the launch, as the host's cannot be read"]))
    for part in parts:
        if part.argument.role != "scalar" or part.argument.value:
            rows.append((f"args.{part.argument.name} = {_argument(part.argument)}", part.notes))
    tiles = ["assumed: the kernel is made for whole tiles"] if whole else []
    for key, cases, assumed in (("check", spec.check, tiles), ("time", spec.time, ["assumed: the shapes"])):
        tables = ", ".join(_table(dict(c.sizes)) if c.sizes else "{}" for c in cases)
        rows.append((f"{key} = [{tables}]", assumed))
    lines = [f"{text}  # {'; '.join(n)}" if n else text for text, n in rows]
    lines += [f"# missing: {m}" for m in missing]
    prefix = "// optiml: " if form == "comments" else ""
    return "".join(f"{prefix}{line}\n" for line in lines)
