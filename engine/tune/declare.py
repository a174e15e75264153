"""Where a user's template is declared: `// optiml: tune` and `where` lines, keys of the kernel's spec, the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.cuda.constants import integers
from engine.cuda.parse import parse
from engine.errors import SpecError, UsageError
from engine.model import Program
from engine.settings.suffixes import KERNELS
from engine.spec.kernel_spec import KernelSpec
from engine.spec.reader import relaunched
from engine.spec.tables import Table, split_kernel, tables_of, tuning_lines
from engine.tune.space import Condition, ParameterSpace, TuneParameter, parse_values
from engine.tune.template import ConstantTemplate

_LINE = re.compile(r"([A-Za-z_]\w*)\s*=\s*(.+)", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_MOST_PARAMETERS = 16
_MOST_CONDITIONS = 64
_MOST_TEXT = 1000


def declared(
    program: Program,
    spec: KernelSpec,
    spec_path: str | None,
    *,
    parameters: Mapping[str, str] | None = None,
    where: Sequence[str] = (),
) -> ConstantTemplate | None:
    """The template that the program's text and the command line declare; None where neither declares one.

    `parameters` (name to values as text) count instead of the file's of the same name, `where` beside the file's.
    Raises UsageError and SpecError with the line of what is wrong.
    """
    found, conditions = _lines(program, spec, spec_path)
    table = _table(program, spec, spec_path)
    if table is not None:
        _from_table(table, found, conditions)
    for name, text in (parameters or {}).items():
        if not _NAME.fullmatch(name):
            raise UsageError(f"'{name[:60]}' is not a name", "--param", "write --param BLOCK=64,128,256")
        found[name] = TuneParameter(name, parse_values(text, name, "--param"), "--param")
    conditions += [Condition(_checked(text, "--where"), "--where") for text in where]
    if not found:
        if conditions:
            raise UsageError(
                "the template has conditions but no parameters",
                conditions[0].where,
                "add // optiml: tune NAME = 64, 128",
            )
        return None
    parameters_ = tuple(found.values())
    for what, given, most in (
        ("parameters", parameters_, _MOST_PARAMETERS),
        ("conditions", conditions, _MOST_CONDITIONS),
    ):
        if len(given) > most:
            raise UsageError(f"the template has {len(given)} {what}", given[most].where, f"at most {most} are allowed")
    constants = _constants(program, found, conditions)
    # An edit that declares the template may have changed the spec's launch as well.
    spec = relaunched(program, spec)
    return ConstantTemplate(program, spec, ParameterSpace(parameters_, tuple(dict.fromkeys(conditions)), constants))


def _constants(
    program: Program, parameters: Mapping[str, TuneParameter], conditions: Sequence[Condition]
) -> tuple[tuple[str, int], ...]:
    """The constants of the program that conditions name. Raises UsageError for one that is no plain number."""
    others = [path for path in program.files if path != program.kernel_file and path.endswith(KERNELS)]
    units = [parse(program.files[path], path) for path in (program.kernel_file, *others)]
    known: dict[str, int] = {}
    for condition in conditions:
        for name in sorted(condition.names - parameters.keys() - known.keys()):
            owner = next((u for u in units if name in u.macros or name in u.constants), None)
            if owner is None:
                continue  # the space says that it is none
            value = integers(owner, [name]).get(name)
            if value is None:
                raise UsageError(
                    f"the condition '{condition.text[:100]}' names '{name[:60]}', which is not a plain integer",
                    condition.where,
                    f"use the parameters {', '.join(parameters)}, or a constant such as #define {name[:60]} 32",
                )  # fmt: skip
            known[name] = value
    return tuple(known.items())


def _lines(
    program: Program, spec: KernelSpec, spec_path: str | None
) -> tuple[dict[str, TuneParameter], list[Condition]]:
    """The lines for the kernels of this spec: of several kernels that have a spec, a line is for the next one below it."""
    path = program.kernel_file
    found: dict[str, TuneParameter] = {}
    conditions: list[Condition] = []
    unit = parse(program.data, path)
    lines = tuning_lines(unit)
    own = {step.kernel for step in spec.steps}
    others = {split_kernel(table.kernel)[0] for table in tables_of(program, spec_path)} if lines else set()
    described = sorted((k for k in unit.kernels if {k.name, k.qualified} & (own | others)), key=lambda k: k.line)
    for kind, text, line in lines:
        owner = next((k for k in described if k.line >= line), described[-1] if described else None)
        if owner is not None and not {owner.name, owner.qualified} & own:
            continue
        where = f"{path}:{line}"
        if kind == "where":
            conditions.append(Condition(_checked(text, where), where))
            continue
        match = _LINE.fullmatch(_checked(text, where))
        if not match:
            raise SpecError(
                f"invalid declaration 'tune {text[:60]}'", where, "write // optiml: tune NAME = 64, 128, 256"
            )
        if match[1] in found:
            raise SpecError(f"'{match[1]}' is tuned twice", where, f"the other is at {found[match[1]].where}")
        found[match[1]] = TuneParameter(match[1], parse_values(match[2], match[1], where), where)
    return found, conditions


def _table(program: Program, spec: KernelSpec, spec_path: str | None) -> Table | None:
    kernel = spec.steps[0].kernel
    for table in tables_of(program, spec_path):
        if split_kernel(table.kernel)[0] == kernel and table.origin == spec.origin:
            return table
    return None


def _from_table(table: Table, found: dict[str, TuneParameter], conditions: list[Condition]) -> None:
    """`tune = { BLOCK = [64, 128], ITEMS = "1..8" }` and `where = ["BLOCK * ITEMS <= 4096"]`."""
    tune: Any = table.data.get("tune", {})
    if not isinstance(tune, dict):
        raise SpecError("'tune' is not a table", table.where("tune"), "write tune = { BLOCK = [64, 128] }")
    for name, values in tune.items():
        where = table.where("tune", name)
        if not _NAME.fullmatch(name):
            raise SpecError(f"'{name[:60]}' is not a name", where)
        if name in found:
            raise SpecError(f"'{name}' is tuned twice", where, f"the other is at {found[name].where}")
        if isinstance(values, str):
            found[name] = TuneParameter(name, parse_values(values, name, where), where)
            continue
        if not isinstance(values, list) or not all(isinstance(v, int) and not isinstance(v, bool) for v in values):
            raise SpecError(
                f"the values of '{name}' are not integers", where, f'write {name} = [64, 128] or "16..512 step 16"'
            )
        if any(abs(v) >= 2**31 for v in values):
            raise SpecError(f"a value of '{name}' is out of range", where, "use numbers below 2**31")
        found[name] = TuneParameter(name, tuple(values), where)
    given: Any = table.data.get("where", [])
    if isinstance(given, str):
        given = [given]
    if not isinstance(given, list) or not all(isinstance(t, str) for t in given):
        raise SpecError("'where' is not an array of conditions", table.where("where"), 'write where = ["BLOCK >= 64"]')
    where = table.where("where")
    conditions += [Condition(_checked(text, where), where) for text in given]


def _checked(text: str, where: str) -> str:
    text = text.strip()
    if not text:
        raise UsageError("the line is empty", where, "write a condition such as BLOCK * ITEMS <= 4096")
    if len(text) > _MOST_TEXT:
        raise UsageError(f"a line of {len(text)} characters", where, f"at most {_MOST_TEXT} are allowed")
    return text
