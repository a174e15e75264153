"""What rules look at, made of a program and its spec."""

import re
from collections import Counter
from dataclasses import replace
from functools import lru_cache

from engine.cuda.aliases import included_units
from engine.cuda.kernel import Kernel, LaunchSite, Unit
from engine.cuda.launch import sites
from engine.cuda.macros import object_macros
from engine.cuda.parse import parse
from engine.errors import OptimlError
from engine.model import LaunchConfig, Program, Target
from engine.rewrite.site import Site
from engine.spec.kernel_spec import KernelSpec, Step
from engine.spec.launch_config import evaluate
from engine.spec.reader import relaunched

_WORD = re.compile(r"[A-Za-z_]\w*")


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
    kernel, launches = _instance(program, unit, spec.steps[step])
    configs: list[LaunchConfig] = []
    try:
        spec = relaunched(program, spec)
        for case in spec.time:
            configs.append(evaluate(program, spec, step, case.sizes))
    except OptimlError:
        configs = []
    return Site(program, spec, step, unit, kernel, launches, tuple(configs), target or Target(), headers)


def _instance(program: Program, unit: Unit, step: Step) -> tuple[Kernel, tuple[LaunchSite, ...]]:
    """The definition that the spec's instance has, and the launches that may be of it.

    A specialisation (`template <> … k<__half>`) goes by the name of its template; what launches it says so.
    """
    general = unit.kernel(step.kernel)
    special = {"".join(k.name.partition("<")[2][:-1].split()): k for k in unit.kernels if _of(k, general)}
    launches = sites(program, general.name)
    if not special:
        return general, launches
    own = "".join(step.template_args.split())
    of_special = own in special
    mine: list[LaunchSite] = []
    for launch in launches:
        arguments = "".join(launch.template_args.split())
        opened, apart = _host(program, launch)
        if opened and not apart >= ({own} if of_special else special.keys()):
            return _named(special.get(own, general), general), ()  # it may be of the other definition as well
        if arguments == own if of_special else arguments not in special:
            mine.append(launch)
    return _named(special.get(own, general), general), tuple(mine)


def _named(kernel: Kernel, general: Kernel) -> Kernel:
    return replace(kernel, name=general.name, qualified=general.qualified)


def _host(program: Program, launch: LaunchSite) -> tuple[bool, frozenset[str]]:
    """Whether the host template around a launch leaves its instance open, and for which arguments that template is specialised."""
    functions = parse(program.files[launch.path], launch.path).functions
    around = [f for f in functions if f.name == launch.function]
    parameters = {p.split("=")[0].split()[-1] for f in around for p in f.template_parameters if p.split("=")[0].split()}
    opened = not launch.template_args or bool(parameters & set(_WORD.findall(launch.template_args)))
    begin = f"{launch.function}<"
    return opened, frozenset("".join(f.name[len(begin) : -1].split()) for f in functions if f.name.startswith(begin))


def _of(kernel: Kernel, general: Kernel) -> bool:
    """Whether it is a specialisation of a template."""
    return kernel.qualified.startswith(f"{general.qualified}<") and kernel.qualified.endswith(">")


def _headers(program: Program, spec: KernelSpec) -> tuple[Unit, ...]:
    """The headers that the kernel's file includes, and the file that it is compiled through."""
    options = spec.compile
    try:
        found = tuple(included_units(program, tuple(options.include), options.unit))
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
