"""What a draft makes of `__constant__` variables that host code fills: scalars, structs and arrays, as it makes parameters."""

from __future__ import annotations

import re
from dataclasses import replace

from engine.model import Program
from engine.spec.constant_memory import ConstantVariable, type_of, unfilled_constants
from engine.spec.drafted_parts import Part, drafted_parts
from engine.spec.drafted_type import ParameterTypes
from engine.spec.gaps import Gap
from engine.spec.kernel_spec import Argument
from engine.spec.struct_layout import Unclear
from engine.spec.usage import Usage

_FILLED = "assumed: host code fills it"


def drafted_constants(types: ParameterTypes, usage: Usage, missing: list[Gap]) -> list[Part]:
    """The arguments of all constants that the kernel reads and the text gives no value."""
    found: list[Part] = []
    for variable in unfilled_constants(types.program, usage.unit, types.kernel):
        parts = (
            _array(types, variable, usage, missing) if variable.extents else _single(types, variable, usage, missing)
        )
        for part in parts:
            part.argument = replace(part.argument, symbol=variable.qualified)
        if len(parts) == 1 and parts[0].size:
            # By the host's name for it, which its launches may use as well.
            size = _copied_from(types.program, variable.name) or variable.name
            parts[0].argument, parts[0].size = replace(parts[0].argument, value=size), size
        found += parts
    return found


def _array(types: ParameterTypes, variable: ConstantVariable, usage: Usage, missing: list[Gap]) -> list[Part]:
    name = variable.name
    try:
        found = type_of(types.program, variable)
    except Unclear as why:
        missing.append(Gap(f"the contents of '{name}': host code fills this __constant__ memory; {why}"))
        return []
    usage.follow(name)
    argument = Argument(name, found.dtype.name, "in", str(found.count))
    return [Part(argument, [_FILLED], opaque=found.dtype.kind == "bytes", extent=str(found.count))]


def _single(types: ParameterTypes, variable: ConstantVariable, usage: Usage, missing: list[Gap]) -> list[Part]:
    if variable.pointer:
        what = f"what '{variable.name}' points to: host code fills this __constant__ memory with an address"
        missing.append(Gap(f"{what}, and a spec gives contents alone"))
        return []
    return drafted_parts(types, variable.parameter, usage, missing)


def _copied_from(program: Program, name: str) -> str:
    """The variable whose contents host code copies into this one: `n` of `cudaMemcpyToSymbol(c_n, &n, sizeof(int))`; "" where none."""
    pattern = re.compile(
        rf"\bcudaMemcpyToSymbol(?:Async)?\s*\(\s*(?:\w+\s*::\s*)*{re.escape(name)}\s*,\s*(?:\([\w\s*]*\)\s*)?&\s*(\w+)\s*,"
    )
    for path, data in program.files.items():
        if (
            name.encode() in data
            and not path.endswith(".toml")
            and (match := pattern.search(data.decode("utf-8", "replace")))
        ):
            return match[1]
    return ""
