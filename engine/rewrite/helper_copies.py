"""Copies of the functions that a kernel shares with others, so that an edit may change them for it alone."""

from collections.abc import Callable

from tree_sitter import Node

from engine.cuda.kernel import Edit, Function, Unit
from engine.cuda.syntax import called, compact, names, walk
from engine.rewrite.proposal import Edits
from engine.rewrite.site import Site

_MOST = 4  # functions. Ours


def helper_copies(site: Site, wanted: Callable[[Function], bool]) -> Edits | None:
    """Edits that give the kernel its own copy of each wanted function that other code may call; None where it calls none.

    The functions are those of the file and its headers that the kernel calls by name. One that the file keeps for the kernel needs none.
    """
    copies: dict[str, str] = {}  # text by the name of the copy
    edits: list[Edit] = []
    known: dict[tuple[str, int], str] = {}  # the copy of a definition, by its file and place
    for node in walk(site.body):
        found = _definition(site, node) if node.type == "call_expression" else None
        if found is None or not wanted(found[1]):
            continue
        unit, function = found
        key = (unit.path, function.span.start)
        if key not in known:
            plain = function.name.partition("<")[0]
            known[key] = site.fresh(f"own_{plain}", list(copies))
            copies[known[key]] = _renamed(unit, function, known[key])
        called_as = node.child_by_field_name("function")
        name = called_as.child_by_field_name("name") if called_as is not None else None
        place = name if name is not None and "<" not in function.name else called_as
        if place is not None:
            edits.append(Edit.replace(place, known[key]))
    if not edits or len(copies) > _MOST:
        return None
    defined = "".join(f"{written}\n\n" for written in copies.values())
    return site.in_file(Edit.insert(site.declaration_start, defined), *edits)


def _definition(site: Site, call: Node) -> tuple[Unit, Function] | None:
    """The one definition that a call means, where other code may call it too; None where that cannot be told."""
    name, called_as = called(call), call.child_by_field_name("function")
    listed = called_as.child_by_field_name("arguments") if called_as is not None else None
    defined = [
        (unit, f)
        for unit in (site.unit, *site.headers)
        for f in unit.functions
        if f.name.partition("<")[0] == name and f.qualifier in ("device", "host device")
    ]
    general = [each for each in defined if "<" not in each[1].name]
    special = {_arguments(f.name): (unit, f) for unit, f in defined if "<" in f.name}
    if listed is None and special:
        return None
    chosen = special.get(_arguments(compact(listed))) if listed is not None else None
    if chosen is None and len(general) != 1:
        return None
    unit, function = chosen or general[0]
    scope = function.qualified.partition("<")[0].rpartition("::")[0]
    inside = f"{site.kernel.qualified}::".startswith(f"{scope}::") if scope else True
    if not inside or function.node.has_error or _private(site, unit, function):
        return None
    return unit, function


def _arguments(written: str) -> str:
    """Template arguments in one spelling: `<half2>` for `gelu< __half2 >`."""
    return "".join(written.split()).partition("<")[2].replace("__half", "half").replace("__nv_bfloat", "nv_bfloat")


def _private(site: Site, unit: Unit, function: Function) -> bool:
    """Whether the kernel's file defines it, and nothing there but the kernel calls it."""
    plain = function.name.partition("<")[0]
    others = [f for f in unit.functions if f.node != site.kernel.node and f.name.partition("<")[0] != plain]
    return unit is site.unit and not any(plain in names(other.node) for other in others)


def _renamed(unit: Unit, function: Function, name: str) -> str:
    """The definition under another name; a specialisation becomes a function."""
    start, end = function.span.start, function.span.end
    head = unit.data[start : function.name_span.start].decode()
    if "<" in function.name:
        head = head.partition(">")[2].lstrip()
    return f"{head}{name}{unit.data[function.name_span.end : end].decode()}".replace("\r\n", "\n")
