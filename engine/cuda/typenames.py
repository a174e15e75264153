"""What the types that host code names come to: their sizes, and the constants that classes hold (`Packed<T>::size`)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from tree_sitter import Node

from engine.arith import ArithmeticError_, Number, evaluate
from engine.cuda.aliases import aliases
from engine.cuda.parse import parse, text, walk
from engine.cuda.standins import standins_of
from engine.model import Program

_SIZES = {
    "char": 1, "signed char": 1, "unsigned char": 1, "bool": 1, "int8_t": 1, "uint8_t": 1, "short": 2, "unsigned short": 2,
    "half": 2, "__half": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2, "int16_t": 2, "uint16_t": 2, "int": 4, "unsigned": 4,
    "unsigned int": 4, "float": 4, "int32_t": 4, "uint32_t": 4, "half2": 4, "__half2": 4, "long": 8, "unsigned long": 8,
    "long long": 8, "unsigned long long": 8, "double": 8, "size_t": 8, "int64_t": 8, "uint64_t": 8, "float2": 8, "int2": 8,
    "uint2": 8, "float3": 12, "int3": 12, "float4": 16, "int4": 16, "uint4": 16, "double2": 16,
}  # fmt: skip
_MAX_ALIASES = 16  # typedefs of typedefs; also ends a cycle
_MAX_TEXT = 1_000  # characters of a value: constants that each use the one before twice double it
_NAME = re.compile(r"(?<![\w.:])[A-Za-z_]\w*")
_WORDS = re.compile(r"\b(?:const|volatile|typename|struct|class)\b")
_CLASSES = ("struct_specifier", "class_specifier")


@dataclass(frozen=True)
class Record:
    """A class: its template's parameters as (name, default), those that are types, and the values of its constants, as text."""

    parameters: tuple[tuple[str, str], ...]
    types: frozenset[str]
    constants: Mapping[str, str]

    def value(self, name: str) -> str:
        """Of a constant, in terms of none of the others."""
        written = self.constants[name]
        for _ in range(_MAX_ALIASES):
            if not self.constants.keys() & {*_NAME.findall(written)} or len(written) > _MAX_TEXT:
                break
            written = _NAME.sub(lambda m: f"({self.constants[m[0]]})" if m[0] in self.constants else m[0], written)
        return written


@dataclass(frozen=True)
class Member:
    """A constant of a class: the text of its value, and what the template's parameters stand for there, types and others."""

    value: str
    types: Mapping[str, str]
    values: Mapping[str, str]


@dataclass
class TypeNames:
    """The types of one program. `bound` are names that stand for types at one place: a template's parameters.

    `defines` and `include` are what the compiler is told, as in `aliases`.
    """

    program: Program
    defines: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    bound: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _aliases(self) -> Mapping[str, str]:
        return aliases(self.program, self.defines, self.include)

    @cached_property
    def defined(self) -> Mapping[str, Number]:
        """The macros that the compiler is told, as far as they are numbers."""
        found: dict[str, Number] = {}
        for name, _, written in (define.partition("=") for define in self.defines):
            with contextlib.suppress(ArithmeticError_):
                found[name] = evaluate(written or "1", {})
        return found

    def within(self, bound: Mapping[str, str]) -> TypeNames:
        """The same program at another place."""
        other = TypeNames(self.program, self.defines, self.include, bound)
        other.__dict__["_aliases"] = self._aliases
        return other

    def plain(self, text: str) -> str:
        """The type that a name stands for in the end, as text; what is no other name for a type stays."""
        for _ in range(_MAX_ALIASES):
            text = " ".join(_WORDS.sub(" ", text).split())
            following = self.bound.get(text) or (None if text in _SIZES else self._aliases.get(text.split("::")[-1]))
            if not following or following == text:
                return text
            text = following
        return text

    def size(self, text: str) -> int | None:
        """Of a type, in bytes; None where it is not known."""
        plain = self.plain(text)
        return 8 if plain.endswith("*") else _SIZES.get(plain)

    def member(self, scope: str, name: str) -> Member | None:
        """The constant `scope::name`; None where `scope` names no class of the program.

        Raises LookupError where it names several, or one without such a constant.
        """
        base, _, rest = self.plain(scope).partition("<")
        found = [
            record
            for path, data in (*self.program.files.items(), *standins_of(self.program.files))
            if not path.endswith(".toml")
            for record in _records(data, path).get(base.strip().split("::")[-1], ())
        ]
        if not found:
            return None
        if len(found) > 1 or name not in found[0].constants:
            raise LookupError(f"{scope}::{name}")
        given = split_arguments(rest.strip().removesuffix(">")) if rest else []
        types, values = {}, {}
        for at, (parameter, default) in enumerate(found[0].parameters):
            argument = given[at] if at < len(given) else default
            if parameter in found[0].types:
                types[parameter] = self.plain(argument)
            else:
                values[parameter] = argument
        return Member(found[0].value(name), types, values)


def split_arguments(text: str) -> list[str]:
    """Template arguments, or those of a call, at the commas that stand in no brackets."""
    parts, depth, current = [], 0, ""
    for char in text:
        depth += char in "<([{"
        depth -= char in ">)]}"
        if char == "," and depth == 0:
            parts.append(current.strip())
            current = ""
        else:
            current += char
    return [*parts, current.strip()] if current.strip() else parts


@lru_cache(maxsize=64)
def _records(data: bytes, path: str) -> Mapping[str, tuple[Record, ...]]:
    """The classes that a file defines; a specialisation is one more of the name."""
    found: dict[str, tuple[Record, ...]] = {}
    for node in walk(parse(data, path).root):
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if node.type in _CLASSES and name is not None and body is not None:
            plain = text(name).partition("<")[0].strip()
            found[plain] = (*found.get(plain, ()), _record(node, body))
    return found


def _record(node: Node, body: Node) -> Record:
    parameters: list[tuple[str, str]] = []
    types: set[str] = set()
    above = node.parent
    if above is not None and above.type == "template_declaration":
        for each in (above.child_by_field_name("parameters") or above).named_children:
            head, _, default = text(each).partition("=")
            words = head.replace("...", " ").split()
            if each.type != "comment" and words:
                parameters.append((words[-1], default.strip()))
                types |= {words[-1]} if "type_parameter" in each.type else set()
    constants: dict[str, str] = {}
    for member in body.named_children:
        held = any(text(c) in ("const", "constexpr") for c in member.children)
        static = any(text(c) in ("static", "constexpr") for c in member.children)
        if member.type == "field_declaration" and held and static:
            constants.update(_declared(member))
        for enumerator in walk(member) if member.type == "field_declaration" else ():
            if enumerator.type == "enumerator":
                name, value = enumerator.child_by_field_name("name"), enumerator.child_by_field_name("value")
                if name is not None and value is not None:
                    constants[text(name)] = text(value)
    return Record(tuple(parameters), frozenset(types), constants)


def _declared(member: Node) -> Iterable[tuple[str, str]]:
    """(name, value) of what a field's declaration declares: each value follows its name."""
    name = ""
    for index, child in enumerate(member.children):
        kind = member.field_name_for_child(index)
        if kind == "declarator":
            name = text(child) if child.type == "field_identifier" else ""
        elif kind == "default_value" and name:
            yield name, text(child).removeprefix("{").removesuffix("}")
