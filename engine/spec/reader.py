"""Reads kernel specs, strictly: every byte string gives a spec or an error that says the line and what to write instead."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn, cast

from engine.cuda.aliases import aliases
from engine.cuda.constants import integers, words
from engine.cuda.kernel import Kernel
from engine.cuda.parse import parse
from engine.errors import SpecError
from engine.model import Program
from engine.spec.constant_memory import GivenConstant, constant_named
from engine.spec.kernel_spec import Argument, Case, CompileOptions, Fill, FillKind, KernelSpec, LaunchExpr, Role, Step
from engine.spec.places import FieldError, Place, StructFields
from engine.spec.spec_checks import MAX_BYTES, case_name, check_case, derived_cases, same_names
from engine.spec.tables import SPEC_NAME, Table, resolve, split_kernel, tables_of
from engine.spec.types import bindings, parameter_type, template_defaults

_KEYS = ("kernel", "tolerance", "deterministic", "args", "launch", "check", "time", "compile", "chain", "tune", "where")
_FILLS: Mapping[str, tuple[str, ...]] = {
    "normal": ("low", "high"),
    "uniform": ("low", "high"),
    "integers": ("low", "high"),
    "permutation": (),
    "constant": ("low",),
    "sorted": ("low", "high"),
    "symmetric": ("low", "high"),
    "offsets": ("low", "high"),
    "csr_offsets": ("of",),
    "csr_columns": ("high", "of"),
}
_STANDARDS = ("c++11", "c++14", "c++17", "c++20")
_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_TEMPLATE = re.compile(r"[\w\s:,<>\-]{0,200}", re.ASCII)
_VALUE = r"-?(0[xX][0-9a-fA-F]+|\d+(\.\d*)?([eE][+-]?\d+)?)[uUlLfF]{0,3}|[A-Za-z_]\w{0,63}"
_DEFINE = re.compile(rf"[A-Za-z_]\w{{0,63}}(=({_VALUE})?)?", re.ASCII)
_FOLDER = re.compile(r"[\w.+][\w.+ /-]{0,200}", re.ASCII)
PLAIN = CompileOptions()
_MOST = {"args": 64, "fields": 256, "check": 64, "time": 64, "chain": 16, "defines": 64, "include": 16}


def specs_in(
    program: Program, spec_path: str | None, *, limit_bytes: int = MAX_BYTES, compile: CompileOptions = PLAIN
) -> tuple[KernelSpec, ...]:
    """All specs for the program's kernel file, from its comments and from the optiml.toml at `spec_path` (if any).

    Reads nothing but the program's bytes. Buffers of one case may take `limit_bytes` together. `compile` are the project's
    own options, which those of a spec extend. Raises SpecError, and SourceError where the kernel file itself cannot be parsed.
    """
    tables = tables_of(program, spec_path)
    return tuple(spec_of(program, table, limit_bytes=limit_bytes, compile=compile) for table in tables)


def spec_of(
    program: Program, table: Table, *, limit_bytes: int = MAX_BYTES, compile: CompileOptions = PLAIN
) -> KernelSpec:
    """The spec that one table gives for the program. Raises as `specs_in`."""
    return _SpecReader(program, table, compile).spec(limit_bytes)


def relaunched(program: Program, spec: KernelSpec) -> KernelSpec:
    """The spec with the launches that this program's text declares: an edit may have changed them, and nothing else of a spec.

    The spec itself where its text is not in the program, or where it declares no launch. Raises as `specs_in`.
    """
    if not spec.origin or all(step.launch is None for step in spec.steps):
        return spec  # a draft's text is in no file
    for current in specs_in(program, spec.origin.rpartition(":")[0] or None, compile=spec.compile):
        if [s.kernel for s in current.steps] == [s.kernel for s in spec.steps]:
            steps = tuple(replace(a, launch=b.launch) for a, b in zip(spec.steps, current.steps, strict=True))
            return replace(spec, steps=steps)
    return spec


class _SpecReader:
    """Turns one table into a spec."""

    def __init__(self, program: Program, table: Table, project: CompileOptions) -> None:
        self.table, self.program, self.project = table, program, project
        self.unit = parse(program.data, program.kernel_file)

    # ---- errors and types

    def fail(self, what: str, *keys: str | int, do: str = "") -> NoReturn:
        raise SpecError(what, self.table.where(*keys), do)

    def known(self, data: Mapping[str, Any], names: Iterable[str], *keys: str | int) -> None:
        names = tuple(names)
        for key in data:
            if key not in names:
                near = difflib.get_close_matches(key[:60], names, n=1, cutoff=0.4)
                do = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(names)}"
                self.fail(f"unknown key '{key[:60]}'", *keys, key, do=do)

    def dictionary(self, value: object, *keys: str | int) -> Mapping[str, Any]:
        if not isinstance(value, dict):
            self.fail(f"'{_dotted(keys)}' is {_kind(value)}, not a table", *keys, do="write { key = value, … }")
        return value

    def array(self, value: object, *keys: str | int) -> list[Any]:
        if not isinstance(value, list):
            self.fail(f"'{_dotted(keys)}' is {_kind(value)}, not an array", *keys, do="write [ … ]")
        values: list[Any] = value
        most = _MOST.get(str(keys[-1]), 64)
        if len(values) > most:
            self.fail(f"'{_dotted(keys)}' has {len(values)} entries", *keys, do=f"at most {most} are allowed")
        return values

    def string(self, value: object, *keys: str | int) -> str:
        if not isinstance(value, str):
            self.fail(f"'{_dotted(keys)}' is {_kind(value)}, not a string", *keys)
        return value

    def expression(self, value: object, *keys: str | int) -> str:
        """An arithmetic expression: a string, or a plain number."""
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            self.fail(f"'{_dotted(keys)}' is {_kind(value)}, not an expression", *keys, do='write "rows*cols" or 4')
        text = value.strip() if isinstance(value, str) else repr(value)
        if not text:
            self.fail(f"'{_dotted(keys)}' is empty", *keys, do='write an expression such as "rows*cols"')
        if text == "?":
            self.fail(
                f"'{_dotted(keys)}' is not filled in",
                *keys,
                do='the draft left it open: write an expression such as "rows*cols"',
            )
        if len(text) > 1000:
            self.fail(f"'{_dotted(keys)}' has {len(text)} characters", *keys, do="at most 1000 are allowed")
        return text

    # ---- parts

    def spec(self, limit_bytes: int) -> KernelSpec:
        data = self.table.data
        self.known(data, _KEYS if self.table.comment else ("file", *_KEYS))
        steps = self.steps(data)
        kernels = [self.kernel(step, i) for i, step in enumerate(steps)]
        # A compiler that is asked for an instance by name needs default arguments written out, and namespaces.
        named = zip(steps, kernels, strict=True)
        steps = tuple(
            replace(s, kernel=k.qualified, template_args=s.template_args or template_defaults(k)) for s, k in named
        )
        compiled = self.compile(data)
        self.aliases = aliases(self.program, compiled.defines, compiled.include, compiled.unit)
        arguments, steps = self.arguments(data, steps, kernels)
        time = self.cases(data, "time")
        if not time:
            do = "add the real shapes, such as time = [{ rows = 4096, cols = 4096 }]"
            self.fail("no timing case", "time", do=do)
        given = self.cases(data, "check")
        check = given or derived_cases(time)
        different = same_names((*time, *given))
        if different:
            a, b = different
            odd = sorted(a.sizes.keys() ^ b.sizes.keys())[0]
            key = "check" if b in given else "time"
            self.fail(f"the size '{odd}' is not in every case", key, do="give every case the same sizes")
        spec = KernelSpec(
            file=self.program.kernel_file,
            steps=steps,
            arguments=arguments,
            check=check,
            time=time,
            tolerance=self.tolerance(data.get("tolerance", "auto"), "tolerance"),
            compile=compiled,
            origin=self.table.origin,
            deterministic=self.boolean(data.get("deterministic", True), "deterministic"),
        )
        for case in time:
            check_case(spec, case, self.table.where, limit_bytes)
        if given:
            for case in given:
                check_case(spec, case, self.table.where, limit_bytes)
            return spec
        return self.with_possible_checks(spec, limit_bytes)

    def with_possible_checks(self, spec: KernelSpec, limit_bytes: int) -> KernelSpec:
        """Drops derived shapes that the spec's own expressions do not allow."""
        possible = []
        for case in spec.check:
            try:
                check_case(spec, case, self.table.where, limit_bytes)
            except SpecError:
                continue
            possible.append(case)
        if not possible:
            do = "add small shapes, such as check = [{ rows = 7, cols = 129 }]"
            self.fail("no check case, and none can be derived from the timing cases", "check", do=do)
        return replace(spec, check=tuple(possible))

    def steps(self, data: Mapping[str, Any]) -> tuple[Step, ...]:
        """The launches in order; a plain spec's step has no argument names yet."""
        if "chain" not in data:
            if not self.table.kernel:
                self.string(data.get("kernel", ""), "kernel")
                do = 'write kernel = "name", or a chain'
                self.fail("no kernel name", "kernel", do=do)
            if "kernel" in data:
                self.string(data["kernel"], "kernel")
            name, arguments = self.kernel_name(self.table.kernel, "kernel")
            return (Step(name, arguments, (), self.launch(data.get("launch"), "launch")),)
        for key in ("kernel", "launch"):
            if key in data:
                self.fail(f"'{key}' and 'chain' exclude each other", key, do="each entry of the chain has its own")
        steps = []
        entries = self.array(data["chain"], "chain")
        if not entries:
            self.fail("the chain is empty", "chain", do="add [[kernel.chain]] entries, or give one kernel")
        for i, entry in enumerate(entries):
            entry = self.dictionary(entry, "chain", i)
            self.known(entry, ("kernel", "args", "launch"), "chain", i)
            name, arguments = self.kernel_name(self.string(entry.get("kernel", ""), "chain", i, "kernel"), "chain", i)
            names = self.array(entry.get("args", []), "chain", i, "args")
            texts = tuple(self.name(n, "chain", i, "args") for n in names)
            steps.append(Step(name, arguments, texts, self.launch(entry.get("launch"), "chain", i, "launch")))
        return tuple(steps)

    def kernel_name(self, text: str, *keys: str | int) -> tuple[str, str]:
        name, arguments = split_kernel(text)
        if not re.fullmatch(r"\w+(::\w+)*", name, re.ASCII) or len(name) > 300:
            self.fail(f"'{name[:100]}' is not a kernel name", *keys)
        if not _TEMPLATE.fullmatch(arguments) or arguments.count("<") != arguments.count(">"):
            self.fail("unsupported template arguments", *keys, do="expected types, names and integers")
        return name, arguments

    def name(self, value: object, *keys: str | int) -> str:
        text = self.string(value, *keys)
        if not _NAME.fullmatch(text):
            self.fail(f"'{text[:60]}' is not a name", *keys, do="use letters, digits and underscores")
        return text

    def kernel(self, step: Step, index: int) -> Kernel:
        keys: tuple[str | int, ...] = ("chain", index, "kernel") if "chain" in self.table.data else ("kernel",)
        try:
            kernel = self.unit.kernel(step.kernel)
        except KeyError:
            there = sorted(k.qualified for k in self.unit.kernels)
            near = difflib.get_close_matches(step.kernel, there, n=1)
            do = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(there) or 'no kernel'}"
            self.fail(f"{self.program.kernel_file} has no kernel '{step.kernel[:100]}'", *keys, do=do)
        open_ = [p for p in kernel.template_parameters if "=" not in p and "..." not in p]
        if open_ and not step.template_args:
            do = f'write kernel = "{kernel.name}<…>" with {", ".join(open_)}'
            self.fail(f"'{kernel.name}' is a template without arguments", *keys, do=do)
        return kernel

    def launch(self, value: object, *keys: str | int) -> LaunchExpr | None:
        if value is None:
            return None
        data = self.dictionary(value, *keys)
        self.known(data, ("grid", "block", "shared"), *keys)
        for key in ("grid", "block"):
            if key not in data:
                self.fail(f"the launch has no '{key}'", *keys, do=f'add {key} = "…", or omit the launch')
        parts = {key: self.extents(data[key], *keys, key) for key in ("grid", "block")}
        shared = self.expression(data.get("shared", "0"), *keys, "shared")
        names = [name for text in (*parts["grid"], *parts["block"], shared) for name in words(text)]
        return LaunchExpr(parts["grid"], parts["block"], shared, tuple(integers(self.unit, names).items()))

    def extents(self, value: object, *keys: str | int) -> tuple[str, ...]:
        if not isinstance(value, list):
            return (self.expression(value, *keys),)
        if not 1 <= len(value) <= 3:
            self.fail(f"'{_dotted(keys)}' has {len(value)} extents", *keys, do="give one to three")
        return tuple(self.expression(v, *keys, i) for i, v in enumerate(value))

    # ---- arguments

    def arguments(
        self, data: Mapping[str, Any], steps: tuple[Step, ...], kernels: list[Kernel]
    ) -> tuple[tuple[Argument, ...], tuple[Step, ...]]:
        table = self.dictionary(data.get("args", {}), "args")
        if len(table) > _MOST["args"]:
            self.fail(f"{len(table)} arguments", "args", do=f"at most {_MOST['args']} are allowed")
        if "chain" not in data:
            steps = (replace(steps[0], arguments=tuple(p.name for p in kernels[0].parameters)),)
        uses: dict[str, list[tuple[Kernel, Step, int]]] = {}
        for i, (step, kernel) in enumerate(zip(steps, kernels, strict=True)):
            if len(step.arguments) != len(kernel.parameters):
                what = f"'{kernel.name}' takes {len(kernel.parameters)} arguments, and {len(step.arguments)} are given"
                self.fail(
                    what, "chain", i, "args", do=f"its parameters: {', '.join(p.name for p in kernel.parameters)}"
                )
            for position, name in enumerate(step.arguments):
                uses.setdefault(name, []).append((kernel, step, position))
        others = [n for n in table if n not in uses]
        constants = [argument for n in others for argument in self.constant(n, table[n], kernels[0], list(uses))]
        found = [argument for n, u in uses.items() for argument in self.parameter(n, table.get(n, {}), u)] + constants
        if len(found) > _MOST["fields"]:
            self.fail(f"{len(found)} arguments", "args", do=f"at most {_MOST['fields']} are allowed")
        if any(a.scratch for a in found) and not any(a.role in ("out", "inout") and not a.scratch for a in found):
            self.fail(
                "all that is written is scratch, so there is no result", "args", do='give a result the role "out"'
            )
        return tuple(found), steps

    def parameter(self, name: str, value: object, uses: list[tuple[Kernel, Step, int]]) -> list[Argument]:
        """The argument of a parameter, and those of the fields that are given of a struct."""
        keys = ("args", name)
        data = self.dictionary(value, *keys)
        parameters = [k.parameters[p] for k, _, p in uses]
        pointer = parameters[0].pointer
        if any(p.pointer != pointer for p in parameters):
            self.fail(f"'{name}' is a pointer in one kernel of the chain and a value in another", *keys)
        within = {} if pointer else {key: part for key, part in data.items() if isinstance(part, dict)}
        if not within:
            dtype = parameter_type(
                self.aliases, uses, data.get("type"), lambda what, do: self.fail(what, *keys, "type", do=do)
            )
            return [self.argument(Place(name, dtype, pointer, all(p.const for p in parameters)), data, *keys)]
        kernel, step, _ = uses[0]
        struct = StructFields(self.program, parameters[0], bindings(kernel, step.template_args))
        own = {key: part for key, part in data.items() if key not in within}
        try:
            whole, places = struct.places(own, within)
        except FieldError as wrong:
            self.fail(wrong.what, *keys, *wrong.keys, do=wrong.do)
        found = [self.argument(whole, {"value": f"hex:{'00' * whole.dtype.itemsize}", **own}, *keys)]
        for place, part, path in places:
            given = {k: v for k, v in part.items() if k != "offset"}
            if not place.pointer:
                given.setdefault("value", path[-1])
            found.append(self.argument(place, given, *keys, *path))
        return found

    def constant(self, name: str, value: object, kernel: Kernel, parameters: list[str]) -> list[Argument]:
        """The arguments of a `__constant__` variable that host code fills."""
        try:
            variable = constant_named(self.program, name)
            if variable is None:
                near = difflib.get_close_matches(name[:60], parameters, n=1, cutoff=0.4)
                do = f"did you mean '{near[0]}'?" if near else f"parameters: {', '.join(parameters)}"
                what = f"'{name[:60]}' is not a parameter of '{kernel.name}', and no __constant__ variable"
                self.fail(what, "args", name, do=do)
            data = self.dictionary(value, "args", name)
            places = GivenConstant(self.program, variable).places(data)
        except FieldError as wrong:
            self.fail(wrong.what, "args", name, *wrong.keys, do=wrong.do)
        found = [self.argument(place, given, "args", name, *path) for place, given, path in places]
        return [replace(argument, symbol=variable.qualified) for argument in found]

    def argument(self, place: Place, data: Mapping[str, Any], *keys: str | int) -> Argument:
        name, dtype, pointer = place.name, place.dtype, place.pointer
        self.known(data, ("type", "role", "size", "fill", "value", "tolerance"), *keys)
        role = data.get("role")
        if role is None:
            role = "scalar" if not pointer else "in" if place.const else None
        if role is None:
            do = 'write role = "out" if the kernel only writes it, "inout" if it also reads it'
            self.fail(f"the role of '{name}' is missing: it is a pointer to non-const", *keys, do=do)
        scratch = role == "scratch"
        role = "out" if scratch else role
        if role not in ("in", "out", "inout", "scalar"):
            do = 'write "in", "out", "inout", "scratch" or "scalar"'
            self.fail(f"'{_dotted((*keys, 'role'))}' is {str(role)[:40]!r}", *keys, "role", do=do)
        if pointer == (role == "scalar"):
            kind = "a pointer and therefore a buffer" if pointer else "not a pointer and therefore a scalar"
            self.fail(f"'{name}' is {kind}", *keys, "role")
        for key in ("value",) if pointer else ("size", "fill", "tolerance"):
            if key in data:
                self.fail(f"'{key}' does not apply to the {'buffer' if pointer else 'scalar'} '{name}'", *keys, key)
        if not pointer:
            text = self.expression(data["value"], *keys, "value") if "value" in data else ""
            return Argument(name, dtype.name, "scalar", value=text, offset=place.offset)
        if "size" not in data:
            self.fail(f"the size of '{name}' is missing", *keys, do='write size = "rows*cols", its number of elements')
        size = self.expression(data["size"], *keys, "size")
        fill = Fill()
        if role != "out":
            if "fill" not in data and dtype.kind != "float":
                do = 'such as fill = { kind = "integers", low = 0, high = 100 }'
                self.fail(f"'{name}' holds {dtype.name}, and its fill is missing", *keys, do=do)
            fill = self.fill(data.get("fill", "normal"), dtype.kind, *keys, "fill")
        elif "fill" in data:
            self.fail(f"'{name}' is only written, so its fill has no effect", *keys, "fill", do="omit it")
        if scratch and "tolerance" in data:
            self.fail(f"'{name}' is scratch, which is compared with nothing", *keys, "tolerance", do="omit it")
        tolerance = self.tolerance(data.get("tolerance", "auto"), *keys, "tolerance")
        return Argument(name, dtype.name, cast(Role, role), size, fill, "", tolerance, place.offset, scratch=scratch)

    def fill(self, value: object, kind: str, *keys: str | int) -> Fill:
        data = {"kind": value} if isinstance(value, str) else self.dictionary(value, *keys)
        self.known(data, ("kind", "low", "high", "of"), *keys)
        name = self.string(data.get("kind", ""), *keys, "kind")
        if name not in _FILLS:
            near = difflib.get_close_matches(name[:60], _FILLS, n=1, cutoff=0.4)
            do = f"did you mean '{near[0]}'?" if near else f"known fills: {', '.join(_FILLS)}"
            self.fail(f"unknown fill '{name[:60]}'", *keys, "kind", do=do)
        for key in data:
            if key not in ("kind", *_FILLS[name]):
                self.fail(f"'{key}' does not apply to the fill '{name}'", *keys, key)
        if kind != "float" and name == "normal":
            do = 'write fill = { kind = "integers", low = 0, high = 100 }'
            self.fail("a normal fill needs a floating-point type", *keys, do=do)
        if kind != "int" and name in ("permutation", "offsets", "csr_offsets", "csr_columns"):
            self.fail(f"the fill '{name}' needs an integer type", *keys)
        if kind == "bytes" and name not in ("integers", "constant"):
            self.fail(f"the fill '{name}' does not apply to opaque bytes", *keys, do="use integers or constant")
        bounds = {key: self.expression(data[key], *keys, key) for key in ("low", "high") if key in data}
        of = self.name(data["of"], *keys, "of") if "of" in data else ""
        if name.startswith("csr") and not of:
            self.fail(f"the fill '{name}' needs 'of', its partner's name", *keys)
        if name == "csr_columns" and "high" not in bounds:
            self.fail("the fill 'csr_columns' needs 'high', the number of columns", *keys)
        return Fill(cast(FillKind, name), bounds.get("low", ""), bounds.get("high", ""), of)

    # ---- cases and the rest

    def cases(self, data: Mapping[str, Any], kind: str) -> tuple[Case, ...]:
        cases: list[Case] = []
        for i, entry in enumerate(self.array(data.get(kind, []), kind)):
            entry = self.dictionary(entry, kind, i)
            weight = entry.get("weight", 1.0)
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= 1e6:
                self.fail("a weight must be a number above 0", kind, i, "weight")
            if "weight" in entry and kind == "check":
                self.fail("a check case has no weight", kind, i, "weight", do="weights are for timing cases")
            sizes = {k: self.size(k, v, kind, i, k) for k, v in entry.items() if k != "weight"}
            if len(sizes) > 32:
                self.fail(f"{len(sizes)} sizes", kind, i, do="at most 32 are allowed")
            case = Case(case_name(sizes), sizes, float(weight))
            if any(c.sizes == sizes for c in cases):
                self.fail(f"the case {case.name} is given twice", kind, i)
            cases.append(case)
        return tuple(cases)

    def size(self, name: str, value: object, *keys: str | int) -> int | float:
        self.name(name, *keys)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail(f"the size '{name}' is {_kind(value)}, not a number", *keys, do="sizes must be plain numbers")
        if isinstance(value, int):
            if not 0 <= value < 2**48:
                self.fail(f"the size '{name}' is {str(value)[:40]}", *keys, do="sizes must be from 0 to 2**48")
        elif not math.isfinite(value):
            self.fail(f"the size '{name}' is {value}", *keys, do="give a finite number")
        return value

    def tolerance(self, value: object, *keys: str | int) -> float | None:
        if value == "auto":
            return None
        # Above 0.1 of the output's RMS an output of zeros comes close to passing.
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 0.1:
            self.fail(f"invalid '{_dotted(keys)}'", *keys, do='write "auto", or a number from 0 to 0.1')
        return float(value)

    def boolean(self, value: object, *keys: str | int) -> bool:
        if not isinstance(value, bool):
            self.fail(f"'{_dotted(keys)}' is {_kind(value)}, not true or false", *keys)
        return value

    def compile(self, data: Mapping[str, Any]) -> CompileOptions:
        table = self.dictionary(data.get("compile", {}), "compile")
        self.known(table, ("defines", "include", "std", "unit"), "compile")
        defines = self.array(table.get("defines", []), "compile", "defines")
        for i, text in enumerate(defines):
            if not _DEFINE.fullmatch(self.string(text, "compile", "defines", i)):
                do = 'write "NAME" or "NAME=4"; a value is a number or a name'
                self.fail("invalid define", "compile", "defines", i, do=do)
        folders = []
        for i, text in enumerate(self.array(table.get("include", []), "compile", "include")):
            do = "give a folder inside the repository, relative to its root"
            folders.append(self.inside(text, "an include folder is not allowed", do, "compile", "include", i))
        do = "give a file inside the repository, relative to its root"
        unit = table.get("unit", self.project.unit)
        unit = unit and self.inside(unit, "this file is not allowed", do, "compile", "unit")
        std = self.string(table.get("std", self.project.std), "compile", "std")
        if std not in _STANDARDS:
            self.fail(f"unknown standard '{std[:20]}'", "compile", "std", do=f"one of {', '.join(_STANDARDS)}")
        values = {d.partition("=")[0]: d for d in (*self.project.defines, *defines)}
        return CompileOptions(
            tuple(values.values()), tuple(dict.fromkeys((*folders, *self.project.include))), std, unit
        )

    def inside(self, value: object, what: str, do: str, *keys: str | int) -> str:
        """A path relative to the root, in the repository."""
        text = self.string(value, *keys)
        path = resolve(SPEC_NAME, text)
        if path is None or not _FOLDER.fullmatch(text) or not _FOLDER.fullmatch(path):
            self.fail(what, *keys, do=do)
        return path


def _dotted(keys: Iterable[str | int]) -> str:
    return ".".join(str(k)[:40] for k in keys)


def _kind(value: object) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a string", list: "an array"}
    return names.get(type(value), "a table" if isinstance(value, dict) else "a date or time")
