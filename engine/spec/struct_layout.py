"""How a class of the program lies in memory, as far as its text shows: its size, its fields, the pointers it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from tree_sitter import Node

from engine.arith import ArithmeticError_, evaluate_int
from engine.compile.fallback_headers import fallbacks_of
from engine.cuda.constants import integers, words
from engine.cuda.kernel import Unit
from engine.cuda.parse import declared, parse, text, walk
from engine.cuda.standins import standins_of
from engine.cuda.typenames import TypeNames, split_arguments
from engine.errors import SpecError
from engine.model import Program
from engine.spec.dtypes import DType, parse_dtype

_CLASSES = ("struct_specifier", "class_specifier")
_FUNCTIONS = ("function_declarator", "operator_cast")
_SIZEOF = re.compile(r"sizeof\s*\(\s*(\w+)\s*\)")
_MAX_DEPTH = 8  # classes in classes
_MAX_FIELDS = 256
_MOST_SHOWN = 4  # pointers that a sentence names
_POINTER = 8
_LANES = "xyzw"  # of CUDA's vector types
_ATTRIBUTE = re.compile(r"\b(?:__)?aligned(?:__)?\s*\(([^()]*(?:\([^()]*\))?[^()]*)\)")


@dataclass(frozen=True)
class Field:
    """A field: `dtype` is None for a pointer; `target` is what it points to, as text. `offset` in bytes."""

    name: str
    offset: int
    dtype: DType | None
    count: int
    target: str = ""
    const: bool = False  # what it points to is

    @property
    def elements(self) -> tuple[Field, ...]:
        """Those of an array, each by its number: `x.0`, `x.1`; of anything else itself."""
        if self.count == 1:
            return (self,)
        size = _POINTER if self.dtype is None else self.dtype.itemsize
        return tuple(
            replace(self, name=f"{self.name}.{i}", offset=self.offset + i * size, count=1) for i in range(self.count)
        )


@dataclass(frozen=True)
class Layout:
    """A class in memory, sizes in bytes."""

    size: int
    align: int
    fields: tuple[Field, ...]
    unclear: str = ""  # why nothing but its pointers is certain

    @property
    def pointers(self) -> tuple[str, ...]:
        """The names of the fields that are pointers."""
        return tuple(f.name for f in self.fields if f.dtype is None)

    def element(self) -> DType:
        """The type of a buffer's elements: numbers where all fields are of one type and nothing lies between, else opaque bytes."""
        lanes = {f.dtype.lane for f in self.fields if f.dtype is not None}
        count = sum(f.count * f.dtype.lanes for f in self.fields if f.dtype is not None)
        (name, *others) = lanes or ("",)
        if name and not others and not self.unclear and count * parse_dtype(name).itemsize == self.size:
            return parse_dtype(f"{name}[{count}]")
        return parse_dtype(f"struct:{self.size}")

    def assumed(self) -> str:
        """A value as a spec writes it, `hex:…`: 0.75 for fractions (1e-5 for an epsilon), 1 for everything else."""
        data = bytearray(self.size)
        for field in self.fields:
            if field.dtype is None or field.dtype.kind == "bytes":
                continue
            value = 1.0
            if field.dtype.kind == "float":
                value = 1e-5 if re.search("eps", field.name, re.IGNORECASE) else 0.75
            count = field.count * field.dtype.lanes
            stored = field.dtype.from_float64(np.full(count, value)).tobytes()
            data[field.offset : field.offset + len(stored)] = stored
        return f"hex:{data.hex()}"


def _vector(name: str) -> Layout | None:
    """CUDA's own vector types."""
    try:
        dtype = parse_dtype(name)
    except SpecError:
        return None
    if not 1 < dtype.lanes <= len(_LANES) or dtype.is_struct:
        return None
    lane = parse_dtype(dtype.lane)
    fields = tuple(Field(_LANES[i], i * lane.itemsize, lane, 1) for i in range(dtype.lanes))
    return Layout(dtype.itemsize, lane.itemsize if dtype.lanes == 3 else min(dtype.itemsize, 16), fields)


class Unclear(Exception):
    """The text does not show how the class lies in memory; the message says why, as the end of a sentence."""


