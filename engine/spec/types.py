"""The element type of a kernel parameter: declared by the spec, or read from the source through templates and aliases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from engine.cuda.kernel import Kernel
from engine.cuda.records import parameter_name, split_arguments
from engine.errors import SpecError
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.kernel_spec import Step

_MAX_ALIASES = 16  # typedefs of typedefs; also ends a cycle

Fail = Callable[[str, str], NoReturn]


def parameter_type(
    aliases: Mapping[str, str], uses: Sequence[tuple[Kernel, Step, int]], declared: object, fail: Fail
) -> DType:
    """The type of one argument of the spec, given where it is passed: kernel, step and position.

    `aliases` are the program's other names for types (`engine.cuda.aliases`). `declared` is the spec's own `type` (None: take
    the parameter's). `fail(what, do)` is called where there is none, or where both are known and do not fit each other.
    """
    name = uses[0][0].parameters[uses[0][2]].name
    own: DType | None = None
    for kernel, step, position in uses:
        found = source_type(aliases, kernel, kernel.parameters[position].base, step.template_args)
        if own and found and found != own and declared is None:
            fail(f"'{name}' is {own.name} in one kernel of the chain and {found.name} in another", "declare its type")
        own = own or found
    if declared is None:
        if own is None:
            base = uses[0][0].parameters[uses[0][2]].base
            if base == "void":  # only pointers point to it
                return parse_dtype("uint8")
            do = 'write type = "float" or the like; "struct:12" means 12 opaque bytes'
            fail(f"the type of '{name}' ('{base[:60]}') is not known", do)
        return own
    if not isinstance(declared, str):
        fail(f"the type of '{name}' is not a string", 'write type = "float" or the like')
    try:
        dtype = parse_dtype(declared)
    except SpecError as error:
        fail(error.what, error.do)
    if own and "bytes" not in (own.kind, dtype.kind):
        same = (
            own.storage == dtype.storage
            and own.kind == dtype.kind
            and (own.bfloat, own.eight) == (dtype.bfloat, dtype.eight)
        )
        if not same:
            fail(f"'{name}' is declared {dtype.name}, but the kernel's parameter is {own.name}", "correct the type")
    return dtype


def source_type(aliases: Mapping[str, str], kernel: Kernel, base: str, template_args: str) -> DType | None:
    """The type that `base` means inside a kernel: through template arguments and `aliases`. None if unknown."""
    templates = bindings(kernel, template_args)
    text = base
    for _ in range(_MAX_ALIASES):
        try:
            return parse_dtype(text)
        except SpecError:
            pass
        key = " ".join(w for w in text.split() if w not in ("const", "volatile", "typename", "enum"))
        following = templates.get(key) or aliases.get(key.split("::")[-1])
        if not following or following == text:
            return None
        text = following
    return None


def bindings(kernel: Kernel, template_args: str) -> dict[str, str]:
    """What a kernel's template parameters stand for, as text: those given in order, else their defaults."""
    given = split_arguments(template_args)
    bound = {}
    for position, parameter in enumerate(kernel.template_parameters):
        default = parameter.partition("=")[2]
        value = given[position] if position < len(given) else default.strip()
        if (name := parameter_name(parameter)) and value:
            bound[name] = value
    return bound


def template_defaults(kernel: Kernel) -> str:
    """The template arguments of a kernel whose parameters all have defaults, as text; "" of any other."""
    values = [parameter.partition("=")[2].strip() for parameter in kernel.template_parameters]
    return ", ".join(values) if all(values) else ""
