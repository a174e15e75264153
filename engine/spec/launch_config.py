"""Evaluate launch configurations: declared in the spec, or written in the host code."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tree_sitter import Node

from engine import arith
from engine.cuda.definitions import expression
from engine.cuda.host_definitions import only
from engine.cuda.host_scope import HostScope, UnknownHostName
from engine.cuda.kernel import LaunchSite, Unit
from engine.cuda.launch import part_node
from engine.cuda.launch_reading import readable_sites
from engine.cuda.parse import parse, text
from engine.cuda.typenames import TypeNames, split_arguments
from engine.errors import SourceError, SpecError
from engine.model import LaunchConfig, Program
from engine.spec.dtypes import parse_dtype
from engine.spec.host_solved import solved
from engine.spec.kernel_spec import KernelSpec, LaunchExpr, Step

# Of instances: another number; another type; names that may be anything; the one that is wanted.
_OTHER, _OTHER_TYPE, _UNCLEAR, _SAME = range(4)
_NAME = re.compile(r"[A-Za-z_]")
_NAMED = re.compile(r"[A-Za-z_][\w.]*")
_DATA = re.compile(r"\bdata_ptr\s*<\s*([A-Za-z_]\w*)\s*>")
_CAST = re.compile(r"^\([\w:]+(?:\s*<[\w:, ]*>)?\)\s*(?=[A-Za-z_])")  # of an argument, to what the kernel takes
_IDENTIFIER = re.compile(r"(?<![\w.])[A-Za-z_]\w*")


def evaluate(program: Program, spec: KernelSpec, step: int, sizes: Mapping[str, arith.Number]) -> LaunchConfig:
    """The launch that the program's text evaluates to for these sizes.

    Raises SourceError where it cannot be evaluated, where several launches disagree, where spec and source disagree, and
    where nothing is visible and nothing declared.
    """
    described = spec.steps[step]
    declared = _declared(described.launch, sizes, spec.origin) if described.launch is not None else None
    visible: list[tuple[LaunchSite, LaunchConfig]] = []
    problem: SourceError | None = None
    matching = readable_sites(program, described.kernel)
    if described.template_args:
        kinds = {s: _likeness(program, s.path, s.template_args, described.template_args) for s in matching}
        nearest = max(kinds.values(), default=_OTHER)
        matching = tuple(s for s in matching if kinds[s] == nearest != _OTHER)
    for site in tuple(s for s in matching if not _left_out(program, spec, step, s)) or matching:
        try:
            visible.append((site, _site_config(program, spec, step, site, sizes)))
        except SourceError as error:
            problem = problem or error
    if declared is not None:
        for site, config in visible:
            if config != declared:
                raise SourceError(
                    f"the spec launches {_show(declared)}, the source {_show(config)}",
                    f"{site.path}:{site.line}",
                    "make them agree",
                )
        return declared
    if problem is not None:
        raise problem
    if not visible:
        raise SourceError(f"no launch of '{described.kernel}' was found", spec.file, "declare 'launch' in the spec")
    first_site, first = visible[0]
    for site, config in visible[1:]:
        if config != first:
            raise SourceError(
                f"the launches at lines {first_site.line} and {site.line} differ: {_show(first)} and {_show(config)}",
                f"{site.path}:{site.line}", "declare 'launch' in the spec, or give one kernel instance",
            )  # fmt: skip
    return first


def _likeness(program: Program, path: str, written: str, wanted: str) -> int:
    """How near template arguments as written at a launch are to those wanted: of several launches the nearest count."""
    if _squeezed(written) == _squeezed(wanted):
        return _SAME
    found = _SAME if written else _UNCLEAR
    for a, b in zip(split_arguments(written), split_arguments(wanted), strict=False):
        values = [_constant(program, path, spelled) for spelled in (a, b)]
        if None not in values:
            if values[0] != values[1]:
                return _OTHER
        elif _squeezed(a) != _squeezed(b):
            found = min(found, _types_alike(a, b))
    return found


def _types_alike(a: str, b: str) -> int:
    try:
        return _SAME if parse_dtype(a) == parse_dtype(b) else _OTHER_TYPE
    except SpecError:
        return _UNCLEAR


def _left_out(program: Program, spec: KernelSpec, step: int, site: LaunchSite) -> bool:
    """Whether a launch stands behind a condition of constants alone that does not hold in the instance that the spec wants."""
    unit = parse(program.files[site.path], site.path)
    described = spec.steps[step]
    known = {**_template_values(described.template_args, site.template_args, {}), **dict(_defines(spec, {}))}
    types = TypeNames(program, spec.compile.defines, spec.compile.include, _template_types(program, described, site))
    scope = HostScope(program, unit, known, types=types)
    node: Node | None = unit.root.descendant_for_byte_range(site.span.start, site.span.end)
    while node is not None and node.type != "function_definition":
        above = node.parent
        if above is not None and above.type == "if_statement":
            condition, first = above.child_by_field_name("condition"), above.child_by_field_name("consequence")
            with contextlib.suppress(SourceError):
                if condition is not None and bool(scope.number(only(condition))) != (node == first):
                    return True
        node = above
    return False


def _constant(program: Program, path: str, text: str) -> arith.Number | None:
    node = expression(text)
    if node is None:
        return None
    try:
        return HostScope(program, parse(program.files[path], path), {}).number(node)
    except SourceError:
        return None


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _show(config: LaunchConfig) -> str:
    return f"<<<{config.grid}, {config.block}, {config.shared_bytes}>>>"


def _declared(launch: LaunchExpr, sizes: Mapping[str, arith.Number], origin: str) -> LaunchConfig:
    sizes = {**dict(launch.constants), **sizes}
    try:
        block = tuple(arith.evaluate_int(e, sizes) for e in launch.block)
        names = {**sizes, **{f"block.{axis}": n for axis, n in zip("xyz", (*block, 1, 1), strict=False)}}
        grid = tuple(arith.evaluate_int(e, names) for e in launch.grid)
        return LaunchConfig(_three(grid), _three(block), arith.evaluate_int(launch.shared, names))
    except arith.ArithmeticError_ as error:
        raise SourceError(f"the declared launch has no value: {error.what}", origin) from None


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*values, 1, 1)[:3]
    return x, y, z


def _known(
    program: Program, spec: KernelSpec, step: int, site: LaunchSite, sizes: Mapping[str, arith.Number]
) -> tuple[dict[str, arith.Number], dict[str, str]]:
    """What the host's expressions stand for: sizes by name, and what is passed for a scalar by the parameter's value.

    Then the names whose value is in doubt, with the reason.
    """
    known: dict[str, arith.Number] = {}
    refused: dict[str, str] = {}
    described = spec.steps[step]
    template = _template_values(described.template_args, site.template_args, sizes)
    for passed, name in zip(site.arguments, described.arguments, strict=False):
        argument = spec.argument(name)
        if argument.role != "scalar":
            continue
        for field in spec.fields(name):
            with contextlib.suppress(arith.ArithmeticError_):
                if field.role == "scalar":
                    written = f"{_CAST.sub('', passed.strip())}.{field.name.partition('.')[2]}"
                    known.setdefault(written, arith.evaluate(field.value, sizes))
        try:
            value = arith.evaluate(argument.value or argument.name, sizes)
        except arith.ArithmeticError_:
            continue
        if known.setdefault(passed.strip(), value) != value:
            refused[passed.strip()] = f"the launch passes '{passed.strip()}' for parameters of different values"
    passed_names = set(known)
    for name, value in (*sizes.items(), *template.items(), *_defines(spec, sizes)):
        known.setdefault(name, value)
    # A size and a variable of the host may share a name and differ: what the launch passes for the parameter tells.
    scope = HostScope(
        program, parse(program.files[site.path], site.path), {k: v for k, v in known.items() if _NAMED.fullmatch(k)}
    )
    for passed in passed_names:
        names = set(_IDENTIFIER.findall(passed)) & sizes.keys() - passed_names
        node = argument_node(scope.unit, site, passed) if names and passed not in names else None
        if node is None or not isinstance(known[passed], int):
            continue
        try:
            there = scope.number(node)
        except SourceError:
            continue
        if isinstance(there, int) and there != known[passed]:
            for name in names:
                refused[name] = f"the launch passes '{passed[:60]}', so the size '{name}' is not the host's '{name}'"
    for passed in passed_names:
        node = argument_node(scope.unit, site, passed) if _IDENTIFIER.search(passed) else None
        value = known[passed]
        for name, found in solved(scope, node, value) if node is not None and isinstance(value, int) else ():
            known.setdefault(name, found)
    # A literal passed for a parameter says nothing about other uses of the same literal.
    return {_squeezed(name): value for name, value in known.items() if _NAME.match(name)}, refused


def _defines(spec: KernelSpec, sizes: Mapping[str, arith.Number]) -> Iterator[tuple[str, arith.Number]]:
    for define in spec.compile.defines:
        name, _, written = define.partition("=")
        try:
            yield name, arith.evaluate(written or "1", sizes)
        except arith.ArithmeticError_:
            continue


def argument_node(unit: Unit, site: LaunchSite, passed: str) -> Node | None:
    """The expression of a launch's argument with this text."""
    call = unit.root.descendant_for_byte_range(site.span.start, site.span.end)
    arguments = call.child_by_field_name("arguments") if call is not None else None
    return next((n for n in arguments.named_children if text(n).strip() == passed), None) if arguments else None


