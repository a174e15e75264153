"""Drafts a kernel spec from the source: roles, sizes and extents, with every assumption said beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from engine.errors import SourceError, UsageError
from engine.model import Program
from engine.source.aliases import aliases, condition_around
from engine.source.model import Kernel, Parameter, Unit
from engine.source.parse import parse
from engine.spec.dtypes import parse_dtype
from engine.spec.extents import Extent, Trial, fit, trial_sizes
from engine.spec.host import deciding, host_sizes, in_grid
from engine.spec.indirect import ROWS, Indirect, indirect
from engine.spec.model import Argument, Fill, KernelSpec, LaunchExpr, Role, Step
from engine.spec.shapes import MAX_CHECKED, first_shapes, is_tiled, launchable_shapes
from engine.spec.types import source_type, template_defaults
from engine.spec.usage import Usage

Probe = Callable[[Mapping[str, int]], Mapping[str, int]]
Roles = Callable[[Mapping[str, int]], Mapping[str, Role]]

_BLOCK = 256  # threads of a launch that is assumed
_LAUNCH = "the launch: "
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


@dataclass(frozen=True)
class _Way:
    """How a draft is tried. `probe`, `moved` and `roles` are those of `draft`; `tiled` and `divided` are of `trial_sizes`.

    `launching` are scalars that are sizes because launches depend on them, `hosts` sizes that the host's code alone knows.
    `whole`: shapes to check are whole tiles.
    """

    probe: Probe | None = None
    moved: Probe | None = None
    roles: Roles | None = None
    launching: frozenset[str] = frozenset()
    hosts: tuple[str, ...] = ()
    tiled: bool = False
    divided: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False


@dataclass
class _Part:
    argument: Argument
    notes: list[str]


def draft(
    program: Program, kernel_name: str, *, probe: Probe | None = None, moved: Probe | None = None, roles: Roles | None = None,
    form: str = "comments", toml_file: str = "",
) -> Draft:  # fmt: skip
    """A draft of the spec of one kernel (its name may carry template arguments).

    `probe` runs the original: for a set of sizes it gives the number of elements touched of each buffer, by parameter.
    `moved` does so with all whole numbers in buffers 1 instead of 0, for buffers whose indices come from others. `roles` gives the
    roles of buffers that are no constants, for sizes that `probe` was called with.
    Without them extents are read from index expressions and their bounds, and roles from the text.
    `form` is "comments" or "toml"; `toml_file` is the file's path relative to the optiml.toml.
    Raises UsageError for an unknown kernel, SourceError for a broken file.
    """

    def made_by(way: _Way) -> Draft:
        return _draft(program, kernel_name, form, toml_file, way)

    way = _Way()
    made = made_by(way)
    # How many blocks there are may follow from numbers that the kernel is not given, or that nothing in it bounds.
    for find in (_hosts, _launching):
        if (found := find(program, made, way)) != way:
            way, made = found, made_by(found)
    if probe is None:
        return made
    way = replace(way, probe=probe, moved=moved, roles=roles, tiled=is_tiled(made.spec))
    made = made_by(way)
    if not way.tiled and _open(made):
        # What goes beyond its arrays at odd sizes, or refuses them, may be made for whole tiles.
        other_made = made_by(replace(way, tiled=True, whole=True))
        if _open(other_made) < _open(made):
            return other_made
    return made


def _hosts(program: Program, made: Draft, way: _Way) -> _Way:
    return replace(way, hosts=in_grid(program, made.spec)) if any(m.startswith(_LAUNCH) for m in made.missing) else way


def _launching(program: Program, made: Draft, way: _Way) -> _Way:
    return replace(way, launching=deciding(program, made.spec))


def _open(made: Draft) -> int:
    """How many buffers have no size."""
    return sum(a.role != "scalar" and not a.size for a in made.spec.arguments)


def _draft(program: Program, kernel_name: str, form: str, toml_file: str, way: _Way) -> Draft:
    """As `draft`, in one way."""
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
    usage.guards |= way.launching
    parts = [_part(types, kernel, p, usage, template_args, missing) for p in kernel.parameters]
    sizes = [p.argument.name for p in parts if p.argument.role == "scalar" and not p.argument.value] + [*way.hosts]
    way = replace(way, divided=usage.divided(sizes))
    extents, tables = _extents(usage, parts, sizes, way)
    _set_roles(usage, parts, sizes, way)
    for part in parts:
        if part.argument.role != "scalar":
            table = tables.get(part.argument.name)
            _set_extent(part, extents.get(part.argument.name), table, usage, missing)
    for part in parts:
        _set_fill(part, {p.argument.name: p.argument for p in parts}, tables, usage)
    check, time = first_shapes(sizes, [p.argument for p in parts], way.divided)
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
        check=check,
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
        missing.append(f"{_LAUNCH}{problem}")
    spec = launchable_shapes(program, spec, sizes, host, way.divided, way.whole)
    text = _render(spec, parts, notes, missing, form, toml_file or program.kernel_file, way)
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
        notes.append(_SAID["inout"])
        return _Part(Argument(name, kind, "inout"), notes)
    if not use.written:
        notes.append(_SAID["in"])
        return _Part(Argument(name, kind, "in"), notes)
    if use.read and use.starts_written and not use.atomic:
        notes.append(_SAID["out"])
        return _Part(Argument(name, kind, "out"), notes)
    return _Part(Argument(name, kind, "inout" if use.read else "out"), notes)


def _extents(
    usage: Usage, parts: list[_Part], sizes: list[str], way: _Way
) -> tuple[dict[str, Extent], dict[str, Indirect]]:
    """Buffers' sizes as far as something explains them, and those of buffers whose indices come from others."""
    trials: dict[str, list[Trial]] = {}
    later: dict[str, list[Trial]] = {}
    static: dict[str, list[Trial]] = {}
    buffers = [p.argument.name for p in parts if p.argument.role != "scalar"]
    values = {p.argument.name: p.argument.value for p in parts if p.argument.role == "scalar" and p.argument.value}
    # The text does not show every index that comes from a buffer: where one moves what is touched, it is one.
    indices = any(_is_index(p.argument) for p in parts)
    failed = False  # some trial gave nothing before others did
    # With no size at all one trial says everything: nothing can vary.
    for at, chosen in enumerate(trial_sizes(sizes, tiled=way.tiled, divided=way.divided)):
        if way.probe is not None and (sizes or at == 0):
            reached = way.probe(chosen)
            failed |= not reached and not trials
            for name, touched in reached.items():
                trials.setdefault(name, []).append((chosen, touched))
            for name, touched in way.moved(chosen).items() if way.moved is not None and indices else ():
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
        measured, read = fit(trials.get(name, [])), fit(static.get(name, []))
        options = [o for o in (measured, read and replace(read, measured=False)) if o is not None]
        options.sort(key=lambda o: (not o.exact, o.text.isdigit()))
        best = options[0] if options else None
        if best:
            extents[name] = best
    tables = {name: indirect(trials.get(name, []), later.get(name, [])) for name in buffers}
    return extents, {name: table for name, table in tables.items() if table is not None}


