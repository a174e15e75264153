"""Which kernels of a file a commit would change: those whose device code, launch or spec is not what it was."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path

from engine.cuda.kernel import Kernel, Unit
from engine.cuda.launch import sites
from engine.cuda.load import load_program, read_below
from engine.cuda.parse import parse
from engine.cuda.slice import device_slice
from engine.errors import OptimlError
from engine.model import Program
from engine.spec.find import described, find_spec, project_options
from engine.spec.kernel_spec import CompileOptions, KernelSpec
from engine.spec.launch_config import evaluate
from engine.spec.reader import specs_in
from engine.spec.tables import SPEC_NAME
from hooks.worktree import contents

_LINE = re.compile(r"^#line\b.*$", re.M)


@dataclass(frozen=True)
class Target:
    """One kernel to look at: `spec` is None where it has none, `problem` says why a spec could not be read.

    `compile` are the spec's options, else those of the project's compile command.
    """

    path: str  # repository-relative
    kernel: str
    line: int
    program: Program
    spec: KernelSpec | None = None
    spec_path: str | None = None
    problem: OptimlError | None = None
    compile: CompileOptions = field(default_factory=CompileOptions)


def targets_in(root: Path, path: str, commit: str) -> list[Target]:
    """The kernels of a file that differ from those of `commit` (all of them where `commit` is ""), in order of text.

    Raises UsageError and SourceError for what is no CUDA file, SpecError where no spec of the file can be read.
    """
    file = root / path
    data = read_below(root, path)
    if data is not None and b"__global__" not in data:
        return []  # host code alone: nothing to look at, and no word at each commit
    names = described(root, file)
    options = project_options(root, file)
    program = load_program(file, include=options.include, unit=options.unit)
    unit = parse(program.data, path)
    found: list[Target] = []
    covered: set[str] = set()
    for name in names:
        try:
            spec, spec_path = find_spec(root, file, name)
        except OptimlError as error:
            covered.add(name)
            kernel = _kernel(unit, name)
            found.append(Target(path, name, kernel.line if kernel else 1, program, problem=error))
            continue
        covered.update(k for step in spec.steps if (known := _kernel(unit, step.kernel)) for k in _names(known))
        kernels = [s.kernel for s in spec.steps]
        with_spec = load_program(
            file, spec_file=spec_path, kernels=kernels, include=spec.compile.include, unit=spec.compile.unit
        )
        kernel = _kernel(unit, spec.kernel)
        found.append(
            Target(path, spec.kernel, kernel.line if kernel else 1, with_spec, spec, spec_path, compile=spec.compile)
        )
    for kernel in unit.kernels:
        if not covered & _names(kernel):
            found.append(Target(path, kernel.qualified, kernel.line, program, compile=options))
    if commit:
        paths = {name for target in found for name in target.program.files}
        before = contents(root, commit, sorted(paths))
        found = [target for target in found if _changed(target, before, root)]
    return sorted(found, key=lambda target: (target.line, target.kernel))


def _names(kernel: Kernel) -> set[str]:
    return {kernel.name, kernel.qualified}


def _kernel(unit: Unit, name: str) -> Kernel | None:
    try:
        return unit.kernel(name.partition("<")[0])
    except KeyError:
        return None


def _changed(target: Target, before: dict[str, bytes], root: Path) -> bool:
    if target.path not in before:
        return True
    # What the commit does not hold (a new header, a file that git ignores) is as it is now.
    files = {name: _unix(before.get(name, data)) for name, data in target.program.files.items()}
    now = {name: _unix(data) for name, data in target.program.files.items()}
    if files == now:
        return False
    old, new = Program(files, target.path), Program(now, target.path)
    try:
        return _identity(target, old, root) != _identity(target, new, root)
    except OptimlError:
        return True  # it cannot be told, so it is looked at


def _identity(target: Target, program: Program, root: Path) -> object:
    """What a kernel is: its device code without blank lines, the functions that launch it, its launches, its spec."""
    spec = None
    if target.problem is not None:
        return program.data, [data for name, data in program.files.items() if name.endswith(SPEC_NAME)]
    if target.spec is not None:
        declared = specs_in(program, target.spec_path, compile=project_options(root, root / target.path))
        found = [s for s in declared if s.kernel == target.spec.kernel]
        spec = [dataclasses.replace(s, origin="") for s in found]
    kernels = [s.kernel for s in target.spec.steps] if target.spec else [target.kernel]
    options = target.compile
    sliced = device_slice(program, kernels, root=root, include=options.include, unit=options.unit)
    text = _LINE.sub("", sliced.text)
    code = [line.strip() for line in text.splitlines() if line.strip()]
    hosts = []
    for site in (site for kernel in kernels for site in sites(program, kernel)):
        unit = parse(program.files[site.path], site.path)
        hosts += [unit.text(f.span) for f in unit.functions if f.name == site.function] or [unit.text(site.span)]
    return code, hosts, spec, [_launches(program, s) for s in spec or ()]


def _launches(program: Program, spec: KernelSpec) -> list[object]:
    found: list[object] = []
    for case in spec.time:
        for step in range(len(spec.steps)):
            try:
                found.append(evaluate(program, spec, step, case.sizes))
            except OptimlError as error:
                found.append(error.what)
    return found


def _unix(data: bytes) -> bytes:
    # git may give a working tree other line ends than a commit has.
    return data.replace(b"\r\n", b"\n")