def layout(program: Program, text: str, bound: Mapping[str, str]) -> Layout:
    """The layout of a class by its name, perhaps with template arguments. `bound` are names that stand for types there.

    Raises Unclear.
    """
    return _LayoutReader(program).of(text, bound, 0)


def described(name: str, kind: str, found: Layout) -> str:
    """A struct with pointers, in words."""
    shown = ", ".join(f"'{p}'" for p in found.pointers[:_MOST_SHOWN])
    more = f" and {len(found.pointers) - _MOST_SHOWN} more" if len(found.pointers) > _MOST_SHOWN else ""
    return f"'{name}' is a '{kind[:60]}' that contains pointers ({shown}{more})"


def target_type(program: Program, field: Field) -> DType | None:
    """The type of the elements that a pointer field points to: bytes for `void`; None where it is not known."""
    if field.target == "void":
        return parse_dtype("uint8")
    try:
        return parse_dtype(field.target)
    except SpecError:
        pass
    try:
        found = layout(program, field.target, {})
    except Unclear:
        return None
    return None if found.pointers else found.element()


class _LayoutReader:
    def __init__(self, program: Program) -> None:
        self.program = program

    def of(self, text: str, bound: Mapping[str, str], depth: int) -> Layout:
        types = TypeNames(self.program, bound=bound)
        # `typedef struct a { … } A;`; without a name it is A alone
        plain = types.plain(text).partition("{")[0].strip() or text
        scope, own_name = _scoped(plain)
        base, _, rest = own_name.partition("<")
        name = base.strip()
        if depth > _MAX_DEPTH:
            raise Unclear(f"'{name[:60]}' is nested too deeply")
        classes, around = self._within(types.plain(scope), name, bound)
        if not classes:
            classes, around = list(self._classes(name)), {}
        if not classes and (vector := _vector(plain)):
            return vector
        if not classes:
            raise Unclear(f"'{name[:60]}' is defined in no file of the repository that this one includes")
        if len(classes) > 1:
            raise Unclear(f"'{name[:60]}' is defined more than once")
        unit, node = classes[0]
        given = split_arguments(rest.strip().removesuffix(">")) if rest else []
        inner = {**around, **self._bound(node, [bound.get(g, g) for g in given])}
        inner |= {name: written for name, written in self._own_types(node, 0) if name not in inner}
        fields: list[Field] = []
        at, align = 0, _aligned(_asked(node), inner)
        unclear: Unclear | None = None
        body = node.child_by_field_name("body")
        parts = [_Member(base, None, False) for base in _bases(node)] + (list(_members(body)) if body else [])
        for part in parts:
            try:
                if part.declarator is None:
                    below = self.of(part.kind, inner, depth + 1)
                    size, own, each = below.size, below.align, below.fields
                    unclear = unclear or (Unclear(below.unclear) if below.unclear else None)
                else:
                    size, own, each = self._member(unit, part, part.declarator, inner, depth)
                    own = max(own, _aligned(part.align, inner))
            except Unclear as why:
                unclear = unclear or why
                continue
            at = _placed(at, own)
            fields += [replace(f, offset=f.offset + at) for f in each]
            at, align = at + size, max(align, own)
            if len(fields) > _MAX_FIELDS:
                raise Unclear(f"'{name[:60]}' has too many fields")
        unclear = unclear or (Unclear(_hidden(body)) if body is not None and _hidden(body) else None)
        found = Layout(max(1, _placed(at, align)), align, tuple(fields), str(unclear or ""))
        if unclear is not None and not found.pointers:
            raise unclear
        return found

    def _within(
        self, scope: str, name: str, bound: Mapping[str, str]
    ) -> tuple[list[tuple[Unit, Node]], dict[str, str]]:
        """The classes of a name inside the class `scope`, and what stands for types there; none where it is a namespace."""
        base, _, rest = _scoped(scope)[1].partition("<")
        outer = list(self._classes(base.strip())) if base else []
        if len(outer) != 1:
            return [], {}
        unit, node = outer[0]
        given = split_arguments(rest.strip().removesuffix(">")) if rest else []
        around = self._bound(node, [bound.get(g, g) for g in given])
        around |= {own: written for own, written in self._own_types(node, 0) if own not in around}
        found = [(u, n) for u, n in self._classes(name) if u.path == unit.path and _inside(n, node)]
        return found, around

    @cached_property
    def _files(self) -> list[tuple[str, bytes]]:
        files = self.program.files
        return [*files.items(), *standins_of(files), *fallbacks_of(files)]

    def _classes(self, name: str) -> Iterator[tuple[Unit, Node]]:
        for path, data in self._files:
            if path.endswith(".toml") or name.encode() not in data:
                continue
            unit = parse(data, path)
            for node in walk(unit.root):
                named = node.child_by_field_name("name") if node.type in _CLASSES else None
                if (
                    node.type in _CLASSES
                    and named is None
                    and node.parent is not None
                    and node.parent.type == "type_definition"
                ):
                    named = node.parent.child_by_field_name("declarator")
                if named is not None and text(named) == name and node.child_by_field_name("body") is not None:
                    yield unit, node

    def _own_types(self, node: Node, depth: int) -> Iterator[tuple[str, str]]:
        """The other names for types that a class, or one that it derives from, has within."""
        body = node.child_by_field_name("body")
        for member in body.named_children if body is not None else ():
            kind = member.child_by_field_name("type")
            if (member.type == "alias_declaration" and (name := member.child_by_field_name("name")) and kind) or (
                member.type == "type_definition" and (name := member.child_by_field_name("declarator")) and kind
            ):
                yield text(name), text(kind)
        for base in _bases(node) if depth < _MAX_DEPTH else ():
            for _, above in list(self._classes(base.split("::")[-1].partition("<")[0]))[:1]:
                yield from self._own_types(above, depth + 1)

    def _bound(self, node: Node, given: list[str]) -> dict[str, str]:
        above, found = node.parent, dict[str, str]()
        if above is None or above.type != "template_declaration":
            return found
        listed = [n for n in (above.child_by_field_name("parameters") or above).named_children if n.type != "comment"]
        for at, parameter in enumerate(listed):
            head, _, default = text(parameter).partition("=")
            named, value = head.replace("...", " ").split(), given[at] if at < len(given) else default.strip()
            if named and value:
                found[named[-1]] = value
        return found

    def _member(
        self, unit: Unit, part: _Member, declarator: Node, bound: Mapping[str, str], depth: int
    ) -> tuple[int, int, tuple[Field, ...]]:
        """Size and alignment of one field, and it (or the fields within it) at offset 0."""
        named = _field_name(declarator)
        count = 1
        for array in [n for n in walk(declarator) if n.type == "array_declarator"]:
            size = array.child_by_field_name("size")
            written = text(size) if size is not None else ""
            values = {k: int(v) for k, v in bound.items() if v.isdigit()}
            try:
                count *= evaluate_int(written, {**integers(unit, words(written)), **values})
            except ArithmeticError_:
                raise Unclear(f"the length of its field '{named[:60]}' is not known") from None
        plain = TypeNames(self.program, bound=bound).plain(part.kind)
        stars = sum(n.type in ("pointer_declarator", "reference_declarator") for n in walk(declarator))
        if stars or plain.endswith("*"):
            target = plain.removesuffix("*").strip() if not stars else plain if stars == 1 else ""
            return _POINTER * count, _POINTER, (Field(named, 0, None, count, target, part.const),)
        try:
            dtype = parse_dtype(plain)
        except SpecError:
            below = self.of(part.kind, bound, depth + 1)
            if below.unclear:
                raise Unclear(below.unclear) from None
            names = [f"{named}.{i}" for i in range(count)] if count > 1 else [named]
            fields = tuple(
                replace(f, name=f"{name}.{f.name}", offset=f.offset + i * below.size)
                for i, name in enumerate(names[: _MAX_FIELDS + 1])
                for f in below.fields
            )
            return below.size * count, below.align, fields
        whole = dtype.lanes in (1, 2, 4) and dtype.kind != "bytes"
        align = min(16, dtype.itemsize) if whole else dtype.storage.itemsize
        return dtype.itemsize * count, align, (Field(named, 0, dtype, count),)