def _template_values(declared: str, written: str, sizes: Mapping[str, arith.Number]) -> dict[str, arith.Number]:
    values: dict[str, arith.Number] = {}
    for name, spelled in zip(split_arguments(written), split_arguments(declared), strict=False):
        if re.fullmatch(r"[A-Za-z_]\w*", name):
            try:
                values[name] = arith.evaluate(spelled, sizes)
            except arith.ArithmeticError_:
                continue
    return values


def _template_types(program: Program, step: Step, site: LaunchSite) -> dict[str, str]:
    """What the names among a launch's template arguments stand for, in the instance that the spec wants.

    Where the compiler finds these from what is passed, so does this: `data_ptr<U>()` passed for a `const T*` is U for T, and so
    is a parameter `U* x` of the host's function.
    """
    written, wanted = split_arguments(site.template_args), split_arguments(step.template_args)
    found = {w: a for w, a in zip(written, wanted, strict=False) if w != a and w.isidentifier()}
    kernels = [k for k in parse(program.data, program.kernel_file).kernels if step.kernel in (k.name, k.qualified)]
    if len(kernels) != 1:
        return found
    own = [p.partition("=")[0].replace("...", " ").split()[-1] for p in kernels[0].template_parameters]
    hosts = [f for f in parse(program.files[site.path], site.path).functions if f.name == site.function]
    told = {p.name: p.base for p in hosts[0].parameters} if len(hosts) == 1 else {}
    for parameter, passed in zip(kernels[0].parameters, site.arguments, strict=False):
        data = _DATA.search(passed)
        named = data[1] if data else told.get(passed.strip(), "")
        if named.isidentifier() and parameter.base in own[: len(wanted)]:
            found.setdefault(named, wanted[own.index(parameter.base)])
    return {name: kind for name, kind in found.items() if name != kind}


