"""What rules look at, made of a program and its spec."""

from engine.cuda.launch import sites
from engine.cuda.parse import parse
from engine.model import Program, Target
from engine.rewrite import LaunchConfig, OptimlError, Site
from engine.spec.kernel_spec import KernelSpec
from engine.spec.launch_config import evaluate
from engine.spec.reader import relaunched


def make_site(program: Program, spec: KernelSpec, step: int = 0, target: Target | None = None) -> Site:
    """Parse the program once for all rules.

    Launches are those that the program's own text declares. `configs` is empty where that of a timing case cannot be
    evaluated. Raises KeyError where the kernel is gone, and SourceError where the file cannot be parsed.
    """
    unit = parse(program.data, program.kernel_file)
    kernel = unit.kernel(spec.steps[step].kernel)
    launches = sites(program, kernel.name)
    configs: list[LaunchConfig] = []
    try:
        spec = relaunched(program, spec)
        for case in spec.time:
            configs.append(evaluate(program, spec, step, case.sizes))
    except OptimlError:
        configs = []
    return Site(program, spec, step, unit, kernel, launches, tuple(configs), target or Target())
