"""The spec of another instance of a kernel template: the same sizes, with the types and numbers of its template arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine.cuda.aliases import aliases
from engine.cuda.kernel import Kernel
from engine.cuda.parse import parse
from engine.cuda.records import parameter_name, split_arguments
from engine.errors import OptimlError, SpecError
from engine.model import Program
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import Argument, Fill, KernelSpec, LaunchExpr, Step
from engine.spec.launch_config import evaluate
from engine.spec.spec_checks import MAX_BYTES, check_case
from engine.spec.tables import split_kernel
from engine.spec.types import source_type

_MOST = (
    100  # of whole numbers where the spec has real ones, with either sign where there is one: any type holds them. Ours
)
_INTEGER = re.compile(r"\d+")


def instance_specs(program: Program, spec: KernelSpec, expression: str) -> tuple[KernelSpec, ...]:
    """The specs that fit the instance `expression` ("k<half, 128>") of one of the spec's kernels, the likelier first.

    Where a number among the template arguments differs, the spec's own expressions may mean it: the second then has the other
    instance's number in its place. Raises SpecError with the reason why there is none.
    """
    name, arguments = split_kernel(expression)
    plain = name.rpartition("::")[2]
    step = next((s for s in spec.steps if s.kernel.rpartition("::")[2] == plain and s.template_args), None)
    if step is None or not arguments:
        raise SpecError(f"the spec's '{plain[:60]}' has no template arguments", spec.origin or spec.file)
    made = _Instance(program, spec, step, arguments)
    same = made.spec({})
    numbers = made.numbers()
    found, problem = list[KernelSpec](), None
    for each in (same, made.spec(numbers)) if numbers else (same,):
        try:
            found.append(_possible(program, each))
        except OptimlError as error:
            problem = problem or error
    if problem is not None and not found:
        raise SpecError(problem.what, problem.where, problem.do)
    return tuple(found[:1] if found[0] == found[-1] else found)


@dataclass(frozen=True)
class _Instance:
    """Template arguments in the place of those that one step of a spec has."""

    program: Program
    base: KernelSpec
    step: Step
    arguments: str

    def numbers(self) -> dict[str, str]:
        """The spec's numbers that stand for others here; none where one of them stands for two."""
        pairs = zip(split_arguments(self.step.template_args), split_arguments(self.arguments), strict=False)
        found = {(a, b) for a, b in pairs if _INTEGER.fullmatch(a) and _INTEGER.fullmatch(b)}
        if len({a for a, _ in found}) != len(found):
            return {}
        return {a: b for a, b in found if a != b}

    def spec(self, numbers: Mapping[str, str]) -> KernelSpec:
        """With numbers of its expressions replaced. Raises SpecError where the type of an argument is not known."""
        types = self._types()
        arguments = tuple(
            replace(
                _retyped(a, types[a.name], self.base) if a.name in types else a,
                size=_with(a.size, numbers),
                value=_with(a.value, numbers) if not a.value.startswith("hex:") else a.value,
            )
            for a in self.base.arguments
        )
        steps = tuple(self._step(s, numbers) for s in self.base.steps)
        # The launch of this text would otherwise be read again, from a candidate's, as the spec's own.
        origin = "" if [s.launch for s in steps] != [s.launch for s in self.base.steps] else self.base.origin
        tolerance = None if types else self.base.tolerance
        return replace(self.base, steps=steps, arguments=arguments, tolerance=tolerance, origin=origin)

    def _step(self, step: Step, numbers: Mapping[str, str]) -> Step:
        """A step with the same template arguments as ours has the same instance."""
        if step.template_args != self.step.template_args:
            return step
        given = split_arguments(self.arguments)
        count = len(given) if step.kernel == self.step.kernel else len(split_arguments(step.template_args))
        launch = step.launch and LaunchExpr(
            tuple(_with(e, numbers) for e in step.launch.grid),
            tuple(_with(e, numbers) for e in step.launch.block),
            _with(step.launch.shared, numbers),
            step.launch.constants,
        )
        return replace(step, template_args=", ".join(given[:count]), launch=launch)

    def _types(self) -> dict[str, DType]:
        """The arguments of another type than the spec's."""
        compiled = self.base.compile
        names = aliases(self.program, compiled.defines, compiled.include, compiled.unit)
        found: dict[str, DType] = {}
        for step in self.base.steps:
            if step.template_args != self.step.template_args:
                continue
            kernel = parse(self.program.data, self.program.kernel_file).kernel(step.kernel)
            for parameter, name in zip(kernel.parameters, step.arguments, strict=False):
                before = source_type(names, kernel, parameter.base, step.template_args)
                after = source_type(names, kernel, parameter.base, self.arguments)
                if before == after and (before is not None or not _depends(kernel, parameter.base, names)):
                    continue
                if before is None or after is None or self.base.fields(name):
                    raise SpecError(f"the type of '{name}' in {kernel.name}<{self.arguments[:60]}> is not known")
                found[name] = after
        return found


def _depends(kernel: Kernel, base: str, names: Mapping[str, str]) -> bool:
    """Whether a type names a parameter of the kernel's template."""
    written = f"{base} {names.get(base, '')}"
    return any(re.search(rf"\b{re.escape(parameter_name(p))}\b", written) for p in kernel.template_parameters)


def _retyped(argument: Argument, dtype: DType, spec: KernelSpec) -> Argument:
    """The argument with a type of its own tolerance, and a fill that this type holds. Raises SpecError."""
    was = parse_dtype(argument.type)
    if was.lanes != dtype.lanes or was.kind == "bytes" or dtype.kind == "bytes":
        raise SpecError(f"'{argument.name}' is {was.name} in the spec and {dtype.name} in the other instance")
    fill = argument.fill
    if dtype.kind != "float" and fill.kind in ("normal", "uniform") and argument.role in ("in", "inout"):
        least, most = dtype.limits
        low, high = str(int(max(least, -_MOST))), str(int(min(most, _MOST)) + 1)
        fill = Fill("integers", *((fill.low or "0", fill.high or high) if fill.kind == "uniform" else (low, high)))
    return replace(argument, type=dtype.name, fill=fill, tolerance=None)


def _with(expression: str, numbers: Mapping[str, str]) -> str:
    return re.sub(r"(?<![\w.])\d+(?![\w.])", lambda m: numbers.get(m[0], m[0]), expression)


def _possible(program: Program, spec: KernelSpec) -> KernelSpec:
    """The spec with launches that can be evaluated: the host's where it shows them, else the declared ones. Raises OptimlError."""
    for case in (*spec.check, *spec.time):
        check_case(spec, case, lambda *keys: spec.origin or spec.file, MAX_BYTES)
    last: OptimlError | None = None
    for each in _launched(spec):
        try:
            for case in (*each.check, *each.time):
                for step in range(len(each.steps)):
                    evaluate(program, each, step, case.sizes)
            return each
        except OptimlError as error:
            last = error
    assert last is not None
    raise last


def _launched(spec: KernelSpec) -> Iterator[KernelSpec]:
    if any(step.launch is not None for step in spec.steps):
        yield replace(spec, steps=_undeclared(spec.steps))
    yield spec


def _undeclared(steps: Sequence[Step]) -> tuple[Step, ...]:
    return tuple(replace(step, launch=None) for step in steps)
