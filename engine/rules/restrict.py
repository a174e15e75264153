"""Promise the compiler that pointers do not overlap and that inputs are only read."""

import re

from engine.cuda.parse import parse
from engine.cuda.questions import text, walk, written
from engine.rewrite import Edit, Node, OptimlError, Proposals, Site, Span, merge, proposal
from engine.settings.suffixes import SOURCES
from engine.spec.types import source_type


class Restrict:
    """`__restrict__` on every pointer parameter, `const` on those never written."""

    name = "restrict"
    summary = "Add __restrict__ and const to pointers"

    def propose(self, site: Site) -> Proposals:
        if not site.sound:
            return
        parameters = _pointer_parameters(site.kernel.node, site.kernel.name)
        if not parameters or "__restrict" in "".join(site.unit.macros.get(n, "") for n in site.kernel.names):
            return
        read_only = _read_only(site)
        const = [p for p in parameters if p.name in read_only and not p.const]
        prototypes = _prototype_edits(site, {p.position: p for p in const})
        if prototypes is None:
            const = []
            prototypes = {}
        qualify = [Edit.insert(p.type_start, "const ") for p in const]
        if site.pointers_distinct and not _alone(site, read_only):
            restrict = [Edit.insert(p.name_start, "__restrict__ ") for p in parameters if not p.restrict]
            if restrict:
                yield from proposal(
                    self.name,
                    "Add __restrict__ to pointers that do not overlap" + (" and const to inputs" if const else ""),
                    merge(site.in_file(*restrict, *qualify), prototypes),
                    0.35,
                    restrict=len(restrict),
                    const=len(const),
                )


class _Pointer:
    """One pointer parameter of a declarator in the tree."""

    def __init__(self, position: int, node: Node, name: Node) -> None:
        declaration = text(node)
        kind = node.child_by_field_name("type")
        self.position = position
        self.name = text(name)
        self.name_start = name.start_byte
        self.type_start = min(node.start_byte, kind.start_byte) if kind is not None else node.start_byte
        head = declaration.split("*", 1)[0]
        self.const = bool(re.search(r"\bconst\b", head))
        self.restrict = "__restrict" in declaration
        self.type = " ".join(head.replace("const", " ").split())


def _pointer_parameters(node: Node, function: str) -> list[_Pointer]:
    for declarator in walk(node):
        if declarator.type != "function_declarator":
            continue
        name, parameters = declarator.child_by_field_name("declarator"), declarator.child_by_field_name("parameters")
        if name is None or parameters is None or text(name).split("<")[0].split("::")[-1].strip() != function:
            continue
        found = []
        listed = [
            c
            for c in parameters.named_children
            if c.type in ("parameter_declaration", "optional_parameter_declaration")
        ]
        for position, parameter in enumerate(listed):
            inner = parameter.child_by_field_name("declarator")
            if inner is None or inner.type != "pointer_declarator":
                continue
            target = inner.child_by_field_name("declarator")
            if target is not None and target.type == "identifier":
                found.append(_Pointer(position, parameter, target))
        return found
    return []


def _read_only(site: Site) -> set[str]:
    """Pointer parameters that the kernel only reads, and only by subscripts."""
    body = site.body
    pointers = {p.name for p in site.kernel.parameters if p.pointer and "volatile" not in p.type}
    found = pointers - written(body)
    for node in walk(body):
        if node.type == "identifier" and text(node) in found:
            parent = node.parent
            subscripted = parent is not None and parent.type == "subscript_expression"
            indexed = subscripted and parent is not None and parent.child_by_field_name("argument") == node
            if not indexed and not _is_declared_name(node):
                found.discard(text(node))
    # A local of the same name would hide the parameter.
    return {
        n for n in found if not any(_is_declared_name(i) and text(i) == n for i in walk(body) if i.type == "identifier")
    }


def _alone(site: Site, read_only: set[str]) -> bool:
    """Whether the kernel has one pointer, which it writes to: there is no other memory that it could overlap."""
    pointers = [p for p in site.kernel.parameters if p.pointer]
    plain = all(_is_number(site, p.base) for p in site.kernel.parameters if not p.pointer)
    device_variables = re.search(rb"__device__[^;{}()]*[;=]", site.unit.data) is not None
    return len(pointers) == 1 and pointers[0].name not in read_only and plain and not device_variables


def _is_number(site: Site, base: str) -> bool:
    found = source_type({}, site.kernel, base, site.spec.steps[site.step].template_args)
    return found is not None and found.kind != "bytes"


def _is_declared_name(node: Node) -> bool:
    parent = node.parent
    return (
        parent is not None and parent.type.endswith("declarator") and parent.child_by_field_name("declarator") == node
    )


def _prototype_edits(site: Site, const: dict[int, _Pointer]) -> dict[str, tuple[Edit, ...]] | None:
    """`const` in every other declaration of the kernel; None where one differs or the kernel's address may be taken."""
    if not const:
        return {}
    name = site.kernel.name
    word = re.compile(rf"\b{re.escape(name)}\b(?!\s*(?:<|\())".encode())
    found: dict[str, tuple[Edit, ...]] = {}
    for path, data in site.program.files.items():
        if name.encode() not in data or not path.endswith(SOURCES):
            continue
        if word.search(re.sub(rb"//[^\n]*|/\*.*?\*/", b"", data, flags=re.S)):
            return None
        try:
            root = parse(data, path).root
        except OptimlError:
            return None
        edits: list[Edit] = []
        for node in walk(root):
            if node.type != "function_declarator" or (
                path == site.program.kernel_file and _inside(node, site.kernel.span)
            ):
                continue
            inner = node.child_by_field_name("declarator")
            if inner is None or text(inner).split("<")[0].split("::")[-1].strip() != name:
                continue
            declared = {p.position: p for p in _pointer_parameters(node, name)}
            for position, pointer in const.items():
                if position not in declared or declared[position].type != pointer.type:
                    return None
                if not declared[position].const:
                    at = declared[position].type_start
                    edits.append(Edit.insert(at, "const "))
        if edits:
            found[path] = tuple(edits)
    return found


def _inside(node: Node, whole: Span) -> bool:
    return whole.start <= node.start_byte and node.end_byte <= whole.end
