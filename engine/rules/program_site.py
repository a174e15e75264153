"""What rules look at, made of a program and its spec."""

from collections import Counter
from dataclasses import replace
from functools import lru_cache

from engine.cuda import aliases, launch
from engine.cuda.kernel import Unit
from engine.cuda.macros import object_macros
from engine.cuda.parse import parse
from engine.model import Program, Target
from engine.rewrite import LaunchConfig, OptimlError, Site
from engine.spec import launch_config, reader
from engine.spec.kernel_spec import KernelSpec


def make_site(program: Program, spec: KernelSpec, step: int = 0, target: Target | None = None) -> Site:
    """Parse the program once for all rules.

    Launches are those that the program's own text declares. `configs` is empty where that of a timing case cannot be
    evaluated. Macros and constants of the headers count as the file's own. Raises KeyError where the kernel is gone, and
    SourceError where the file cannot be parsed.
    """
    unit = parse(program.data, program.kernel_file)
    headers = _headers(program, spec)
    macros = {**_only(headers, "macros"), **unit.macros}
    unit = replace(unit, macros=macros, constants={**_only(headers, "constants"), **unit.constants})
    kernel = unit.kernel(spec.steps[step].kernel)
    launches = launch.sites(program, kernel.name)
    configs: list[LaunchConfig] = []
    try:
        spec = reader.relaunched(program, spec)
        for case in spec.time:
            configs.append(launch_config.evaluate(program, spec, step, case.sizes))
    except OptimlError:
        configs = []
    return Site(program, spec, step, unit, kernel, launches, tuple(configs), target or Target(), headers)


def _headers(program: Program, spec: KernelSpec) -> tuple[Unit, ...]:
    """The headers that the kernel's file includes, and the file that it is compiled through."""
    options = spec.compile
    try:
        found = tuple(aliases.included_units(program, tuple(options.include), options.unit))
    except OptimlError:
        return ()
    return tuple(unit for unit in found if unit.path != program.kernel_file)


def _only(headers: tuple[Unit, ...], kind: str) -> dict[str, str]:
    """The headers' macros or constants that have one definition among all branches of all of them."""
    found: Counter[tuple[str, str]] = Counter()
    for unit in headers:
        found.update(_pairs(unit.data, unit.path, kind))
    count = Counter(name for name, _ in found)
    return {name: value for name, value in found if count[name] == 1}


@lru_cache(maxsize=512)
def _pairs(data: bytes, path: str, kind: str) -> tuple[tuple[str, str], ...]:
    if kind == "constants":
        return tuple(parse(data, path).constants.items())
    return tuple((name, value) for name, values in object_macros(data, path).items() for value in sorted(values))
