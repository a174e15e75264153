"""The arguments that a draft makes of a kernel's parameters, with what it says of each; a struct's fields are arguments too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from engine.cuda.enumerations import first_value
from engine.cuda.kernel import Parameter
from engine.errors import SpecError
from engine.spec.drafted_type import ParameterTypes
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.gaps import Gap
from engine.spec.kernel_spec import Argument, Role
from engine.spec.library_views import View, view_of
from engine.spec.pointed_types import pointed_type
from engine.spec.struct_layout import Field, Layout, described, target_type
from engine.spec.usage import Usage

# What is said of a role that is not what the type of the parameter says.
ASSUMED = "assumed: the value"
_CAST = "assumed: the type that the kernel casts it to"
_SIZED = re.compile(r"(?:PtrStep|GlobPtr)Sz")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
# Words for what counts something, in the name of a field.
_SIZES = frozenset(
    {"n", "num", "count", "size", "len", "length", "width", "height", "depth", "rows", "cols", "columns", "total", "dim",
     "nrows", "ncols", "batch", "elements", "numel"}
)  # fmt: skip
KEPT = "assumed: what it does not write stays"
SAID: Mapping[Role, str] = {
    "in": "assumed: only read, though the pointer is not const",
    "out": "assumed: each element is written before it is read",
    "inout": "assumed: read and written (its uses are not all visible)",
}


@dataclass
class Part:
    """An argument of a draft. `size` is the free size that gives a scalar its value, "": none.

    `opaque`: the kernel sees something else in the bytes of a buffer. `extent`: its elements, where its class says so; else "".
    `typed`: the type is not that of the parameter, and the spec has to say it.
    """

    argument: Argument
    notes: list[str]
    size: str = ""
    opaque: bool = False
    extent: str = ""
    typed: bool = False


def drafted_parts(types: ParameterTypes, parameter: Parameter, usage: Usage, missing: list[Gap]) -> list[Part]:
    """What a draft makes of one parameter before anything was tried; what it does not know goes to `missing`."""
    found = types.of(parameter)
    if found.gap is not None:
        missing.append(found.gap)
    elif not parameter.pointer and found.layout is not None and _by_fields(types, parameter, found.layout, usage):
        return _of_struct(types, parameter, found.layout, usage, missing)
    own_name = found.dtype is not None and not parameter.pointer and not _is_builtin(parameter.base)
    first = first_value(types.program, parameter.base) if own_name else None
    if first is not None and found.dtype is not None:
        note = f"assumed: {first[0]}, the first of its values"
        argument = Argument(parameter.name, found.dtype.name, "scalar", value=str(first[1]))
        return [Part(argument, [note], typed=found.told)]
    if parameter.pointer:
        return [_of_pointer(types, parameter, found.dtype, usage)]
    return [_of_value(parameter, found.dtype, found.layout, found.gap is not None, usage, missing)]


def _is_builtin(kind: str) -> bool:
    try:
        parse_dtype(kind)
    except SpecError:
        return False
    return True


def _by_fields(types: ParameterTypes, parameter: Parameter, layout: Layout, usage: Usage) -> bool:
    """Whether the fields of a struct are arguments: it holds pointers, or whole numbers of which something shows what they are.

    Of a struct that is handed on the names of its sizes show it.
    """
    whole = [f for f in layout.fields if f.dtype is not None and f.dtype.kind == "int"]
    sizes = [f for f in whole if _counts(f"{parameter.name}.{f.name}", usage)]
    known = bool(sizes) or not usage.hands_on(parameter.name) or bool(_view(types, parameter, layout).values)
    return bool(layout.pointers) or (bool(whole) and known)


def _counts(full: str, usage: Usage) -> bool:
    """Whether a field is a size: the kernel uses it as one, or hands its struct on and it has the name of one."""
    words = {word.lower() for word in _WORD.findall(full.rpartition(".")[2])}
    return usage.is_size(full) or (bool(words & _SIZES) and usage.hands_on(full.partition(".")[0]))


def _of_pointer(types: ParameterTypes, parameter: Parameter, dtype: DType | None, usage: Usage) -> Part:
    name = parameter.name
    seen = pointed_type(types, usage.body, name) if parameter.base == "void" else None
    dtype = seen or dtype
    kind = dtype.name if dtype else "struct:1"
    opaque = (parameter.base == "void" and seen is None) or kind.startswith("struct:")
    use = usage.uses[name]
    role: Role
    notes: list[str] = []
    if parameter.const:
        role = "in"
    elif use.escapes or not use.indices:
        role, notes = "inout", [SAID["inout"]]
    elif not use.written:
        role, notes = "in", [SAID["in"]]
    elif use.read and use.starts_written and not use.atomic:
        role, notes = "out", [SAID["out"]]
    else:
        role = "inout" if use.read else "out"
    return Part(Argument(name, kind, role), [*notes, *([_CAST] if seen else [])], opaque=opaque, typed=seen is not None)


def _of_value(
    parameter: Parameter, dtype: DType | None, layout: Layout | None, gap: bool, usage: Usage, missing: list[Gap]
) -> Part:
    name, kind = parameter.name, dtype.name if dtype else "struct:1"
    if dtype is not None and _is_size(name, dtype, usage):
        return Part(Argument(name, kind, "scalar"), [], name)
    whole = layout is not None and any(f.dtype is None or f.dtype.kind == "int" for f in layout.fields)
    if dtype is None or (dtype.kind == "bytes" and (layout is None or whole)):
        if not gap:
            # Whole numbers of a struct are mostly sizes: a guess would be a kernel that does next to nothing.
            fields = ", ".join(f"{f.name} at {f.offset}" for f in layout.fields) if layout else ""
            missing.append(Gap(f"the value of '{name}' ({fields}): write hex: and its bytes", f"args.{name}"))
        return Part(Argument(name, kind, "scalar", value="hex:00"), [])
    value = layout.assumed() if layout is not None else _assumed(name, dtype)
    return Part(Argument(name, kind, "scalar", value=value), [ASSUMED])


def _of_struct(
    types: ParameterTypes, parameter: Parameter, layout: Layout, usage: Usage, missing: list[Gap]
) -> list[Part]:
    name = parameter.name
    kind = f"struct:{layout.size}"
    parts = [Part(Argument(name, kind, "scalar", value=f"hex:{'00' * layout.size}"), [])]
    view = _view(types, parameter, layout)
    for field in [each for f in layout.fields for each in f.elements]:
        full = f"{name}.{field.name}"
        if field.dtype is not None and field.name in view.values:
            value = view.values[field.name]
            notes = [view.note] if field.name not in view.sizes or value != view.sizes[field.name] else []
            part = Part(Argument(full, field.dtype.name, "scalar", value=value, offset=field.offset), notes)
            parts.append(replace(part, size=view.sizes.get(field.name, "")))
            continue
        if field.dtype is not None:
            if layout.pointers or usage.hands_on(name) or usage.takes(full):  # what nothing reads is zero
                parts.append(_of_field(full, field, field.dtype, usage))
            continue
        usage.follow(full)
        dtype = target_type(types.program, field)
        if dtype is None:
            told = described(name, parameter.base, layout)
            what = f"{told}: what '{field.name}' points to ('{field.target[:60] or 'pointers'}') is no type that a spec can name"
            missing.append(Gap(what, f"args.{full}"))
            continue
        role: Role = "in" if field.const else "inout"
        notes = [] if field.const else [SAID["inout"]]
        seen = pointed_type(types, usage.body, full) if field.target == "void" else None
        opaque = dtype.kind == "bytes" or (field.target == "void" and seen is None)
        argument = Argument(full, (seen or dtype).name, role, offset=field.offset)
        notes = [*notes, *([_CAST] if seen else [])]
        extent = view.extents.get(field.name, "")
        parts.append(Part(argument, notes, opaque=opaque, extent=extent, typed=seen is not None))
    return parts


def _view(types: ParameterTypes, parameter: Parameter, layout: Layout) -> View:
    """What the parameter is where its class is a library's view of memory."""
    pointed = [dtype for f in layout.fields if f.dtype is None and (dtype := target_type(types.program, f)) is not None]
    kind = types.plain(parameter.base).partition("<")[0].split("::")[-1]
    others = types.kernel.parameters
    # Beside a matrix that says how large it is, `w` may be the width of something else.
    whole = [] if any(_SIZED.search(p.base) for p in others) else [p.name for p in others if not p.pointer]
    return view_of(kind, layout, pointed[0].itemsize if pointed else 1, whole) or View()


def _of_field(full: str, field: Field, dtype: DType, usage: Usage) -> Part:
    """A number among a struct's fields."""
    own = re.sub(r"\W", "_", field.name) if field.name[-1:].isdigit() else field.name.rpartition(".")[2]
    if dtype.kind == "int" and dtype.lanes == 1 and _counts(full, usage) and not usage.is_shift(full):
        return Part(Argument(full, dtype.name, "scalar", value=own, offset=field.offset), [], own)
    value = "0" if dtype.kind == "bool" else _assumed(own, dtype)
    return Part(Argument(full, dtype.name, "scalar", value=value, offset=field.offset), [ASSUMED])


def _is_size(name: str, dtype: DType, usage: Usage) -> bool:
    return dtype.kind == "int" and dtype.lanes == 1 and usage.is_size(name) and not usage.is_shift(name)


def _assumed(name: str, dtype: DType) -> str:
    """Not 1 for fractions: that would hide a factor that an edit forgets, and what stands beside `1 - beta`."""
    if dtype.kind != "float":
        return "1"
    return "1e-5" if re.search("eps", name, re.IGNORECASE) else "0.75"