def _scope(
    program: Program, spec: KernelSpec, step: int, site: LaunchSite, sizes: Mapping[str, arith.Number]
) -> tuple[HostScope, list[Node]]:
    unit = parse(site.read_in or program.files[site.path], site.path)
    known, refused = _known(program, spec, step, site, sizes)
    types = TypeNames(
        program, spec.compile.defines, spec.compile.include, _template_types(program, spec.steps[step], site)
    )
    return HostScope(program, unit, known, refused=refused, types=types), [part_node(unit, part) for part in site.parts]


def _site_config(
    program: Program, spec: KernelSpec, step: int, site: LaunchSite, sizes: Mapping[str, arith.Number]
) -> LaunchConfig:
    scope, parts = _scope(program, spec, step, site, sizes)
    if len(parts) < 2:
        raise SourceError("a launch needs a grid and a block", f"{site.path}:{site.line}")
    try:
        block = tuple(int(n) for n in scope.dims(parts[1]))
    except UnknownHostName as error:
        raise replace(error, in_block=True) from None
    grid = tuple(int(n) for n in scope.dims(parts[0]))
    shared = int(scope.number(parts[2])) if len(parts) > 2 else 0
    if len(grid) > 3 or len(block) > 3:
        raise SourceError("a launch has at most three dimensions", f"{site.path}:{site.line}")
    return LaunchConfig(_three(grid), _three(block), shared)
