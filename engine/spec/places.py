"""Where the arguments of a spec lie: in a parameter of their own, or so many bytes into a struct that is passed by value."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from engine.cuda.kernel import Parameter
from engine.errors import SpecError
from engine.model import Program
from engine.spec.dtypes import DType, parse_dtype
from engine.spec.struct_layout import Field, Layout, Unclear, layout, target_type

_ADDRESS = 8  # bytes


@dataclass(frozen=True)
class Place:
    """One argument: its name, the type of it or of what it points to, and where it lies in its parameter, in bytes.

    `const` is of what it points to.
    """

    name: str
    dtype: DType
    pointer: bool
    const: bool
    offset: int = 0


class FieldError(Exception):
    """What is wrong with a struct's fields in a spec, and what to write instead; `keys` lead from the struct to it."""

    def __init__(self, what: str, do: str, *keys: str) -> None:
        super().__init__(what)
        self.what, self.do, self.keys = what, do, keys


_Found = tuple[Place, Mapping[str, Any], tuple[str, ...]]


@dataclass(frozen=True)
class StructFields:
    """The fields that a spec gives of one struct parameter. `bound` are the types that the kernel's template parameters stand for."""

    program: Program
    parameter: Parameter
    bound: Mapping[str, str]

    def places(self, own: Mapping[str, Any], within: Mapping[str, Any]) -> tuple[Place, list[_Found]]:
        """The struct itself, and each field with its table and the keys that lead to it. Raises FieldError.

        Types and offsets come from the source; a spec gives those that it does not show.
        """
        name, known, why = self.parameter.name, dict[str, Field](), ""
        found: Layout | None = None
        try:
            found = layout(self.program, self.parameter.base, self.bound)
            known = {f.name: f for each in found.fields for f in each.elements}
            why = found.unclear
        except Unclear as unclear:
            why = str(unclear)
        declared = own.get("type")
        size = found.size if found is not None and not why else 0
        if declared is None and not size:
            raise FieldError(f"the size of '{name}' is not known: {why}", 'write type = "struct:N"')
        whole = _parsed(declared, f"struct:{size}", "type")
        if size and whole.itemsize != size:
            raise FieldError(f"'{name}' has {size} bytes, not {whole.itemsize}", "omit its type", "type")
        places = []
        for path, table in _leaves(within, {} if why else known, ()):
            places.append((self._place(path, table, None if why else known[".".join(path)], whole), table, path))
        _apart(places)
        return Place(name, whole, False, False), places

    def _place(self, path: tuple[str, ...], table: Mapping[str, Any], field: Field | None, whole: DType) -> Place:
        name = ".".join((self.parameter.name, *path))
        pointer = field.dtype is None if field is not None else "role" in table or "size" in table
        offset = table.get("offset", field.offset if field is not None else None)
        if not isinstance(offset, int) or isinstance(offset, bool):
            raise FieldError(f"the offset of '{name}' is not known", "write its offset = N, in bytes", *path)
        if field is not None and offset != field.offset:
            raise FieldError(f"'{name}' is at offset {field.offset}, not {offset}", "omit its offset", *path, "offset")
        own = (target_type(self.program, field) if pointer else field.dtype) if field is not None else None
        declared = table.get("type")
        if declared is None and own is None:
            raise FieldError(f"the type of '{name}' is not known", 'write type = "float" or the like', *path)
        dtype = _parsed(declared, own.name if own is not None else "", *path, "type")
        if (
            own is not None
            and own != dtype
            and (not pointer or "bytes" not in (own.kind, dtype.kind))
            and own.name != "uint8"
        ):
            raise FieldError(f"'{name}' is {own.name}, not {dtype.name}", "correct the type", *path, "type")
        if not 0 <= offset <= whole.itemsize - (_ADDRESS if pointer else dtype.itemsize):
            raise FieldError(f"'{name}' is outside its struct of {whole.itemsize} bytes", "correct one of them", *path)
        return Place(name, dtype, pointer, field.const if field is not None else False, offset)


def _parsed(declared: object, otherwise: str, *keys: str) -> DType:
    if declared is not None and not isinstance(declared, str):
        raise FieldError("a type is not a string", 'write type = "float" or the like', *keys)
    try:
        return parse_dtype(declared or otherwise)
    except SpecError as error:
        raise FieldError(error.what, error.do, *keys) from None


def _leaves(
    table: Mapping[str, Any], known: Mapping[str, Field], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """The fields of a table of tables. Without `known` those are fields that say where they lie."""
    for key, part in table.items():
        path = (*above, key)
        name = ".".join(path)
        if not isinstance(part, dict):
            raise FieldError(f"'{name[:60]}' is not the table of a field", "write { key = value, … }", *path)
        if name in known or (not known and "offset" in part):
            yield path, part
        elif part and (any(n.startswith(f"{name}.") for n in known) or (not known and _tables(part))):
            yield from _leaves(part, known, path)
        elif known:
            near = difflib.get_close_matches(name[:60], known, n=1, cutoff=0.4)
            do = f"did you mean '{near[0]}'?" if near else f"fields: {', '.join(known)}"
            raise FieldError(f"it has no field '{name[:60]}'", do, *path)
        else:
            raise FieldError(f"the offset of '{name[:60]}' is not known", "write its offset = N, in bytes", *path)


def _tables(part: Mapping[str, Any]) -> bool:
    return all(isinstance(value, dict) for value in part.values())


def _apart(places: list[_Found]) -> None:
    """Raises FieldError where two fields share bytes."""
    ends, last = 0, ""
    for place, _, path in sorted(places, key=lambda each: each[0].offset):
        if place.offset < ends:
            raise FieldError(f"'{place.name}' and '{last}' share bytes", "correct an offset", *path)
        ends, last = place.offset + (_ADDRESS if place.pointer else place.dtype.itemsize), place.name