# What is said of a role that is not what the type of the parameter says.
_KEPT = "assumed: what it does not write stays"
_SAID: Mapping[Role, str] = {
    "in": "assumed: only read, though the pointer is not const",
    "out": "assumed: each element is written before it is read",
    "inout": "assumed: read and written (its uses are not all visible)",
}


def _set_roles(usage: Usage, parts: list[_Part], sizes: list[str], way: _Way) -> None:
    """Roles as trials show them, where these agree; the text shows neither what functions do with a pointer nor which writes come first."""
    seen: dict[str, set[Role]] = {}
    for chosen in trial_sizes(sizes, tiled=way.tiled, divided=way.divided):
        for name, each in way.roles(chosen).items() if way.roles is not None else ():
            seen.setdefault(name, set()).add(each)
    for part in parts:
        argument = part.argument
        found = seen.get(argument.name)
        if found and not usage.uses[argument.name].atomic:
            role: Role = found.pop() if len(found) == 1 else "inout"
            if role == argument.role == "out":
                continue
            notes = [n for n in part.notes if n not in _SAID.values()]
            said = _SAID[role] if role != "inout" else _KEPT if argument.role == "out" else ""
            part.argument, part.notes = replace(argument, role=role), [*notes, said] if said else notes


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
        if not into and [a for a in arguments.values() if _is_index(a)] == [argument]:
            into = [*tables]  # what moves what they reach can only be its contents
        targets = [found for t in into if (found := tables[t].high if t in tables else arguments[t].size)]
        most = int(dtype.limits[1]) + 1
        high = "2" if dtype.kind == "bool" else str(min(most, 256))
        if targets:
            high = targets[0] if most > MAX_CHECKED else f"min({targets[0]}, {most})"
        part.argument = replace(argument, fill=Fill("integers", "0", high))
        part.notes.append("assumed: the range of its values")


def _is_index(argument: Argument) -> bool:
    """Whether the argument is a buffer whose contents may be indices."""
    return argument.role in ("in", "inout") and parse_dtype(argument.type).kind == "int"


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
    spec: KernelSpec, parts: list[_Part], notes: list[str], missing: list[str], form: str, toml_file: str, way: _Way
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
    tiles = ["assumed: the kernel is made for whole tiles"] if way.whole else []
    shapes = [f"assumed: {', '.join(way.hosts)} of the launch are sizes"] if way.hosts else []
    for key, cases, assumed in (("check", spec.check, tiles), ("time", spec.time, ["assumed: the shapes", *shapes])):
        tables = ", ".join(_table(dict(c.sizes)) if c.sizes else "{}" for c in cases)
        rows.append((f"{key} = [{tables}]", assumed))
    lines = [f"{text}  # {'; '.join(n)}" if n else text for text, n in rows]
    lines += [f"# missing: {m}" for m in missing]
    prefix = "// optiml: " if form == "comments" else ""
    return "".join(f"{prefix}{line}\n" for line in lines)
