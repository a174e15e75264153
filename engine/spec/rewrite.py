"""Changes the launch that a kernel spec declares, in the spec's own text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from engine.arith import FUNCTIONS, ArithmeticError_, Number, evaluate
from engine.cuda.kernel import Edit
from engine.cuda.parse import parse
from engine.errors import SpecError
from engine.model import Program
from engine.spec.constant_values import open_constants
from engine.spec.kernel_spec import KernelSpec, LaunchExpr
from engine.spec.spec_checks import whole
from engine.spec.tables import Table, split_kernel, tables_of

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*")


def relaunch_spec(
    program: Program, spec: KernelSpec, step_index: int, launch: LaunchExpr
) -> Mapping[str, tuple[Edit, ...]]:
    """Edits, by file, that make the spec's text declare the given launch for one step; an empty part stays as it is.

    The expressions are over the kernel's parameters and the file's constants, as for `engine.cuda.launch.relaunch`; they
    are put in terms of the spec's sizes, constants as numbers. Names stay of those that tune lines of the file leave open, and of
    `launch.constants`, which an edit is about to bring. Empty where the spec declares no launch. Raises SpecError where an expression
    cannot be put so, or has no value in one of the spec's cases, or where the spec is no longer in the program.
    """
    if spec.steps[step_index].launch is None:
        return {}
    table = _table(program, spec)
    keys: tuple[str | int, ...] = ("chain", step_index, "launch") if "chain" in table.data else ("launch",)
    kept = open_constants(parse(program.data, spec.file)) | dict(launch.constants)
    names = _Names(program, spec, step_index, table.where(*keys), kept)
    edits = []
    for key, extents in (("grid", launch.grid), ("block", launch.block)):
        span = table.span(*keys, key)
        if extents and span is not None:
            edits.append(Edit(span, _value([names.translate(e) for e in extents])))
    if launch.shared:
        text = _value([names.translate(launch.shared)])
        span = table.span(*keys, "shared")
        edits.append(Edit(span, text) if span else _insertion(program, table, keys, text))
    return {table.source.path: tuple(edits)} if edits else {}


def _table(program: Program, spec: KernelSpec) -> Table:
    path = spec.origin.rpartition(":")[0]
    first = spec.steps[0]
    for table in tables_of(program, path or None):
        if split_kernel(table.kernel) == (first.kernel, first.template_args):
            return table
    raise SpecError(f"the spec of '{spec.kernel}' is not in this program", path, "keep its text when editing")


def _value(extents: Sequence[str]) -> str:
    texts = [json.dumps(e, ensure_ascii=False) for e in extents]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _insertion(program: Program, table: Table, keys: tuple[str | int, ...], value: str) -> Edit:
    """Adds `shared` after the block, in the way the block is written: in the same braces, or on a line of its own."""
    place, span = table.place(*keys, "block"), table.span(*keys, "block")
    if place is None or span is None:
        raise SpecError("the launch has no block", table.where(*keys))
    source = table.source
    if place.inline:
        return Edit.insert(span.end, f", shared = {value}")
    prefix, dot, _ = source.text[place.key[0] : place.key[1]].rpartition(".")
    data = program.files[source.path]
    ends = data.find(b"\n", span.end)
    ends = len(data) if ends < 0 else ends - (data[ends - 1 : ends] == b"\r")
    begins = source.byte(place.key[0])
    # The head of the line, which for a comment is its indentation and `// optiml:`.
    head = data[data.rfind(b"\n", 0, begins) + 1 : begins].decode().removeprefix("\ufeff")
    return Edit.insert(ends, f"\n{head}{prefix}{dot}shared = {value}")


@dataclass
class _Names:
    """Puts expressions over kernel parameters in terms of the spec's sizes."""

    program: Program
    spec: KernelSpec
    step_index: int
    where: str
    kept: Mapping[str, int]
    values: dict[str, Number] = field(default_factory=dict)  # of constants, as far as they are known already

    def translate(self, text: str) -> str:
        unit = parse(self.program.data, self.spec.file)
        step = self.spec.steps[self.step_index]
        parameters = [p.name for p in unit.kernel(step.kernel).parameters]
        bound = dict(zip(parameters, step.arguments, strict=False))
        sizes: dict[str, Number] = dict(self.spec.time[0].sizes)
        constants = {**unit.constants, **unit.macros}

        def replaced(match: re.Match[str]) -> str:
            name = match[0]
            if name.removeprefix("std::") in FUNCTIONS:
                return name
            if name in bound:
                argument = self.spec.argument(bound[name])
                if argument.role != "scalar":
                    raise SpecError(f"the launch cannot depend on the buffer '{name}'", self.where)
                return _grouped(argument.value or argument.name)
            if name in self.kept:
                return name
            if name in constants:
                return str(self.constant(name, constants))
            if name in sizes:
                return name
            raise SpecError(f"the spec has no value for '{name}'", self.where)

        result = _WORD.sub(replaced, text)
        for case in (*self.spec.check, *self.spec.time):
            whole(result, {**self.kept, **case.sizes}, self.where)
        return result

    def constant(self, name: str, constants: Mapping[str, str], depth: int = 0) -> Number:
        if name in self.values:
            return self.values[name]
        text = constants[name]
        if depth > 8:
            raise SpecError(f"the constant '{name}' is defined through itself", self.where)
        inner = {w: self.constant(w, constants, depth + 1) for w in set(_WORD.findall(text)) if w in constants}
        try:
            return self.values.setdefault(name, evaluate(text, inner))
        except ArithmeticError_ as error:
            raise SpecError(f"the constant '{name}' has no value: {error.what}", self.where) from None


def _grouped(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"
