"""Host functions of two object files compared: what each calls and does, but for the functions that launch the kernels.

Text that is equal may mean another thing: a new overload or a type that shadows another changes what host code calls and how large
things are. Objects are built with one section for each function (`-ffunction-sections`), so functions can be compared one by one.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import Any

from elftools.elf.elffile import ELFFile

from engine.errors import OptimlError

# Names of internal linkage hold a hash of the file's path and text.
_INTERNAL = re.compile(r"\d*_(?:GLOBAL__N_|INTERNAL)_+[0-9a-f]{8}_\d+_.+?_[0-9a-f]{8}(?=\d|_|$)(?:_\d+)?")
# What nvcc writes beside the user's code: it lists the kernels, whose order and count the machine code shows.
_OURS = re.compile(r"_ZL\d+_+(?:nv_|sti_+cuda|cuda)\w*|_ZL\d+__(?:internal_cast|fat)\w*|fatbinData|__nv\w*")
_TEXT = ".text."
_X86_RELATIVE = (2, 4)  # R_X86_64_PC32, R_X86_64_PLT32: the addend counts from behind the four bytes of the place


@dataclass(frozen=True)
class _Function:
    code: bytes
    references: tuple[tuple[int, int, str, int], ...]  # offset, kind, name of what is referred to, addend


def public_name(name: str) -> str:
    """A symbol's name without the hash that internal linkage puts into it."""
    return _INTERNAL.sub("INTERNAL", name)


def differing_host(before: bytes, after: bytes, kernels: frozenset[str]) -> str | None:
    """The first host symbol that differs between two objects in a way that no launch explains; None where none does.

    `kernels` are the plain names of the kernels whose launches may change. Functions that launch them are passed over: their
    text is compared. Raises OptimlError for bytes that are no object file.
    """
    old, new = _read(before), _read(after)
    stubs = re.compile(
        "|".join(
            # The name as it is mangled, and within nvcc's wrapper for a template's instances.
            rf"(?<!\d){len(name)}{re.escape(name)}|__device_stub_{re.escape(name)}(?![a-z0-9_])"
            for name in sorted(kernels)
        )
        or r"(?!)"
    )

    def launches(function: _Function) -> bool:
        return any(stubs.search(name) for _, _, name, _ in function.references)

    called = {name for function in new.functions.values() for _, _, name, _ in function.references}
    if old.constructors != new.constructors:
        return "code that runs before main"
    for name in sorted({*old.functions, *new.functions}):
        if _OURS.fullmatch(name) or stubs.search(name):
            continue
        first, second = old.functions.get(name), new.functions.get(name)
        if first is not None and second is not None:
            if first != second and not (launches(first) and launches(second)):
                return name
        elif second is not None and name in new.local and not {name, _TEXT + name} & called:
            continue  # what nvcc leaves of a static device function in host code: nobody can call it
        elif (first or second) is not None and not _weak(old if first else new, name):
            return name
    data = {
        name
        for name in {*old.data, *new.data}
        if not _OURS.fullmatch(name)
        and not stubs.search(name)
        and old.data.get(name) != new.data.get(name)
        # What stands in host code for a table in constant memory: the host's text, which is the same, has no such name.
        and not (name in new.empty and name not in old.data)
    }
    return min(data, default=None)


@dataclass(frozen=True)
class _Object:
    functions: dict[str, _Function]
    data: dict[str, tuple[int, bytes]]  # of variables: size, and what they begin with
    weak: frozenset[str]
    local: frozenset[str]
    empty: frozenset[str]  # variables of the file alone that begin as zeros
    constructors: int


def _weak(of: _Object, name: str) -> bool:
    """An inline function of a header comes and goes with the launches that use it (`dim3`'s constructor)."""
    return name in of.weak


def _read(data: bytes) -> _Object:
    try:
        return _parsed(ELFFile(io.BytesIO(data)))
    except Exception as error:
        raise OptimlError(f"the host object cannot be read ({type(error).__name__})") from None


def _parsed(elf: Any) -> _Object:
    sections = list(elf.iter_sections())
    symbols = list(elf.get_section_by_name(".symtab").iter_symbols())
    functions: dict[str, _Function] = {}
    for section in sections:
        if section.name.startswith(_TEXT):
            name = public_name(section.name.removeprefix(_TEXT))
            table = elf.get_section_by_name(f".rela{section.name}")
            references = [_reference(r, symbols, sections) for r in (table.iter_relocations() if table else ())]
            functions[name] = _Function(section.data(), tuple(references))
    data: dict[str, tuple[int, bytes]] = {}
    weak, local, empty = set[str](), set[str](), set[str]()
    for symbol in symbols:
        kind, bind, index = symbol["st_info"]["type"], symbol["st_info"]["bind"], symbol["st_shndx"]
        name = public_name(symbol.name)
        if bind == "STB_WEAK":
            weak.add(name)
        elif bind == "STB_LOCAL" and kind == "STT_FUNC":
            local.add(name)
        if (
            kind == "STT_OBJECT"
            and isinstance(index, int)
            and bind != "STB_WEAK"
            and not name.startswith(("_ZZ", "_ZGV"))
        ):
            section = sections[index]
            start, size = int(symbol["st_value"]), int(symbol["st_size"])
            if bind == "STB_LOCAL" and section.name.startswith(".rodata"):
                continue  # constants of the file, which may serve the launch alone: their text is compared
            if bind == "STB_LOCAL" and section["sh_type"] == "SHT_NOBITS":
                empty.add(name)
            held = b"" if section["sh_type"] == "SHT_NOBITS" else section.data()[start : start + size]
            data[name] = size, held
    arrays = [s for s in sections if s.name.startswith((".init_array", ".ctors", ".preinit_array"))]
    return _Object(
        functions, data, frozenset(weak), frozenset(local), frozenset(empty), sum(int(s["sh_size"]) for s in arrays)
    )


def _reference(relocation: Any, symbols: list[Any], sections: list[Any]) -> tuple[int, int, str, int]:
    symbol = symbols[int(relocation["r_info_sym"])]
    place, kind, addend = int(relocation["r_offset"]), int(relocation["r_info_type"]), int(relocation["r_addend"])
    section = sections[symbol["st_shndx"]] if isinstance(symbol["st_shndx"], int) else None
    literal = section is not None and section.name.startswith(".rodata.")
    if section is not None and (literal or symbol.name.startswith(".L")):
        # Literals stand wherever there is room, under numbers of their own.
        at = int(symbol["st_value"]) + addend + (4 if kind in _X86_RELATIVE else 0)
        return place, kind, _literal(section, at) if literal else section.name, 0
    if symbol.name:
        return place, kind, public_name(symbol.name), addend
    name = section.name if section is not None else ""
    # Variables without linkage move with those of the launches; what they hold the text says.
    return place, kind, public_name(name), addend if name.startswith(_TEXT) else 0


def _literal(section: Any, at: int) -> str:
    """A constant or string of a section of literals (`-fmerge-constants`)."""
    size, data = int(section["sh_entsize"]), section.data()
    if "str" in section.name:
        return repr(data[at : max(at, data.find(b"\0", at))])
    return repr(data[at // size * size :][:size]) if size else section.name
