"""The type that a draft gives a parameter, and what is missing where the text does not settle it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from engine.cuda.enumerations import holding
from engine.cuda.kernel import Kernel, Parameter
from engine.cuda.typenames import TypeNames
from engine.model import Program
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.gaps import Gap
from engine.spec.struct_layout import Layout, Unclear, described, layout
from engine.spec.types import bindings, source_type

# What only the driver makes: no bytes that a spec could give stand for it.
_HANDLES = {
    "cudaTextureObject_t": "a texture",
    "cudaSurfaceObject_t": "a surface",
    "cudaGraphConditionalHandle": "a handle of a graph",
    "cudaGraphExec_t": "a graph",
    "CUtensorMap": "a tensor map",
    "TexturePtr": "a texture",  # OpenCV's
    "TextureOffPtr": "a texture",
}
_POINTERS = re.compile(r"\*\s*(?:const\s*|__restrict__\s*)*\*[^>]*$")


@dataclass(frozen=True)
class DraftedType:
    """`dtype` is None where the type is not known; `gap` then says why. `layout` is that of a class.

    `told`: the spec has to say the type, as nothing else reads it from the source.
    """

    dtype: DType | None
    layout: Layout | None = None
    gap: Gap | None = None
    told: bool = False


@dataclass(frozen=True)
class ParameterTypes:
    """The types of one kernel's parameters. `names` are the program's other names for types."""

    program: Program
    names: Mapping[str, str]
    kernel: Kernel
    template_args: str

    def plain(self, kind: str) -> str:
        """The type that a name stands for in the end, as text."""
        return TypeNames(self.program, bound=bindings(self.kernel, self.template_args)).plain(kind)

    def of(self, parameter: Parameter) -> DraftedType:
        """Of one parameter. A gap without a key is one that no line of a spec closes."""
        if parameter.pointer and _POINTERS.search(parameter.type):
            said = f"'{parameter.name}' is a buffer of pointers ('{parameter.type[:60]}'): a spec has no pointers in buffers"
            return DraftedType(None, None, Gap(said))
        dtype = source_type(self.names, self.kernel, parameter.base, self.template_args)
        if dtype is not None:
            return DraftedType(dtype)
        name, kind = parameter.name, parameter.base
        if (held := holding(self.program, kind)) and not parameter.pointer:
            return DraftedType(parse_dtype(held), told=True)  # where the grammar loses what is around it
        if any(re.search(rf"\.\.\.\s*{re.escape(kind)}$", p) for p in self.kernel.template_parameters):
            return DraftedType(
                None, None, Gap(f"'{name}' is a parameter pack ('{kind}...'): a spec names single parameters")
            )
        if what := _HANDLES.get(self.plain(kind).partition("<")[0].rpartition("::")[2]):
            return DraftedType(
                None, None, Gap(f"'{name}' is {what} ('{kind[:60]}'): a spec has numbers and buffers alone")
            )
        if parameter.pointer and kind == "void":
            return DraftedType(parse_dtype("uint8"))
        try:
            found = layout(self.program, kind, bindings(self.kernel, self.template_args))
        except Unclear as why:
            ending = "write struct:N with its size in bytes" if parameter.pointer else "a spec cannot give its value"
            # Bytes of a size can be drawn for a buffer; what a value passed by itself means, nobody can guess.
            return DraftedType(
                None, None, Gap(f"the type of '{name}' ('{kind[:60]}'): {why}; {ending}", f"args.{name}")
            )
        if found.pointers and parameter.pointer:
            return DraftedType(None, found, Gap(f"{described(name, kind, found)}: a spec has no pointers in buffers"))
        if found.unclear:
            what = f"{described(name, kind, found)}, and how they lie in it is not known: {found.unclear}"
            return DraftedType(None, found, Gap(what))
        return DraftedType(found.element() if parameter.pointer else parse_dtype(f"struct:{found.size}"), found)