def _scoped(text: str) -> tuple[str, str]:
    """What stands before and after the last `::` outside of template arguments."""
    depth = 0
    for at in range(len(text) - 1, 0, -1):
        depth += (text[at] == ">") - (text[at] == "<")
        if depth == 0 and text[at - 1 : at + 1] == "::":
            return text[: at - 1].strip(), text[at + 1 :].strip()
    return "", text.strip()


def _inside(node: Node, outer: Node) -> bool:
    return outer.start_byte < node.start_byte and node.end_byte <= outer.end_byte


def _placed(at: int, align: int) -> int:
    return -(-at // align) * align


def _bases(node: Node) -> Iterator[str]:
    for child in node.children:
        if child.type == "base_class_clause":
            for each in child.named_children:
                if each.type in ("type_identifier", "qualified_identifier", "template_type"):
                    yield text(each)


@dataclass(frozen=True)
class _Member:
    """A field that takes room: its type as text, its declarator (None: a base class), and whether its type is const.

    `align`: the alignments that its declaration asks for, as text.
    """

    kind: str
    declarator: Node | None
    const: bool
    align: tuple[str, ...] = ()


def _members(body: Node) -> Iterator[_Member]:
    for member in body.named_children:
        kind = member.child_by_field_name("type")
        static = any(text(c) in ("static", "constexpr", "friend") for c in member.children)
        if member.type != "field_declaration" or kind is None or static:
            continue
        for declarator in member.children_by_field_name("declarator"):
            if declarator.type not in _FUNCTIONS and not any(n.type in _FUNCTIONS for n in declarator.children):
                const = any(text(c) == "const" for c in member.children)
                yield _Member(text(kind), declarator, const, _asked(member))


def _asked(node: Node) -> tuple[str, ...]:
    """The alignments that a class or a field is declared with, as text."""
    parts = [inner for child in node.children for inner in (child, *child.children)]  # of a field it is a qualifier
    found = [text(c).partition("(")[2].rpartition(")")[0] for c in parts if c.type == "alignas_qualifier"]
    return (*found, *_ATTRIBUTE.findall(text(node).partition("{")[0]))


def _aligned(asked: Sequence[str], bound: Mapping[str, str]) -> int:
    """The largest of these alignments; 1 for none. Raises Unclear for one that is not known."""
    numbers = {name: int(value) for name, value in bound.items() if value.isdigit()}
    try:
        plain = [_SIZEOF.sub(lambda m: str(parse_dtype(bound.get(m[1], m[1])).itemsize), each) for each in asked]
        return max([1, *(evaluate_int(each, numbers) for each in plain)])
    except (ArithmeticError_, SpecError):
        raise Unclear(f"its alignment '{asked[0][:40]}' is not known") from None


def _hidden(body: Node) -> str:
    """Why the fields alone do not say how the class lies in memory; "" where they do."""
    for member in body.named_children:
        if member.type.startswith("preproc_") and not _functions_alone(member):
            return "its fields depend on the preprocessor"
        if re.search(r"\bvirtual\b", text(member).partition("{")[0]):
            return "it has virtual functions"
        if any(c.type == "bitfield_clause" for c in member.children):
            return "it has bit fields"
    return ""


def _functions_alone(node: Node) -> bool:
    """Whether a member, or what stands between `#if` and `#endif`, declares functions and types and takes no room."""
    if node.type.startswith("preproc_"):
        named = {"name", "condition"}
        inner = [c for i, c in enumerate(node.children) if c.is_named and node.field_name_for_child(i) not in named]
        return all(map(_functions_alone, inner))
    if node.type in ("field_declaration", "declaration"):
        declarators = node.children_by_field_name("declarator")
        return bool(declarators) and all(
            d.type in _FUNCTIONS or any(n.type in _FUNCTIONS for n in walk(d)) for d in declarators
        )
    return node.type in (
        "function_definition",
        "template_declaration",
        "alias_declaration",
        "friend_declaration",
        "comment",
    )


def _field_name(declarator: Node) -> str:
    node = declared(declarator)
    if node is not None:
        return text(node)
    return next((text(n) for n in walk(declarator) if n.type == "field_identifier"), text(declarator))
